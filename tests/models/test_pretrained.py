"""The pretrained forecaster: lengths, missing values, scaling, files."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import assert_near, message, scatter_parameters
from toa._files import seal
from toa.models import pretrained
from toa.models.pretrained import (
    SIZES,
    PretrainedConfig,
    PretrainedForecaster,
    pinball_loss,
    scale_context,
    scale_target,
    step_weights,
)

MIXERS: list[dict[str, Any]] = [
    {"attention": "softmax"},
    {"attention": "toa-softmax"},
    {"attention": "toa-softmax", "structure": "toeplitz"},
    {"attention": "toa-softmax", "structure": "dplr", "rank": 2},
    {"attention": "toa-relu", "score_norm": "mean"},
    {"attention": "toa-gated", "score_norm": "rms", "gate_norm": "rms", "operator_std": 0.1},
]
NAN = float("nan")


def tiny_config(**options: Any) -> PretrainedConfig:
    sizes = {"context": 32, "horizon": 16, "patch_len": 4, "embed_dim": 8, "num_heads": 2, "num_layers": 2, "ff_dim": 8}
    return PretrainedConfig(**sizes | {"quantiles": (0.1, 0.5, 0.9)} | options)


def tiny_model(**options: Any) -> PretrainedForecaster:
    torch.manual_seed(0)
    model = PretrainedForecaster(tiny_config(**options))
    scatter_parameters(model, std=0.3)
    return model.eval()


def walk(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, length, generator=torch.Generator().manual_seed(seed)).cumsum(1)


@pytest.mark.parametrize("options", MIXERS, ids=lambda options: "-".join(map(str, options.values())))
def test_a_short_context_equals_the_same_context_padded_on_the_left(options) -> None:
    model = tiny_model(**options).double()
    context = walk(3, 13).double()
    short = model(context, horizon=6)
    padded = model(torch.cat((torch.full((3, 19), NAN), context), 1), horizon=6)
    assert_near(padded, short)
    # the padding has no part in it: other rows of the operators would change the forecast
    cut = model(context[:, 4:], horizon=6)
    assert not torch.allclose(cut, short)


@pytest.mark.parametrize("options", MIXERS, ids=lambda options: "-".join(map(str, options.values())))
def test_forecast_does_not_depend_on_the_number_of_blocks(options) -> None:
    model = tiny_model(**options).double()
    context = walk(2, 32).double()
    assert_near(model(context)[:, :3], model(context, horizon=3))
    assert model(context).shape == (2, 16, 3)


def test_operators_and_positions_change_the_forecast() -> None:
    context = walk(2, 32)
    forecasts = [tiny_model(**options)(context) for options in MIXERS[:4]]
    for other in forecasts[1:]:
        assert not torch.allclose(other, forecasts[0])
    turned = tiny_model(attention="softmax", rotary_base=3)(context)
    assert not torch.allclose(turned, forecasts[0])


def test_context_beyond_the_longest_is_not_read() -> None:
    model = tiny_model()
    context = walk(2, 50)
    assert_near(model(context), model(context[:, -32:]))


def test_missing_values_inside_a_context_are_not_read() -> None:
    model = tiny_model()
    context = walk(1, 32)
    context[0, 5:14] = NAN
    infinite = context.clone()
    infinite[0, 5:14] = float("inf")
    assert_near(model(infinite), model(context))
    assert model(context).isfinite().all()


def test_forecasts_follow_shifts_and_positive_factors_of_the_series() -> None:
    model = tiny_model().double()
    context = walk(2, 32).double()
    assert_near(model(1000.0 * context + 30.0), 1000.0 * model(context) + 30.0, 1e-9)


@pytest.mark.parametrize(
    ("values", "expected"),
    [([7.0] * 20, 7.0), ([0.0] * 9, 0.0), ([1e8] * 5, 1e8), ([-2.5], -2.5)],
    ids=["constant", "zeros", "large", "one-value"],
)
def test_constant_series_are_forecast_by_their_value(values, expected) -> None:
    with torch.no_grad():
        forecast = tiny_model()(torch.tensor([values]))
    # the spread of a constant is a millionth of it, that of zeros is 1e-30
    assert float((forecast - expected).abs().max()) <= abs(expected) * 0.1 + 1e-20
    assert forecast.isfinite().all()


def test_a_context_without_values_gives_finite_quantiles_in_order() -> None:
    forecast = tiny_model()(torch.full((2, 10), NAN))
    assert forecast.isfinite().all()
    assert (forecast.diff(dim=-1) >= 0).all()


def test_scaling_uses_median_and_mean_distance_of_observed_values() -> None:
    context = torch.tensor([[NAN, 1.0, 2.0, 4.0, 9.0], [NAN, NAN, 5.0, 5.0, 8.0]])
    scaled = scale_context(context)
    # medians 3 and 5; mean distances (2 + 1 + 1 + 6) / 4 and (0 + 0 + 3) / 3
    assert scaled.median.flatten().tolist() == [3.0, 5.0]
    assert_near(scaled.spread.flatten(), torch.tensor([2.5, 1.0]), 1e-6)
    assert_near(scaled.values[0], torch.asinh(torch.tensor([0.0, -0.8, -0.4, 0.4, 2.4])), 1e-6)
    target = torch.tensor([[3.0, NAN], [6.0, 4.0]])
    got = scale_target(target, scaled)
    assert got[0].isnan().tolist() == [False, True]
    assert_near(got[1], torch.asinh(torch.tensor([1.0, -1.0])), 1e-6)


def test_pinball_loss_is_the_formula_over_observed_values() -> None:
    quantiles = torch.tensor([[[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]])
    levels = torch.tensor([0.1, 0.5, 0.9])
    # of 2.5: errors 1.5, 0.5 and -0.5, times 0.1, 0.5 and 0.1, and the mean times two
    expected = 2.0 * (0.15 + 0.25 + 0.05) / 3
    assert_near(pinball_loss(quantiles, torch.tensor([[2.5, NAN]]), levels), torch.tensor(expected), 1e-6)
    weighted = pinball_loss(quantiles, torch.tensor([[2.5, 1.0]]), levels, torch.tensor([3.0, 1.0]))
    assert_near(weighted, torch.tensor((3 * expected + 2.0 * (0.1 + 0.5 + 0.9) / 3) / 4), 1e-6)


def test_later_blocks_count_less_in_training() -> None:
    assert_near(step_weights(4, 2, 0.5), torch.tensor([1.0, 1.0, 2**-0.5, 2**-0.5, 3**-0.5, 3**-0.5, 0.5, 0.5]), 1e-6)
    assert step_weights(2, 1, 0.0).tolist() == [1.0, 1.0]


def test_sizes_have_about_one_and_four_million_weights() -> None:
    models = {name: PretrainedForecaster(PretrainedConfig(**sizes)) for name, sizes in SIZES.items()}
    counts = {name: sum(weight.numel() for weight in model.parameters()) for name, model in models.items()}
    assert 0.8e6 < counts["small"] < 1.3e6
    assert 4.0e6 < counts["large"] < 4.7e6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_saved_model_gives_the_same_forecasts(tmp_path, dtype) -> None:
    model = tiny_model(attention="toa-gated", structure="toeplitz")
    model.facts = {"steps": 3}
    if dtype == torch.bfloat16:
        model = model.bfloat16().float()
    model.save_pretrained(tmp_path / "model", dtype=dtype)
    loaded = PretrainedForecaster.from_pretrained(tmp_path / "model")
    assert loaded.config == model.config
    assert loaded.facts == {"steps": 3}
    context = walk(2, 20)
    assert torch.equal(loaded(context), model(context))
    assert not loaded.training


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("saved") / "model"
    tiny_model().save_pretrained(folder)
    return folder


def test_loading_leaves_the_global_random_state(saved) -> None:
    state = torch.random.get_rng_state()
    PretrainedForecaster.from_pretrained(saved)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_damaged_weights_are_noticed(saved, tmp_path) -> None:
    folder = shutil.copytree(saved, tmp_path / "model")
    file = folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=message("must have the content that its checksum states")):
        PretrainedForecaster.from_pretrained(folder)


def test_weights_that_are_not_finite_are_refused(tmp_path) -> None:
    model = tiny_model()
    with torch.no_grad():
        model.future[0, 0] = torch.inf
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match=message("model must hold finite numbers", "in 'future'")):
        PretrainedForecaster.from_pretrained(tmp_path / "model")


def test_forged_configs_are_refused_with_the_name_of_the_folder(tmp_path) -> None:
    for number, (name, value) in enumerate((("quantiles", 1), ("attention", 1), ("embed_dim", "8"), ("context", {}))):
        model = tiny_model()
        folder = tmp_path / f"model-{number}"
        model.save_pretrained(folder)
        content = json.loads((folder / "config.json").read_text())
        content["config"][name] = value
        (folder / "config.json").write_text(json.dumps(seal(content, model.state_dict())))
        with pytest.raises(ValueError, match=rf"model-{number} must hold a complete pretrained forecaster"):
            PretrainedForecaster.from_pretrained(folder)


def edited(config: dict[str, Any], name: str) -> dict[str, Any]:
    without_checksum = {key: value for key, value in config.items() if key != "checksum"}
    changes: dict[str, dict[str, Any]] = {
        "format": config | {"format": 99},
        "checksum": without_checksum,
        "horizon": config | {"config": config["config"] | {"horizon": 20}},
    }
    return changes[name]


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ("format", ("must have format 1", "install the version of toa that wrote it")),
        ("checksum", ("must have a checksum, got none",)),
        ("horizon", ("must have the content that its checksum states",)),
    ],
)
def test_edited_config_is_noticed(saved, tmp_path, change, parts) -> None:
    folder = shutil.copytree(saved, tmp_path / "model")
    file = folder / "config.json"
    file.write_text(json.dumps(edited(json.loads(file.read_text()), change)))
    with pytest.raises(ValueError, match=message(*parts)):
        PretrainedForecaster.from_pretrained(folder)


def test_unknown_name_lists_shipped_weights(saved, tmp_path, monkeypatch) -> None:
    shutil.copytree(saved, tmp_path / "tiny")
    monkeypatch.setattr(pretrained, "SHIPPED", tmp_path)
    assert pretrained.shipped_names() == ("tiny",)
    assert PretrainedForecaster.from_pretrained("tiny").config == tiny_config()
    with pytest.raises(ValueError, match=message("model must be a folder", "tiny", "got 'tinny'")):
        PretrainedForecaster.from_pretrained("tinny")


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"context": 30}, ("context must be a multiple of patch_len=4, got 30",)),
        ({"horizon": 6}, ("horizon must be a multiple of patch_len=4, got 6",)),
        ({"quantiles": (0.1, 0.9)}, ("quantiles must increase within (0, 1) and contain 0.5",)),
        ({"attention": "cog"}, ("rotary_base is not an option of attention 'cog'",)),
        ({"structure": "round"}, ("unknown structure 'round'",)),
        ({"embed_dim": 9}, ("embed_dim must be a multiple of num_heads=2, got 9",)),
    ],
)
def test_wrong_configs_raise(options, parts) -> None:
    with pytest.raises(ValueError, match=message(*parts)):
        tiny_config(**options)


@pytest.mark.parametrize(
    ("shape", "horizon", "parts"),
    [
        ((1, 8), 17, ("horizon must be at most", "16", "got 17")),
        ((1, 8), 0, ("horizon must be at least 1",)),
        ((8,), 1, ("context must have 2 axes (B, L)",)),
        ((1, 0), 1, ("length of the context must be at least 1",)),
    ],
)
def test_wrong_calls_raise(shape, horizon, parts) -> None:
    with pytest.raises(ValueError, match=message(*parts)):
        tiny_model()(torch.zeros(shape), horizon=horizon)
