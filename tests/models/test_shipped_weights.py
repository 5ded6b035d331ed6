"""The weights that are part of the package: they load, state how they were made, and forecast simple series well."""

import numpy as np
import pandas as pd
import pytest

import toa
from toa.models.pretrained import DEFAULT_NAME, SHIPPED, PretrainedForecaster, shipped_names

# bytes of all weights, so that the wheel stays below 10 MB
MOST_BYTES = 8_000_000


@pytest.fixture(scope="module")
def model() -> PretrainedForecaster:
    return PretrainedForecaster.from_pretrained(DEFAULT_NAME)


def test_the_default_model_is_part_of_the_package_and_small():
    assert DEFAULT_NAME in shipped_names()
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*") if path.is_file()) < MOST_BYTES


def test_its_card_states_its_size_and_that_it_never_saw_a_real_series(model):
    card = (SHIPPED / DEFAULT_NAME / "README.md").read_text(encoding="utf-8")
    assert f"{sum(parameter.numel() for parameter in model.parameters()):,} weights" in card
    assert "**The weights never saw a real series.**" in card
    assert model.facts["synthetic"]["generator"] == "toa.data.synthetic"


@pytest.mark.parametrize(("freq", "season"), [("h", 24), ("D", 7), ("MS", 12), ("QS", 4)])
def test_a_season_is_continued_better_than_by_the_last_value(freq, season):
    steps = np.arange(season * 20)
    wave = 100 + 10 * np.sin(2 * np.pi * steps / season)
    noisy = wave + np.random.default_rng(0).normal(size=len(wave))
    times = pd.date_range("2015-01-01", periods=len(wave), freq=freq)
    table = pd.DataFrame({"time": times, "load": noisy})
    forecast = toa.zero_shot(table[:-season], season, season=season)
    error = np.abs(forecast["load"] - wave[-season:]).mean()
    # the season has a mean distance of 6.4 from its middle
    assert error < 1.5


def test_intervals_follow_the_noise():
    wave = 10 * np.sin(2 * np.pi * np.arange(480) / 24)
    noise = np.random.default_rng(0).normal(size=480)
    widths = []
    for size in (1.0, 8.0):
        forecast = toa.zero_shot(wave + size * noise, 24, season=24)
        widths.append((forecast["upper"] - forecast["lower"]).mean() / size)
    # the interval of 80 % of normal noise has a width of 2.6
    assert min(widths) > 1.3
    assert max(widths) < 5.2


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e9])
def test_a_constant_series_stays_what_it_is(scale):
    forecast = toa.zero_shot(np.full(200, 3.0 * scale), 24, interval=None)
    np.testing.assert_allclose(forecast, 3.0 * scale, rtol=1e-3)


def test_series_shorter_than_those_of_the_training_are_named():
    text = r"1 of 2 series are shorter than the 32 steps .* \(rows before they are resampled: 5\)"
    with pytest.warns(UserWarning, match=text):
        # twelve rows are resampled to more than 32 steps
        toa.zero_shot([np.arange(5.0), np.arange(12.0)], 3, season=1)


def test_a_short_line_goes_on():
    forecast = toa.zero_shot(np.arange(14.0), 4, season=1, interval=None)
    assert np.abs(forecast[:, 0] - np.arange(14.0, 18.0)).max() < 1.5
