from typing import Any

import pytest
import torch

from tests.support import assert_near, message
from toa.models import BackboneForecaster, ForecastHeadConfig, PatchTST, PatchTSTConfig, build_forecaster
from toa.nn import AttentionSpec

SIZES = {"embed_dim": 8, "num_heads": 2, "num_layers": 1, "ff_dim": 8}


def build(name: str = "patchtst", **settings: Any) -> BackboneForecaster:
    model = build_forecaster(
        name, lookback=32, horizon=5, channels=3, attention="toa-relu", settings={**SIZES, **settings}
    )
    assert isinstance(model, BackboneForecaster)
    return model


@pytest.mark.parametrize("name", ["patchtst", "itransformer"])
def test_forecast_is_denormalised_head_of_tokens_of_the_normalised_series(name):
    model = build(name).double().eval()
    series = torch.randn(2, 32, 3, dtype=torch.float64) * 4.0 + 7.0
    mean = series.mean(1, keepdim=True)
    std = (series.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
    expected = model.head(model.backbone((series - mean) / std)) * std + mean
    assert_near(model(series), expected)


@pytest.mark.parametrize("name", ["patchtst", "itransformer"])
def test_a_shifted_and_stretched_past_has_a_shifted_and_stretched_forecast(name):
    model = build(name).double().eval()
    series = torch.randn(2, 32, 3, dtype=torch.float64) * 100.0
    assert_near(model(3.0 * series + 50.0), 3.0 * model(series) + 50.0, 1e-6)


def test_without_instance_norm_the_series_is_not_changed():
    model = build(instance_norm=False).eval()
    series = torch.randn(2, 32, 3) + 9.0
    assert model.norm is None
    assert torch.equal(model(series), model.head(model.backbone(series)))


def test_a_pooled_head_reads_the_mean_of_the_tokens():
    model = build(pooled=True, instance_norm=False).double().eval()
    series = torch.randn(2, 32, 3, dtype=torch.float64)
    assert model.head.weight.shape == (5, 8)
    mean = model.backbone(series).mean(2)  # (B, C, E)
    assert_near(model(series), (mean @ model.head.weight.T + model.head.bias).mT)


def test_affine_and_individual_parts_have_one_entry_per_channel():
    model = build(affine=True, individual=True)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters() if not name.startswith("backbone")}
    assert shapes == {"norm.weight": (3,), "norm.bias": (3,), "head.weight": (3, 5, 32), "head.bias": (3, 5)}


@pytest.mark.parametrize("part", ["affine", "individual"])
def test_affine_and_individual_parts_raise_for_other_channels(part):
    settings: dict[str, Any] = {part: True}
    model = build(**settings)
    with pytest.raises(
        ValueError,
        match=message("channels=3", "got 4: shape (2, 32, 4)"),
    ):
        model(torch.zeros(2, 32, 4))
    assert build()(torch.zeros(2, 32, 4)).shape == (2, 5, 4)


def test_a_backbone_for_another_number_of_channels_raises():
    with pytest.raises(ValueError, match=message("channels must be 3", "got 4")):
        BackboneForecaster(build("itransformer").backbone, ForecastHeadConfig(horizon=5, channels=4))


def test_inputs_are_checked_before_they_are_normalised():
    model = build()
    with pytest.raises(ValueError, match=message("series must have 3 axes (B, L, C), got 2: shape (32, 3)")):
        model(torch.zeros(32, 3))
    with pytest.raises(
        ValueError,
        match=message("lookback=32 steps, got 31: shape (2, 31, 3); pass its last 32", "with lookback=31."),
    ):
        model(torch.zeros(2, 31, 3))
    with pytest.raises(ValueError, match=message("marks must be None", "got shape (2, 32, 4); leave them out.")):
        model(torch.zeros(2, 32, 3), torch.zeros(2, 32, 4))


def test_bad_settings_raise():
    with pytest.raises(ValueError, match=message("head_dropout must lie in [0, 1), got 1.0")):
        build(head_dropout=1.0)
    with pytest.raises(ValueError, match=message("affine must be False", "instance_norm", "True")):
        build(instance_norm=False, affine=True)
    with pytest.raises(ValueError, match=message("individual must be of type bool, got 1; convert it first.")):
        build(individual=1)


def test_any_backbone_may_be_used():
    backbone = PatchTST(PatchTSTConfig(lookback=32, attention=AttentionSpec(name="softmax"), embed_dim=16))
    model = BackboneForecaster(backbone, ForecastHeadConfig(horizon=7, channels=2))
    assert model(torch.randn(1, 32, 2)).shape == (1, 7, 2)
