"""Intervals follow the rows before a forecast, and are wider where few windows are independent."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toa.data.panel import Panel
from toa.estimators import Forecaster
from toa.estimators.calibrated import Choice
from toa.estimators.choice import Ensemble
from toa.estimators.error_effects import FEATURES, ErrorEffects, measure_phases
from toa.estimators.error_scale import FIXED_KINDS, LEARNED, ErrorScale, measure_rows
from toa.estimators.intervals import independent_windows

OWNERS = np.array([0])


def scale_of(kind: str, series: np.ndarray) -> ErrorScale:
    return ErrorScale.of_fit(kind, np.array([[2.0]]), [series], season=1, horizon=4)


def growing(count: int, rows: int) -> list[np.ndarray]:
    """Series that grow by 1 to 3 % per step, with errors of 5 % of the level."""
    random = np.random.default_rng(3)
    steps = np.arange(rows)
    return [100.0 * np.exp(random.uniform(0.01, 0.03) * steps + random.normal(0.0, 0.05, rows)) for _ in range(count)]


def long_table(series: list[np.ndarray]) -> pd.DataFrame:
    times = pd.date_range("2015-01-01", periods=len(series[0]), freq="MS")
    parts = [pd.DataFrame({"id": index, "time": times, "value": values}) for index, values in enumerate(series)]
    return pd.concat(parts, ignore_index=True)


def test_recent_is_the_mean_step_of_the_last_rows() -> None:
    values = np.concatenate([np.zeros(40), np.arange(16.0) * 3.0])
    assert measure_rows("recent", [values], 1, 4) == pytest.approx([3.0 * 15 / 16])


def test_level_is_the_mean_size_of_the_last_season() -> None:
    assert measure_rows("level", [np.array([9.0, 9.0, -1.0, 3.0])], 2, 4) == pytest.approx([2.0])


def test_a_short_history_has_the_scale_of_its_series() -> None:
    errors = scale_of("recent", np.arange(30.0))
    assert errors.at([np.array([1.0, 2.0, 3.0])], OWNERS) == pytest.approx(2.0)


@given(st.floats(0.01, 100.0))
def test_recent_grows_with_the_root_and_level_with_the_size(factor) -> None:
    series = np.random.default_rng(0).normal(10.0, 1.0, 60)
    recent = scale_of("recent", series).at([factor * series], OWNERS) / scale_of("recent", series).at([series], OWNERS)
    level = scale_of("level", series).at([factor * series], OWNERS) / scale_of("level", series).at([series], OWNERS)
    # measures are bounded at 1/20 and 20 references
    step = measure_rows("recent", [series], 1, 4)[0] / 2.0
    expected = np.sqrt(np.clip(factor * step, 0.05, 20.0) / np.clip(step, 0.05, 20.0))
    assert recent == pytest.approx(expected, rel=1e-9)
    assert level == pytest.approx(np.clip(factor, 0.05, 20.0), rel=1e-9)


def test_the_oldest_kind_has_one_scale_for_all_forecasts() -> None:
    errors = scale_of("series", np.arange(30.0))
    assert errors.at([1e6 * np.arange(30.0)], OWNERS) == pytest.approx(2.0)


@pytest.mark.parametrize("kind", FIXED_KINDS)
def test_new_series_keep_the_scales_of_the_others(kind) -> None:
    errors = scale_of(kind, np.arange(30.0))
    wider = errors.add_series(np.array([[5.0]]), [np.arange(40.0)])
    assert wider.at([np.arange(30.0)], OWNERS) == pytest.approx(errors.at([np.arange(30.0)], OWNERS))
    assert wider.scale.tolist() == [[2.0], [5.0]]


def test_a_choice_of_an_older_file_has_the_oldest_kind() -> None:
    ensemble = Ensemble(season=1, horizon=2, weights={"seasonal naive": 1.0}, errors={})
    errors = ErrorScale(kind="level", scale=np.ones((1, 1)), reference=2.0 * np.ones((1, 1)), season=1, horizon=2)
    choice = Choice(
        ensemble=ensemble, error_scale=errors, width=np.ones((2, 1)), offsets=None, counts=np.zeros(1, dtype=bool)
    )
    tensors, facts = choice.state()
    again = Choice.from_state(tensors, facts)
    assert again.error_scale.kind == "level"
    assert again.error_scale.reference.tolist() == [[2.0]]
    del tensors["reference"], facts["error_scale"]
    assert Choice.from_state(tensors, facts).error_scale.kind == "series"


def test_intervals_of_growing_series_cover_their_share() -> None:
    """With one scale per series they covered 0.6 of the values."""
    series = growing(60, 72)
    model = Forecaster(horizon=12, interval=0.8, season=12, id="id", effort="least")
    found = model.fit(long_table([values[:-12] for values in series])).predict()
    actual = np.concatenate([values[-12:] for values in series])
    inside = (actual >= found["value_lower"].to_numpy()) & (actual <= found["value_upper"].to_numpy())
    assert model.choice_ is not None
    assert model.choice_.error_scale.kind == LEARNED
    # 60 series whose errors hang together: four standard errors of a share of 0.8
    assert 0.7 <= inside.mean() <= 0.92


def test_errors_of_noise_are_independent_and_those_of_a_drift_are_not() -> None:
    random = np.random.default_rng(0)
    noise = random.normal(size=(40, 12, 3))
    drift = np.repeat(random.normal(size=(4, 1, 1)), 10, axis=0) + 0.1 * random.normal(size=(40, 12, 3))
    owners = np.zeros(40, dtype=np.int64)
    assert independent_windows(noise, owners, 2.0) > 30.0
    assert 2.0 <= independent_windows(drift, owners, 2.0) < 8.0
    # windows of different series are no neighbours
    assert independent_windows(drift, np.arange(40), 2.0) == 40.0


def test_twelve_rows_have_the_mean_of_three_simple_methods_and_an_interval() -> None:
    table = pd.DataFrame({"time": pd.date_range("2010-01-01", periods=9, freq="YS"), "v": 10.0 + np.arange(9.0) ** 1.5})
    with pytest.warns(UserWarning, match="comes from differences of the rows"):
        model = Forecaster(horizon=3, interval=0.8).fit(table)
    assert model.weights_ == pytest.approx(dict.fromkeys(("seasonal naive", "theta", "optimised theta"), 1 / 3))
    found = model.predict()
    widths = (found["v_upper"] - found["v_lower"]).to_numpy()
    assert (np.diff(widths) > 0).all()


def test_the_bounds_of_a_saved_forecaster_are_equal(tmp_path) -> None:
    rows = np.cumsum(np.random.default_rng(1).normal(size=(120, 1)), axis=0)
    model = Forecaster(horizon=6, interval=0.8, effort="least").fit(rows)
    model.save(tmp_path / "m.toa")
    calm = np.concatenate([rows, np.repeat(rows[-1:], 40, axis=0)])
    again = Forecaster.load(tmp_path / "m.toa").predict(np.concatenate([np.zeros((512, 1)), calm]))
    expected = model.predict(np.concatenate([np.zeros((512, 1)), calm]))
    # the forecasts of a loaded network are rounded
    np.testing.assert_allclose(again["upper"] - again["lower"], expected["upper"] - expected["lower"], rtol=1e-4)


def test_a_calm_history_has_a_narrower_interval_than_a_rough_one() -> None:
    random = np.random.default_rng(2)
    rows = random.normal(size=(200, 1))
    model = Forecaster(horizon=4, interval=0.8, season=1, effort="least").fit(rows)

    def width(scale: float) -> float:
        found = model.predict(np.concatenate([rows, scale * random.normal(size=(60, 1))]))
        return float((found["upper"] - found["lower"]).mean())

    assert width(0.1) < 0.6 * width(1.0)


def test_a_panel_of_one_value_has_no_measure() -> None:
    panel = Panel(values=(np.ones((1, 1)),), columns=("a",), ids=(None,))
    assert np.isnan(measure_rows("recent", panel.histories(("a",)), 1, 4)).all()


def learned_scale(rows: int = 300) -> tuple[ErrorScale, np.ndarray, np.ndarray]:
    """A scale that is learned from errors that are four times as large where the methods disagree ten times as much."""
    random = np.random.default_rng(0)
    spread = np.repeat(10.0 ** random.uniform(-1, 1, (rows, 1)), 4, axis=1)
    missed = spread ** np.log10(4.0) * random.laplace(size=(rows, 4))
    plain = scale_of("series", random.normal(size=40))
    histories = [random.normal(size=40) for _ in range(rows)]
    owners = np.zeros(rows, dtype=np.int64)
    return plain.learn(histories, owners, spread, missed), spread, missed


def test_errors_follow_the_disagreement_of_the_methods_where_they_did_at_the_origins() -> None:
    scale, _, _ = learned_scale()
    assert scale.effects is not None
    coefficients = dict(zip(FEATURES, scale.effects.coefficients, strict=True))
    assert coefficients["spread"] == pytest.approx(np.log10(4.0), abs=0.1)
    history = [np.random.default_rng(1).normal(size=40)]
    low, high = (scale.at(history, OWNERS, np.full((1, 4), spread)).mean() for spread in (0.3, 3.0))
    assert 3.0 < high / low < 5.0


def test_effects_of_errors_without_a_pattern_stay_near_the_prior() -> None:
    random = np.random.default_rng(0)
    features = [random.normal(size=(4, 3)) for _ in FEATURES]
    prior = np.array([0.5, 0.0, 0.5, 0.0, 0.0])
    few = ErrorEffects.fit(features, np.ones((4, 3)), prior)
    assert np.abs(few.coefficients - prior).max() < 0.5
    none = ErrorEffects.fit(features, np.full((4, 3), np.nan), prior)
    assert none.coefficients.tolist() == prior.tolist()
    missing = ErrorEffects.fit(features, np.where(np.arange(12).reshape(4, 3) < 6, np.nan, 1.0), prior)
    assert np.isfinite(missing.coefficients).all()


def test_a_phase_is_the_usual_change_at_its_step_of_the_season() -> None:
    random = np.random.default_rng(0)
    calm = random.normal(size=(200, 4)) * np.array([0.0, 0.0, 1.0, 1.0])
    phases = measure_phases([calm.ravel(), np.arange(5.0)], 4, 6)
    # drawn to 1 by four seasons of the usual change
    assert phases[0, [0, 1, 4, 5]] == pytest.approx(4.0 / (4.0 + 13.0), rel=0.01)
    assert (phases[0, [2, 3]] > 1.2).all()
    assert phases[1].tolist() == [1.0] * 6
    # the same beside other histories
    np.testing.assert_array_equal(measure_phases([calm.ravel()[-9:]], 4, 6), [phases[1]])
    beside = measure_phases([calm.ravel()[-17:], calm.ravel()], 4, 6)
    np.testing.assert_array_equal(measure_phases([calm.ravel()[-17:]], 4, 6)[0], beside[0])
    assert measure_phases([calm.ravel()], 1, 3).tolist() == [[1.0] * 3]


def test_nights_without_errors_have_narrow_intervals() -> None:
    """All steps of a day had the width of their distance from the origin before."""
    random = np.random.default_rng(0)
    steps = np.arange(960)
    is_day = (steps % 24 >= 8) & (steps % 24 < 18)
    rows = np.where(is_day, 50.0 + 10.0 * random.normal(size=960), 0.0)[:, None]
    model = Forecaster(horizon=12, interval=0.8, season=24, effort="least").fit(rows)
    found = model.predict()
    width = (found["upper"] - found["lower"])[:, 0]
    assert width[:8].mean() < 0.5 * width[8:].mean()


def test_the_median_is_the_forecast_and_outer_quantiles_are_those_of_the_interval() -> None:
    """Quantiles of few windows were narrower than the interval, which alone was widened."""
    rows = np.cumsum(np.random.default_rng(1).normal(size=(40, 1)), axis=0)
    model = Forecaster(horizon=6, interval=0.8, quantiles=(0.1, 0.5, 0.9), season=1, effort="least").fit(rows)
    found = model.predict()
    low, middle, high = np.moveaxis(found["quantiles"], 1, 0)
    np.testing.assert_allclose(middle, found["forecast"])
    ratio = (high - low) / (found["upper"] - found["lower"])
    assert ((ratio > 0.8) & (ratio < 1.25)).all()


def test_the_shortest_tables_have_quantiles_like_their_interval() -> None:
    """Rows that allow no origin had no quantiles at all."""
    table = np.arange(9.0)[:, None] + np.random.default_rng(0).normal(size=(9, 1))
    with pytest.warns(UserWarning, match="comes from differences of the rows"):
        model = Forecaster(horizon=3, interval=0.8, quantiles=(0.1, 0.9), season=1).fit(table)
    found = model.predict()
    np.testing.assert_allclose(found["quantiles"][:, 0], found["lower"])
    np.testing.assert_allclose(found["quantiles"][:, 1], found["upper"])
