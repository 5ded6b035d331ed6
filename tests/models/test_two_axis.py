from typing import Any

import pytest
import torch
from torch import nn

from tests.support import assert_near, message, scatter_parameters
from toa.models import BackboneForecaster, build_forecaster, build_reconstructor
from toa.nn import ATTENTIONS, AttentionSpec, DenseOperator, DiagonalLowRankOperator, SequenceOperator, mixing_operators

SIZES = {"embed_dim": 8, "num_heads": 2, "num_layers": 2, "ff_dim": 12, "patch_len": 8, "stride": 8}


def build(attention: str = "toa-softmax", *, channels: int = 4, **settings: Any) -> BackboneForecaster:
    model = build_forecaster(
        "two-axis", lookback=32, horizon=5, channels=channels, attention=attention, settings={**SIZES, **settings}
    )
    assert isinstance(model, BackboneForecaster)
    return model


def started(model: BackboneForecaster) -> Any:
    """The model after its first steps: a head that is not zero, and operators that are not the identity."""
    model.head.reset_parameters()
    return scatter_parameters(model, 0.3).double().eval()


@pytest.mark.parametrize("attention", ["softmax", "toa-gated"])
def test_the_model_starts_as_the_linear_map_from_look_back_to_horizon(attention):
    model: Any = build(attention, instance_norm=False).eval()
    nn.init.normal_(model.shortcut.weight)
    series = torch.randn(3, 32, 4)
    assert torch.equal(model(series), model.shortcut(series.mT).mT)


@pytest.mark.parametrize(("start", "steps"), [("mean", 32), ("last", 1), ("ridge", 1)])
@pytest.mark.parametrize("norm", [True, False])
def test_the_linear_map_starts_as_the_mean_or_the_last_value(start, steps, norm):
    model = build(shortcut_start=start, instance_norm=norm).eval()
    series = torch.randn(3, 32, 4)
    assert_near(model(series), series[:, -steps:].mean(1, keepdim=True).expand(-1, 5, -1), 1e-6)


@pytest.mark.parametrize("norm", [True, False])
def test_the_fitted_map_has_the_least_penalised_error_of_all_linear_maps(norm):
    model: Any = build(instance_norm=norm).double().eval()
    series = 3.0 + torch.randn(20, 32, 4).cumsum(1).double()
    target = torch.randn(20, 5, 4).double()
    model.fit_shortcut([(series[:8], target[:8]), (series[8:], target[8:])])
    scaled = model.norm.normalise(series) if norm else (series, (None, torch.ones(20, 1, 4)))
    penalty = 0.1 * (scaled[0] * scaled[1][1]).square().sum((0, 2)).mean()
    last = torch.zeros(5, 32).double()
    last[:, -1] = 1.0

    def cost() -> torch.Tensor:
        distance = (model.shortcut.weight - last).square().sum()
        return (model(series) - target).square().sum() + penalty * distance

    least = cost()
    gradients = torch.autograd.grad(least, (model.shortcut.weight, model.shortcut.bias))
    assert all(gradient.abs().max() < 1e-8 * least for gradient in gradients)


@pytest.mark.parametrize("value", [0.0, 2.0])
@pytest.mark.parametrize("norm", [True, False])
def test_the_map_fitted_to_constant_windows_repeats_them(norm, value):
    model: Any = build(instance_norm=norm).double().eval()
    model.fit_shortcut([(torch.full((20, 32, 4), value).double(), torch.full((20, 5, 4), value).double())])
    assert_near(model(torch.full((1, 32, 4), value).double()), torch.full((1, 5, 4), value).double(), 1e-9)


def test_after_the_start_the_forecast_is_the_sum_of_both_maps():
    model = started(build(instance_norm=False))
    series = torch.randn(3, 32, 4, dtype=torch.float64)
    assert_near(model(series), model.head(0.1 * model.backbone(series)) + model.shortcut(series.mT).mT)


@pytest.mark.parametrize("attention", ["softmax", "toa-softmax", "toa-relu", "toa-gated"])
def test_permuted_channels_with_permuted_operators_have_permuted_forecasts(attention):
    model = started(build(attention))
    series = torch.randn(2, 32, 4, dtype=torch.float64)
    before = model(series)
    order = torch.tensor([2, 0, 3, 1])
    with torch.no_grad():
        for operator in model.modules():
            if isinstance(operator, DenseOperator):
                operator.offset.copy_(operator.offset[:, order][:, :, order])
    assert_near(model(series[..., order]), before[..., order])
    if attention != "softmax":
        assert not torch.allclose(model(series), before)


def test_one_matrix_per_window_and_head_mixes_the_channels_at_all_positions():
    backbone = started(build("toa-relu")).backbone
    series = torch.randn(3, 32, 4, dtype=torch.float64)
    assert backbone(series).shape == (3, 4, 5, 8)
    found = mixing_operators(backbone, lambda: backbone(series))
    assert [tuple(found[f"channel_blocks.{i}.attention"].shape) for i in range(2)] == [(3, 2, 4, 4)] * 2


@pytest.mark.parametrize(
    ("settings", "sees"), [({}, True), ({"mix_channels": False, "time_attention": "same"}, False)], ids=str
)
def test_channels_see_each_other_only_if_they_are_mixed(settings, sees):
    model = started(build(**settings))
    series = torch.randn(1, 32, 4, dtype=torch.float64)
    changed = series.clone()
    changed[..., 0] += torch.randn(32, dtype=torch.float64)
    assert torch.allclose(model(series)[..., 1:], model(changed)[..., 1:]) != sees


