"""Forecasts of many series by the pretrained model: blocks, units, options of inference."""

import numpy as np
import pytest
import torch

from tests.support import message
from tests.training.pretraining_cases import tiny_model
from toa.estimators.pretrained_forecasts import (
    InferenceOptions,
    forecast_in_passes,
    forecast_quantiles,
    interpolate_levels,
    resample,
)
from toa.models.pretrained import PretrainedForecaster


@pytest.fixture(scope="module")
def model() -> PretrainedForecaster:
    return tiny_model().eval()


def walks(count: int = 5, length: int = 50) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=length - 7 * index).cumsum() + 50.0 for index in range(count)]


def test_forecasts_do_not_depend_on_the_batch(model) -> None:
    series = walks()
    together = forecast_quantiles(model, series, 6)
    assert together.shape == (5, 6, 3)
    np.testing.assert_allclose(forecast_quantiles(model, series, 6, batch=2), together, rtol=1e-4)
    np.testing.assert_allclose(forecast_quantiles(model, series[3:4], 6), together[3:4], rtol=1e-4)
    assert forecast_quantiles(model, [], 6).shape == (0, 6, 3)


def test_forecasts_are_those_of_the_model_in_units_of_the_series(model) -> None:
    series = walks(1)
    with torch.inference_mode():
        expected = model(torch.from_numpy(series[0][None] - 50.0).float(), 6).double().numpy() + 50.0
    np.testing.assert_allclose(forecast_quantiles(model, series, 6), expected, rtol=1e-4)
    # float32 would lose such differences beside such a level
    large = [series[0] + 1e12]
    np.testing.assert_allclose(forecast_quantiles(model, large, 6) - 1e12, expected, rtol=1e-2)


def test_flipped_average_changes_sign_with_the_series(model) -> None:
    series = walks(3)
    options = InferenceOptions(flip=True)
    forecast = forecast_quantiles(model, series, 6, options=options)
    flipped = forecast_quantiles(model, [-values for values in series], 6, options=options)
    np.testing.assert_allclose(flipped, -forecast[..., ::-1], rtol=1e-4)
    assert not np.allclose(forecast_quantiles(model, series, 6), forecast)


def test_contexts_are_averaged(model) -> None:
    series = walks(2)
    both = forecast_quantiles(model, series, 6, options=InferenceOptions(contexts=(8, 32)))
    short = forecast_quantiles(model, [values[-8:] for values in series], 6)
    np.testing.assert_allclose(both, (short + forecast_quantiles(model, series, 6)) / 2, rtol=1e-4)


@pytest.mark.parametrize("season_steps", [8, 3], ids=["more-steps", "fewer-steps"])
def test_resampled_series_have_forecasts_of_the_original_steps(model, season_steps) -> None:
    series = [np.linspace(0.0, 10.0, 40)]
    options = InferenceOptions(season_steps=season_steps)
    forecast = forecast_quantiles(model, series, 4, season=4, options=options)
    assert forecast.shape == (1, 4, 3)
    assert np.isfinite(forecast).all()
    # without a season, or with that number of steps, nothing is resampled
    plain = forecast_quantiles(model, series, 4)
    np.testing.assert_array_equal(forecast_quantiles(model, series, 4, season=1, options=options), plain)
    same = InferenceOptions(season_steps=4)
    np.testing.assert_array_equal(forecast_quantiles(model, series, 4, season=4, options=same), plain)


def test_a_horizon_that_resampling_would_make_too_long_is_not_resampled(model) -> None:
    series = walks(1)
    options = InferenceOptions(season_steps=12)
    resampled = forecast_quantiles(model, series, 2, season=4, options=options)
    assert not np.allclose(resampled, forecast_quantiles(model, series, 2))
    long = forecast_quantiles(model, series, 3, season=4, options=options)
    np.testing.assert_array_equal(long, forecast_quantiles(model, series, 3))


