from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support import assert_near, message, scatter_parameters
from toa.models import PatchTST, PatchTSTConfig
from toa.nn import ATTENTIONS, AttentionSpec, TokenBatchNorm, mixing_operators


def config(name: str = "softmax", **settings: Any) -> PatchTSTConfig:
    sizes: dict[str, Any] = {"patch_len": 8, "stride": 4, "embed_dim": 8, "num_heads": 2, "ff_dim": 12, **settings}
    return PatchTSTConfig(lookback=32, attention=AttentionSpec(name=name), **sizes)


def split(x: Tensor) -> Tensor:
    return x.unflatten(-1, (2, 4)).transpose(1, 2)


def as_printed(model: PatchTST, series: Tensor, *, residual: bool) -> Tensor:
    """The encoder as a formula, on one channel, with scores added layer by layer."""
    padded = torch.cat((series, series[:, -1:].repeat(1, 4, 1)), 1)[..., 0]
    patches = torch.stack([padded[:, i : i + 8] for i in range(0, 29, 4)], 1)
    x = model.embed.projection(patches) + model.embed.position
    scores: Tensor | float = 0.0
    block: Any
    for block in model.blocks:
        attention = block.attention
        q, k, v = (split(p(x)) for p in (attention.q_proj, attention.k_proj, attention.v_proj))
        scores = q @ k.mT / 2.0 + (scores if residual else 0.0)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = block.attention_norm(x + attention.out_proj(mixed))
        x = block.ff_norm(x + block.ff(x))
    return model.norm(x)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("style", ["official", "tslib"])
def test_softmax_model_equals_its_formula(style, residual, training):
    model = PatchTST(config(style=style, dropout=0.0, residual_scores=residual)).double()
    scatter_parameters(model)
    model.train(training)
    series = torch.randn(3, 32, 1, dtype=torch.float64)
    assert_near(model(series)[:, 0], as_printed(model, series, residual=residual))


def test_official_style_has_batch_norm_in_the_blocks_and_tslib_style_after_them():
    official, tslib = (PatchTST(config(style=style)) for style in ("official", "tslib"))
    count = {id(m): sum(isinstance(x, TokenBatchNorm) for x in m.modules()) for m in (official, tslib)}
    assert count[id(official)] == 2 * 3
    assert count[id(tslib)] == 1
    assert isinstance(tslib.norm, TokenBatchNorm)
    assert sum(isinstance(x, nn.LayerNorm) for x in tslib.modules()) == 2 * 3
    assert official.embed.projection.bias is not None
    assert tslib.embed.projection.bias is None


def test_dropout_is_where_each_style_publishes_it():
    official, tslib = (PatchTST(config(style=style, dropout=0.2)) for style in ("official", "tslib"))
    first: Any = official.blocks[0]
    # once in the attention's projection and once on the residual path: a value survives both with 0.8²
    assert first.attention_dropout.p == pytest.approx(0.36)
    assert first.attention.dropout == 0.0
    first = tslib.blocks[0]
    assert first.attention_dropout.p == first.attention.dropout == 0.2
    assert official.embed.dropout.p == tslib.embed.dropout.p == 0.2


@pytest.mark.parametrize("style", ["official", "tslib"])
@pytest.mark.parametrize("name", ATTENTIONS)
def test_scores_are_residual_by_default_only_in_official_softmax(name, style):
    plain = config(name, style=style)
    assert PatchTST(plain).blocks.residual_scores is (name == "softmax" and style == "official")
    assert PatchTST(replace(plain, residual_scores=True)).blocks.residual_scores
    assert not PatchTST(replace(plain, residual_scores=False)).blocks.residual_scores


@pytest.mark.parametrize("name", ATTENTIONS)
def test_channels_are_independent_and_their_number_is_free(name):
    model = PatchTST(config(name)).eval()
    series = torch.randn(2, 32, 5)
    tokens = model(series)
    assert tokens.shape == (2, 5, model.num_tokens, model.embed_dim) == (2, 5, 8, 8)
    assert_near(model(series[:, :, 3:4]), tokens[:, 3:4], 1e-5)
    assert model.channels is None


def test_mixing_operators_are_returned_per_layer_and_channel():
    model = PatchTST(config("toa-gated"))
    operators = mixing_operators(model, lambda: model(torch.randn(2, 32, 5)))
    assert [tuple(o.shape) for o in operators.values()] == [(2 * 5, 2, 8, 8)] * 3


BAD: list[tuple[dict[str, Any], str]] = [
    ({"patch_len": 33}, "lookback must be at least patch_len=33, got 32; use shorter patches or a longer series."),
    ({"style": "x"}, "unknown style 'x'; known: official, tslib."),
    ({"residual_scores": "yes"}, "residual_scores must be True, False or None, got 'yes'."),
]


@pytest.mark.parametrize(("settings", "text"), BAD, ids=str)
def test_bad_settings_raise(settings, text):
    with pytest.raises(ValueError, match=message(text)):
        config(**settings)