def test_patches_see_each_other_only_with_attention_along_time():
    series = torch.randn(1, 32, 1, dtype=torch.float64)
    changed = series.clone()
    changed[:, :8] += 1.0
    for attention, sees in (("softmax", True), ("toa-relu", True), ("none", False)):
        backbone = started(build("softmax", channels=1, mix_channels=True, time_attention=attention)).backbone
        # the mean over positions reaches queries and keys, but with one channel it cannot change the weights
        same = torch.allclose(backbone(series)[:, :, 1:], backbone(changed)[:, :, 1:])
        assert same != sees, attention


@pytest.mark.parametrize("lookback", [96, 336, 512, 720])
@pytest.mark.parametrize("attention", ["softmax", "toa-softmax", "toa-gated"])
def test_a_model_of_ett_has_fewer_than_300000_weights(attention, lookback):
    model = build_forecaster("two-axis", lookback=lookback, horizon=96, channels=7, attention=attention)
    assert sum(parameter.numel() for parameter in model.parameters()) < 300_000


@pytest.mark.parametrize(("channels", "kind"), [(100, DenseOperator), (101, DiagonalLowRankOperator)])
def test_operators_of_many_channels_have_low_rank(channels, kind):
    operators = [m for m in build(channels=channels).modules() if isinstance(m, SequenceOperator)]
    assert {type(operator) for operator in operators} == {kind}


def test_a_chosen_structure_is_kept_for_many_channels():
    spec = AttentionSpec(name="toa-relu", structure="dense")
    model = build_forecaster("two-axis", lookback=32, horizon=5, channels=101, attention=spec, settings=SIZES)
    assert all(type(m) is DenseOperator for m in model.modules() if isinstance(m, SequenceOperator))


def test_a_training_step_with_862_channels_has_fewer_weights_than_a_twentieth_of_dense_operators():
    model = build_forecaster("two-axis", lookback=96, horizon=8, channels=862, attention="toa-softmax").train()
    model(torch.randn(1, 96, 862)).square().mean().backward()
    assert sum(parameter.numel() for parameter in model.parameters()) < 2 * 2 * 4 * 862**2 / 20


def test_channel_dropout_lets_some_channels_of_a_window_receive_nothing():
    model: Any = build("toa-softmax", channel_dropout=0.5, dropout=0.0).train()
    block = model.backbone.channel_blocks[0]
    x = torch.randn(64, 4, 3, 8)
    out = block.attention_dropout(x)
    kept = out != 0.0
    # per window and channel: all positions and features, or none
    assert torch.equal(kept.all(-1).all(-1), kept.any(-1).any(-1))
    assert_near(out[kept], 2.0 * x[kept], 1e-3)
    assert 64 < kept[:, :, 0, 0].sum() < 192
    assert torch.equal(block.eval().attention_dropout(x), x)


def test_wrong_settings_raise():
    with pytest.raises(ValueError, match=message("unknown time_attention 'relu6'; known: none, same, softmax")):
        build(time_attention="relu6")
    with pytest.raises(ValueError, match=message("time_attention must be 'same' if mix_channels is False, got 'softm")):
        build(mix_channels=False)
    with pytest.raises(ValueError, match=message("channel_dropout must lie in [0, 1), got 1.0")):
        build(channel_dropout=1.0)
    with pytest.raises(ValueError, match=message("unknown shortcut_start 'median'; known: mean, last, ridge.")):
        build(shortcut_start="median")
    with pytest.raises(ValueError, match=message("lookback must be at least patch_len=33, got 32")):
        build(patch_len=33)
    with pytest.raises(ValueError, match=message("shortcut must be False in reconstruction, got True; it would copy")):
        build_reconstructor("two-axis", lookback=32, channels=2, attention="softmax", settings={"shortcut": True})


@pytest.mark.parametrize("name", ATTENTIONS)
def test_values_at_several_positions_are_mixed_as_those_of_each_position_alone(name):
    layer = AttentionSpec(name=name).build(8, 2, 4).double().eval()
    scatter_parameters(layer, 0.3)
    tokens = torch.randn(3, 4, 8, dtype=torch.float64)
    values = torch.randn(3, 4, 5, 8, dtype=torch.float64)
    got = layer.attend(tokens, tokens, values, need_weights=True)
    alone = [layer.attend(tokens, tokens, part, need_weights=True) for part in values.unbind(2)]
    assert_near(got.output, torch.stack([one.output for one in alone], 2))
    assert got.mixing is not None
    assert alone[0].mixing is not None
    assert_near(got.mixing, alone[0].mixing)


def test_gradients_of_values_at_several_positions_are_those_of_each_position_alone():
    # training on a CPU lays queries and keys of this attention out differently
    layer: Any = AttentionSpec(name="toa-gated", sor=False).build(8, 2, 4).double().train()
    tokens = torch.randn(3, 4, 8, dtype=torch.float64, requires_grad=True)
    values = torch.randn(3, 4, 5, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 4, 5, 8, dtype=torch.float64)

    def gradients(output: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad((output * weight).sum(), (tokens, values))

    alone = torch.stack([layer.attend(tokens, tokens, part).output for part in values.unbind(2)], 2)
    for got, exact in zip(gradients(layer.attend(tokens, tokens, values).output), gradients(alone), strict=True):
        assert_near(got, exact)
