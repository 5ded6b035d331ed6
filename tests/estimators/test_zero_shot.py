"""Zero-shot forecasts of tables, the pretrained model as a member of a forecaster, and fine-tuning."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import toa
from tests.support import message
from tests.training.pretraining_cases import tiny_model
from toa.estimators import fine_tune, zero_shot
from toa.estimators.methods import Histories
from toa.estimators.pretrained_forecasts import InferenceOptions, forecast_quantiles
from toa.estimators.pretrained_method import PRETRAINED, FittedPretrained, Pretrained, PretrainedMethod
from toa.estimators.zero_shot_tables import load_pretrained, on_device
from toa.models import pretrained
from toa.models.pretrained import DEFAULT_NAME, PretrainedForecaster


@pytest.fixture(scope="module")
def model() -> PretrainedForecaster:
    return tiny_model().eval()


@pytest.fixture
def shipped(model, tmp_path, monkeypatch) -> Path:
    """A folder of shipped weights with the default model."""
    model.save_pretrained(tmp_path / "shipped" / DEFAULT_NAME)
    monkeypatch.setattr(pretrained, "SHIPPED", tmp_path / "shipped")
    return tmp_path / "shipped"


@pytest.fixture
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    hours = pd.date_range("2024-03-01", periods=60, freq="h")
    season = np.sin(np.arange(60) * 2 * np.pi / 12)
    return pd.DataFrame({"date": hours, "load": 50 + 10 * season + rng.normal(size=60), "heat": rng.normal(size=60)})


def test_a_forecast_does_not_depend_on_the_series_beside_it_nor_change_the_model(model) -> None:
    series = [np.cumsum(np.random.default_rng(seed).normal(size=70)) for seed in range(9)]
    together = zero_shot(series, 5, interval=None, model=model)
    alone = [zero_shot([values], 5, interval=None, model=model)[0] for values in series]
    # sums of float32 differ by 1e-7 with the number of series
    np.testing.assert_allclose(together, alone, rtol=1e-12)
    assert model.future.dtype == torch.float32


def test_frame_has_times_medians_and_intervals_of_each_column(model, frame) -> None:
    got = zero_shot(frame, 5, interval=0.6, quantiles=[0.1], model=model)
    assert list(got.columns) == [
        "date",
        *(f"load{end}" for end in ("", "_q0.1", "_lower", "_upper")),
        *(f"heat{end}" for end in ("", "_q0.1", "_lower", "_upper")),
    ]
    assert got["date"].tolist() == list(pd.date_range("2024-03-03 12:00", periods=5, freq="h"))
    expected = forecast_quantiles(model, [frame["load"].to_numpy()], 5)[0]
    np.testing.assert_allclose(got["load"], expected[:, 1], rtol=1e-4)
    np.testing.assert_allclose(got["load_q0.1"], expected[:, 0], rtol=1e-4)
    # 0.2 lies a quarter of the way from 0.1 to 0.5
    np.testing.assert_allclose(got["load_lower"], 0.75 * expected[:, 0] + 0.25 * expected[:, 1], rtol=1e-4)
    assert (got["heat_lower"] <= got["heat"]).all()
    assert (got["heat"] <= got["heat_upper"]).all()


def test_each_series_of_a_frame_with_ids_is_forecast_by_itself(model, frame) -> None:
    shops = pd.concat([frame.assign(shop="a"), frame[20:].assign(shop="b", load=lambda t: t["load"] * 3)])
    got = zero_shot(shops, 3, id="shop", time="date", values=["load"], interval=None, model=model)
    assert got["shop"].tolist() == ["a"] * 3 + ["b"] * 3
    alone = zero_shot(frame[20:].assign(load=lambda t: t["load"] * 3)[["date", "load"]], 3, interval=None, model=model)
    np.testing.assert_allclose(got["load"][3:], alone["load"], rtol=1e-4)


def test_missing_rows_and_values_are_left_out_not_filled(model, frame) -> None:
    holes = frame[["date", "load"]].copy()
    holes.loc[30:33, "load"] = np.nan
    got = zero_shot(holes.drop(index=[40, 41]), 3, interval=None, model=model)
    values = frame["load"].to_numpy().copy()
    values[[30, 31, 32, 33, 40, 41]] = np.nan
    np.testing.assert_allclose(got["load"], forecast_quantiles(model, [values], 3)[0, :, 1], rtol=1e-4)


def test_arrays_give_arrays(model, frame) -> None:
    values = frame[["load", "heat"]].to_numpy()
    assert zero_shot(values, 4, interval=None, model=model).shape == (4, 2)
    parts = zero_shot(values, 4, quantiles=[0.3, 0.7], model=model)
    assert parts["forecast"].shape == parts["lower"].shape == (4, 2)
    assert parts["quantiles"].shape == (4, 2, 2)
    assert [each.shape for each in zero_shot([values[:, 0], values[:9, 0]], 2, interval=None, model=model)] == [
        (2, 1),
        (2, 1),
    ]


def test_forecasts_of_counts_are_not_negative(model) -> None:
    counts = np.array([0.0, 1.0] * 20)
    lower = zero_shot(counts, 8, model=model)["lower"]
    assert lower.min() >= 0.0
    assert zero_shot(counts - 0.5, 8, model=model)["lower"].min() < -0.5


@pytest.mark.parametrize("values", [[7.0] * 20, [3.0], [1.0, 2.0], [0.0] * 5], ids=["constant", "one", "two", "zeros"])
def test_short_and_constant_series_have_a_forecast(model, values) -> None:
    forecast = zero_shot(np.array(values), 3, model=model)
    assert np.isfinite(forecast["forecast"]).all()
    if len(set(values)) == 1:
        np.testing.assert_allclose(forecast["forecast"], values[-1], atol=1e-3)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (
            {"horizon": 33},
            ("horizon must be at most 4 times that of the pretrained model=32", "got 33", "toa.Forecaster"),
        ),
        ({"horizon": 0}, ("horizon must be an integer of at least 1, got 0",)),
        ({"interval": 0.9}, ("interval must be at most 0.8, that of the pretrained model", "use toa.Forecaster")),
        ({"interval": 80}, ("interval must lie in (0, 1), got 80",)),
        ({"quantiles": [0.99]}, ("quantiles must lie between 0.1 and 0.9", "0.99", "use toa.Forecaster")),
        ({"model": "lagre"}, ("model must be a folder", "got 'lagre'")),
        ({"model": None}, ("model must be given, because no weights are part of this version", "use toa.Forecaster")),
        ({"data": np.full(9, np.nan)}, ("data must have values in every column, got only NaN",)),
        ({"values": ["lod"]}, ("lod",)),
    ],
)
def test_bad_input_gets_one_clear_line(model, frame, options, parts, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(pretrained, "SHIPPED", tmp_path)
    arguments: dict[str, Any] = {"data": frame, "horizon": 3, "model": model} | options
    with pytest.raises(ValueError, match=message(*parts)) as error:
        zero_shot(**arguments)
    assert "\n" not in str(error.value)


def test_shipped_weights_are_the_default(shipped, model, frame) -> None:
    got = toa.zero_shot(frame, horizon=4)
    pd.testing.assert_frame_equal(got, zero_shot(frame, 4, model=model))
    assert load_pretrained() is load_pretrained(DEFAULT_NAME)


def test_options_of_inference_use_the_season_of_the_times(model, frame) -> None:
    plain = zero_shot(frame, 3, model=model)
    # hours have a season of 24
    same = zero_shot(frame, 3, model=model, options=InferenceOptions(season_steps=24))
    pd.testing.assert_frame_equal(same, plain)
    other = zero_shot(frame, 3, model=model, options=InferenceOptions(season_steps=12))
    assert not np.allclose(other["load"], plain["load"])


def test_a_season_may_be_given_or_is_found(model, frame) -> None:
    values = frame["load"].to_numpy()
    options = InferenceOptions(season_steps=6)
    expected = forecast_quantiles(model, [values], 3, season=12, options=options)[0, :, 1]
    given = zero_shot(values, 3, season=12, interval=None, model=model, options=options)
    np.testing.assert_allclose(given[:, 0], expected, rtol=1e-4)
    # the autocorrelation shows it
    np.testing.assert_allclose(zero_shot(values, 3, interval=None, model=model, options=options), given)
    other = zero_shot(values, 3, season=24, interval=None, model=model, options=options)
    assert not np.allclose(other, given)


def test_codes_for_missing_values_are_left_out(model, frame) -> None:
    values = frame["load"].to_numpy().copy()
    values[40:43] = -9999.0
    got = zero_shot(values, 3, interval=None, model=model, missing_values=-9999)
    values[40:43] = np.nan
    np.testing.assert_allclose(got[:, 0], forecast_quantiles(model, [values], 3)[0, :, 1], rtol=1e-4)


def test_the_model_is_a_candidate_only_with_shipped_weights(shipped, model) -> None:
    settings: Any = None
    assert list(Pretrained().candidates(settings, 12)) == [PRETRAINED]
    for path in (shipped / DEFAULT_NAME).iterdir():
        path.unlink()
    assert Pretrained().candidates(settings, 12) == {}


def test_a_forecaster_weighs_and_saves_the_model(shipped, model, frame, tmp_path) -> None:
    settings: dict[str, Any] = {"effort": "least", "device": "cpu", "season": 12}
    forecaster = toa.Forecaster(4, **settings).fit(frame)
    assert PRETRAINED in forecaster.choice_.ensemble.errors
    fitted = FittedPretrained(on_device(model, torch.device("cpu")), 12, 4)
    histories = Histories(values=[frame["load"].to_numpy()])
    expected = forecast_quantiles(model, histories.values, 4)[..., 1]
    np.testing.assert_allclose(fitted.forecast(histories), expected, rtol=1e-5)
    family = Pretrained()
    tensors, facts = family.save({PRETRAINED: fitted})
    loaded = family.load(tensors, facts, 12, 4)[PRETRAINED]
    np.testing.assert_array_equal(loaded.forecast(histories), fitted.forecast(histories))
    assert family.save({}) == ({}, None)
    too_long: Any = SimpleNamespace(season=12, horizon=33)
    assert PretrainedMethod().fit(too_long) is None


def test_saved_weights_in_16_bits_lose_nothing() -> None:
    halves = tiny_model().bfloat16().float().eval()
    family = Pretrained()
    tensors, facts = family.save({PRETRAINED: FittedPretrained(halves, 1, 4)})
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    loaded = family.load(tensors, facts, 1, 4)[PRETRAINED]
    assert torch.equal(loaded.model.head.weight, halves.head.weight)


def test_fine_tuning_lowers_the_error_on_held_out_rows(model) -> None:
    series = [40 + 10 * np.sin(np.arange(90) * 2 * np.pi / 6 + phase) for phase in (0.0, 1.0, 2.5)]
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    tuned = fine_tune(series, 6, model=model, steps=40, learning_rate=1e-2, device="cpu")
    losses = tuned.facts["fine_tuning"]
    assert losses["after"] < 0.8 * losses["before"]
    # the model itself stays
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    again = fine_tune(series, 6, model=model, steps=40, learning_rate=1e-2, device="cpu")
    assert torch.equal(again.head.weight, tuned.head.weight)
    assert np.isfinite(zero_shot(series[0], 6, model=tuned)["forecast"]).all()


def test_too_few_rows_for_fine_tuning_raise(model) -> None:
    with pytest.raises(ValueError, match=message("more than 2 horizon = 12 rows", "at most 12", "use zero_shot")):
        fine_tune(np.arange(12.0), 6, model=model)
    with pytest.raises(ValueError, match=message("horizon must be at most that of the pretrained model=8, got 9")):
        fine_tune(np.arange(99.0), 9, model=model)
