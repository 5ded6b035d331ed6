from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import assert_near, message, scatter_parameters
from toa.models import Transformer, build_forecaster
from toa.nn import AttentionSpec, mixing_operators

SIZES = {"embed_dim": 8, "num_heads": 2, "ff_dim": 12, "label_len": 4}
CAUSAL = ("softmax", "toa-softmax", "toa-relu", "toa-gated")


def build(attention: str = "softmax", num_marks: int = 2, **settings: Any) -> Transformer:
    spec = AttentionSpec(name=attention)
    model = build_forecaster(
        "transformer",
        lookback=12,
        horizon=5,
        channels=3,
        attention=spec,
        num_marks=num_marks,
        settings={**SIZES, **settings},
    )
    assert isinstance(model, Transformer)
    return model.eval()


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(2, 12, 3, dtype=dtype), torch.rand(2, 12, 2, dtype=dtype), torch.rand(2, 5, 2, dtype=dtype)


@pytest.mark.parametrize("label_len", [0, 4, 12])
def test_decoder_starts_with_the_end_of_the_past_and_zeros_with_their_marks(label_len):
    model = build(label_len=label_len)
    series, marks, future = inputs()
    seen: list[Tensor] = []
    model.decoder_embed.register_forward_pre_hook(lambda _, given: seen.extend(given))
    assert model(series, marks, future).shape == (2, 5, 3)
    values, known = seen
    assert torch.equal(values[:, :label_len], series[:, 12 - label_len :])
    assert values.shape == (2, label_len + 5, 3)
    assert (values[:, label_len:] == 0).all()
    assert torch.equal(known, torch.cat((marks[:, 12 - label_len :], future), 1))


@pytest.mark.parametrize("attention", CAUSAL)
def test_a_forecast_does_not_see_the_marks_of_later_steps(attention):
    model = scatter_parameters(build(attention), 0.3)
    series, marks, future = inputs()
    later = future.clone()
    later[:, 3:] += 1.0
    first, second = model(series, marks, future), model(series, marks, later)
    assert_near(second[:, :3], first[:, :3], 1e-6)
    assert (second[:, 3:] - first[:, 3:]).abs().min() > 0


def test_a_forecast_without_causal_sees_the_marks_of_later_steps():
    model = scatter_parameters(build("toa-gated", causal=False), 0.3)
    series, marks, future = inputs()
    later = future.clone()
    later[:, 4:] += 1.0
    assert (model(series, marks, future) - model(series, marks, later))[:, 0].abs().max() > 0


def test_operators_act_on_the_keys():
    model: Any = build("toa-relu", num_layers=3, decoder_layers=2)
    assert [block.attention.num_tokens for block in model.blocks] == [12] * 3
    assert [(block.own.num_tokens, block.cross.num_tokens) for block in model.decoder_blocks] == [(9, 12)] * 2
    assert [(block.own.causal, block.cross.causal) for block in model.decoder_blocks] == [(True, False)] * 2
    found = mixing_operators(model, lambda: model(*inputs()))
    decoder = [(2, 2, 9, 9), (2, 2, 9, 12)] * 2
    assert [tuple(operator.shape) for operator in found.values()] == [(2, 2, 12, 12)] * 3 + decoder


def test_softmax_operators_are_weights_and_triangular_in_the_decoder():
    model = build()
    found = mixing_operators(model, lambda: model(*inputs()))
    for operator in found.values():
        assert_near(operator.sum(-1), torch.ones(operator.shape[:-1]), 1e-5)
    assert (found["decoder_blocks.0.own"].triu(1) == 0).all()


def test_instance_norm_makes_forecasts_follow_level_and_scale():
    model = build(instance_norm=True).double()
    series, marks, future = inputs(torch.float64)
    series = series * 100.0
    assert_near(model(3.0 * series + 50.0, marks, future), 3.0 * model(series, marks, future) + 50.0, 1e-6)
    plain = build().double()
    assert (plain(series + 50.0, marks, future) - plain(series, marks, future) - 50.0).abs().max() > 1.0


def test_a_model_without_marks_needs_none():
    model = build(num_marks=0)
    series, marks, future = inputs()
    assert model(series).shape == (2, 5, 3)
    with pytest.raises(ValueError, match=message("marks must be None", "got shape (2, 12, 2)", "with num_marks=2.")):
        model(series, marks, future)


BAD: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"attention": "hyperglu"}, ("causal must be False for hyperglu",)),
]


@pytest.mark.parametrize(("settings", "parts"), BAD, ids=str)
def test_bad_settings_raise(settings, parts):
    with pytest.raises(ValueError, match=message(*parts)):
        build(**settings)
