from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support import assert_near, message, scatter_parameters
from toa.models import Informer, InformerConfig
from toa.models.encoder_decoder import DistillingConv
from toa.nn import ProbSparseAttention

SIZES: dict[str, Any] = {"lookback": 24, "horizon": 6, "channels": 3, "label_len": 10, "num_marks": 2}


def config(**settings: Any) -> InformerConfig:
    return InformerConfig(**{**SIZES, "embed_dim": 8, "num_heads": 2, "ff_dim": 12, **settings})


def build(**settings: Any) -> Informer:
    model = Informer(config(**settings)).double()
    scatter_parameters(model)
    return model


def inputs(batch: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    shapes = ((batch, 24, 3), (batch, 24, 2), (batch, 6, 2))
    series, marks, future_marks = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    return series, marks, future_marks


def embedded(embedding: Any, values: Tensor, marks: Tensor) -> Tensor:
    around = torch.cat((values[:, -1:], values, values[:, :1]), 1)
    taps = embedding.projection.weight
    convolved = sum(around[:, i : i + values.shape[1]] @ taps[:, :, i].mT for i in range(3))
    return convolved + embedding.marks(marks) + embedding.position


def softmax_attention(layer: Any, query: Tensor, key: Tensor) -> Tensor:
    """ProbSparse attention in which every query attends; heads are joined as in the layer."""
    q, k, v = (
        project(x).unflatten(-1, (2, 4)).transpose(1, 2)
        for project, x in ((layer.q_proj, query), (layer.k_proj, key), (layer.v_proj, key))
    )
    scores = q @ k.mT / 2.0
    if layer.causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    mixed = scores.softmax(-1) @ v  # (B, H, M, D)
    mixed = mixed.reshape(query.shape) if layer.mix_heads else mixed.transpose(1, 2).flatten(2)
    return layer.out_proj(mixed)


def as_printed(model: Informer, series: Tensor, marks: Tensor, future_marks: Tensor) -> Tensor:
    """The model as a formula, with softmax attention and batch norm in evaluation."""
    block: Any
    x = embedded(model.embed, series, marks)
    for i, block in enumerate(model.blocks):
        if i and model.config.distil:
            distil: Any = model.shorten[i - 1]
            around = torch.cat((x[:, -2:], x, x[:, :2]), 1)
            x = sum(around[:, j : j + x.shape[1] + 2] @ distil.conv.weight[:, :, j].mT for j in range(3))
            x = nn.functional.elu(distil.norm((x + distil.conv.bias).flatten(0, 1)).unflatten(0, x.shape[:2]))
            # windows of three steps around steps 0, 2, 4, ..
            x = torch.stack([x[:, max(0, j - 1) : j + 2].amax(1) for j in range(0, x.shape[1], 2)], 1)
        x = block.attention_norm(x + softmax_attention(block.attention, x, x))
        x = block.ff_norm(x + block.ff(x))
    encoded = model.encoder_norm(x)
    past = model.config.lookback - model.config.label_len
    values = torch.cat((series[:, past:], torch.zeros(len(series), 6, 3, dtype=series.dtype)), 1)
    x = embedded(model.decoder_embed, values, torch.cat((marks[:, past:], future_marks), 1))
    for block in model.decoder_blocks:
        x = block.own_norm(x + softmax_attention(block.own, x, x))
        x = block.cross_norm(x + softmax_attention(block.cross, x, encoded))
        x = block.ff_norm(x + block.ff(x))
    return model.projection(model.decoder_norm(x))[:, -6:]


@pytest.mark.parametrize("mix_heads", [True, False])
@pytest.mark.parametrize("distil", [True, False])
def test_model_in_which_every_query_attends_equals_its_formula(distil, mix_heads):
    model = build(factor=20, distil=distil, mix_heads=mix_heads, num_layers=3, decoder_layers=2).train()
    series, marks, future_marks = inputs()
    # changes the statistics of batch norm
    model(*inputs(8))
    model.eval()
    assert_near(model(series, marks, future_marks), as_printed(model, series, marks, future_marks))


@pytest.mark.parametrize(
    ("lookback", "lengths"), [(96, (96, 49, 26)), (36, (36, 19, 11)), (25, (25, 14, 8)), (2, (2,) * 3)]
)
def test_distilling_halves_the_tokens(lookback, lengths):
    assert config(lookback=lookback, label_len=1, num_layers=3).lengths == lengths
    assert config(lookback=lookback, label_len=1, num_layers=3, distil=False).lengths == (lookback,) * 3
    layer = DistillingConv(4)
    for before, after in pairwise(lengths):
        assert layer(torch.randn(2, before, 4)).shape == (2, after, 4)


def test_every_attention_is_prob_sparse_and_only_the_decoders_own_is_causal():
    model = build(factor=2)
    found = {name: m for name, m in model.named_modules() if isinstance(m, ProbSparseAttention)}
    assert {name: (m.causal, m.num_tokens) for name, m in found.items()} == {
        "blocks.0.attention": (False, 24),
        "blocks.1.attention": (False, 13),
        "decoder_blocks.0.own": (True, 16),
        "decoder_blocks.0.cross": (False, 13),
    }
    assert {(m.factor, m.mix_heads, m.dropout) for m in found.values()} == {(2, True, 0.0)}


def test_training_draws_keys_and_evaluation_does_not():
    model = build(factor=1, dropout=0.0)
    batch = inputs()
    model.train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.eval()
    assert not torch.equal(model(*batch), model(*batch))
    model.eval()
    state = torch.get_rng_state()
    assert torch.equal(model(*batch), model(*batch))
    assert torch.equal(torch.get_rng_state(), state)


def test_with_label_len_zero_the_decoder_starts_with_zeros_only():
    model = build(label_len=0).eval()
    seen = []
    model.decoder_embed.register_forward_pre_hook(lambda _, given: seen.append(given))
    series, marks, future_marks = inputs()
    assert model(series, marks, future_marks).shape == (2, 6, 3)
    values, known = seen[0]
    assert torch.equal(values, torch.zeros(2, 6, 3, dtype=torch.float64))
    assert torch.equal(known, future_marks)


def test_the_decoder_starts_from_the_last_steps_and_zeros():
    model = build().eval()
    seen = []
    model.decoder_embed.register_forward_pre_hook(lambda _, given: seen.append(given))
    series, marks, future_marks = inputs()
    model(series, marks, future_marks)
    values, known = seen[0]
    assert torch.equal(values[:, :10], series[:, 14:])
    assert not values[:, 10:].any()
    assert torch.equal(known, torch.cat((marks[:, 14:], future_marks), 1))


def test_a_model_without_marks_needs_none():
    model = build(num_marks=0).eval()
    series, marks, _ = inputs()
    assert model(series).shape == (2, 6, 3)
    with pytest.raises(ValueError, match=message("marks must be None", "num_marks=0, got shape (2, 24, 2); leave")):
        model(series, marks)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"lookback": 1, "label_len": 1}, "lookback must be at least 2 with distil=True, got 1; set distil=False."),
]


@pytest.mark.parametrize(("settings", "text"), BAD, ids=str)
def test_bad_settings_raise(settings, text):
    with pytest.raises(ValueError, match=message(text)):
        config(**settings)


def test_bad_inputs_raise():
    model = build()
    series, marks, future_marks = inputs()
    with pytest.raises(
        ValueError, match=message("marks must be given to a model with num_marks=2, got None; pass them as (B, L, 2)")
    ):
        model(series)
    with pytest.raises(
        ValueError, match=message("future_marks must be given to a model with num_marks=2, got None", "(B, P, 2)")
    ):
        model(series, marks)
    with pytest.raises(ValueError, match=message("future_marks must have shape (B, P, F)=(2, 6, 2), got (2, 5, 2).")):
        model(series, marks, future_marks[:, 1:])
    with pytest.raises(ValueError, match=message("series must have channels=3, got 2")):
        model(series[..., 1:], marks, future_marks)