def test_short_series_without_a_season_are_stretched(model) -> None:
    context, longest = model.config.context, model.config.horizon
    # three times as many steps fit the context, twice as many, and no more
    lengths = [context // 3, context // 2, context - 1, context // 3]
    series = [np.random.default_rng(place).normal(size=rows).cumsum() for place, rows in enumerate(lengths)]
    options = InferenceOptions(stretch=3)
    forecast = forecast_quantiles(model, series, 2, options=options)
    for place, times in enumerate((3, 2, 1, 3)):
        steps = forecast_quantiles(model, [resample(series[place], float(times))], 2 * times)
        np.testing.assert_allclose(forecast[place], steps[0, times - 1 :: times], rtol=1e-4)
    # two times as many steps as the horizon of the model would be too many
    np.testing.assert_array_equal(
        forecast_quantiles(model, series, longest, options=options), forecast_quantiles(model, series, longest)
    )
    plain = forecast_quantiles(model, series, 2, season=4)
    np.testing.assert_array_equal(forecast_quantiles(model, series, 2, season=4, options=options), plain)


def test_options_that_were_stored_before_there_was_a_stretch_have_none() -> None:
    stored = {"flip": True, "contexts": [], "season_steps": 24}
    assert InferenceOptions.from_json(stored, "file") == InferenceOptions(flip=True, season_steps=24)
    both = InferenceOptions(flip=True, stretch=5)
    assert InferenceOptions.from_json(both.to_json(), "file") == both


def test_resampling_keeps_lines_means_and_gaps() -> None:
    line = np.arange(1.0, 9.0)
    np.testing.assert_allclose(resample(line, 2.0)[-5:], [6.0, 6.5, 7.0, 7.5, 8.0])
    np.testing.assert_allclose(resample(line, 0.5), [1.5, 3.5, 5.5, 7.5])
    np.testing.assert_allclose(resample(line[:7], 0.5), [2.5, 4.5, 6.5])
    gap = np.array([1.0, 2.0, np.nan, np.nan, 5.0, 6.0])
    np.testing.assert_array_equal(np.isnan(resample(gap, 0.5)), [False, True, False])
    assert np.isnan(resample(gap, 3.0)).any()
    assert np.isnan(resample(np.full(4, np.nan), 2.0)).all()


def test_levels_between_those_of_the_model_are_interpolated() -> None:
    quantiles = np.array([[[0.0, 1.0, 5.0]]])
    levels = (0.1, 0.5, 0.9)
    np.testing.assert_allclose(interpolate_levels(quantiles, levels, (0.1, 0.3, 0.5, 0.9)), [[[0.0, 0.5, 1.0, 5.0]]])
    with pytest.raises(ValueError, match=message("levels must lie between 0.1 and 0.9", "0.95", "at most 0.8")):
        interpolate_levels(quantiles, levels, (0.95,))


def test_horizons_beyond_the_model_are_forecast_in_passes(model) -> None:
    series = walks(3)
    long = forecast_quantiles(model, series, 20)
    assert long.shape == (3, 20, 3)
    np.testing.assert_allclose(long[:, :8], forecast_quantiles(model, series, 8), rtol=1e-4)
    np.testing.assert_allclose(long[:, :15], forecast_quantiles(model, series, 15), rtol=1e-4)
    assert (np.diff(long, axis=2) >= 0).all()


def test_later_passes_follow_every_quantile_of_the_earlier_ones(model) -> None:
    context = torch.from_numpy(walks(1)[0][None] - 50.0).float()
    with torch.inference_mode():
        first = model(context, 8)
        paths = [model(torch.cat((context, first[:, :, level]), 1), 4) for level in range(3)]
        together = torch.cat(paths, 2).sort(2).values  # 9 values: the levels 0.1, 0.5, 0.9 lie at 0.8, 4 and 7.2
        got = forecast_in_passes(model, context, 12)[:, 8:]
    expected = [0.2 * together[..., 0] + 0.8 * together[..., 1], together[..., 4]]
    expected.append(0.8 * together[..., 7] + 0.2 * together[..., 8])
    torch.testing.assert_close(got, torch.stack(expected, 2))


def test_medians_alone_follow_the_path_of_medians(model) -> None:
    context = torch.from_numpy(walks(1)[0][None] - 50.0).float()
    with torch.inference_mode():
        first = model(context, 8)
        second = model(torch.cat((context, first[:, :, 1]), 1), 4)
        got = forecast_in_passes(model, context, 12, median_alone=True)
    torch.testing.assert_close(got, torch.cat((first, second), 1))
    short = forecast_quantiles(model, walks(), 8, median_alone=True)
    np.testing.assert_array_equal(short, forecast_quantiles(model, walks(), 8))


@pytest.mark.parametrize("horizon", [0, 33, 2.5])
def test_wrong_horizons_raise(model, horizon) -> None:
    with pytest.raises(ValueError, match=message("horizon must be", f"got {horizon}")):
        forecast_quantiles(model, walks(1), horizon)


def test_options_that_were_chosen_with_the_weights_are_the_default() -> None:
    model = tiny_model().eval()
    flipped = InferenceOptions(flip=True, contexts=(8, 32))
    model.facts["inference"] = flipped.to_json()
    series = walks(2)
    expected = forecast_quantiles(model, series, 6, options=flipped)
    np.testing.assert_array_equal(forecast_quantiles(model, series, 6), expected)
    assert not np.allclose(forecast_quantiles(model, series, 6, options=InferenceOptions()), expected)


@pytest.mark.parametrize(
    "stored",
    [
        5,
        {"flip": True},
        {"flip": 1, "contexts": [], "season_steps": None},
        {"flip": False, "contexts": 8, "season_steps": None},
        {"flip": False, "contexts": ["8"], "season_steps": None},
        {"flip": False, "contexts": [], "season_steps": 1e9},
        {"flip": False, "contexts": [], "season_steps": None, "stretch": 0},
        {"flip": False, "contexts": [], "season_steps": None, "stretch": "5"},
        {"flip": False, "contexts": [], "season_steps": None, "other": 1},
    ],
)
def test_wrong_stored_options_raise(stored) -> None:
    model = tiny_model().eval()
    model.facts["inference"] = stored
    with pytest.raises(ValueError, match="must"):
        forecast_quantiles(model, walks(1), 6)


def test_wrong_options_raise() -> None:
    with pytest.raises(ValueError, match=message("season_steps must be an integer of at least 2, got 1")):
        InferenceOptions(season_steps=1)
    with pytest.raises(ValueError, match=message("contexts must be an integer of at least 1, got 0")):
        InferenceOptions(contexts=(0,))
