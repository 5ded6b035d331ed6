"""Ridge regression on components of all columns: what it finds, late columns, new series, files."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.estimators.stages import only
from tests.report.cases import read_page
from tests.support import message
from toa.estimators import Forecaster
from toa.estimators.all_columns import ALL_COLUMNS, AllColumns
from toa.estimators.column_pairs import strongest_pairs
from toa.estimators.component_ridge import FEWEST_COLUMNS, TrainingRows, fit_component_ridge, own_places
from toa.estimators.families import FAMILIES


def led_columns(rows: int, columns: int = 6, *, seed: int = 0) -> np.ndarray:
    """White noise; each column of the first half is minus one of the second, three rows later."""
    values = np.random.default_rng(seed).standard_normal((rows, columns))
    half = columns // 2
    values[3:, :half] = -values[:-3, ::-1][:, :half]
    return values


def frame_of(values: np.ndarray, **more: Any) -> pd.DataFrame:
    dates = pd.date_range("2024-01-01", periods=len(values), freq="h")
    return pd.DataFrame({**more, "date": dates, **{f"c{place}": column for place, column in enumerate(values.T)}})


def part_of(values: np.ndarray, *, begins: np.ndarray | None = None) -> TrainingRows:
    begins = np.zeros(values.shape[1], dtype=np.int64) if begins is None else begins
    return TrainingRows(values=values, begins=begins, border=int(0.8 * len(values)))


def one_step_error(ridge, values: np.ndarray, column: int) -> float:
    """Mean squared error of the first step after each of the last hundred rows."""
    ends = range(len(values) - 100, len(values))
    windows = np.stack([values[end - ridge.rows_read : end] for end in ends])
    return float(np.square(ridge.predict(windows)[:, 0, column] - values[-100:, column]).mean())


def test_a_column_that_follows_another_is_forecast_from_it():
    values = led_columns(600)
    ridge = fit_component_ridge([part_of(values[:500])], horizon=2, season=1)
    alone = fit_component_ridge([part_of(values[:500])], horizon=2, season=1, with_components=False)
    assert ridge is not None
    assert alone is not None
    assert one_step_error(ridge, values, 0) < 0.1
    assert one_step_error(alone, values, 0) > 0.7
    # white noise cannot be forecast, with other columns or without
    assert one_step_error(ridge, values, 4) < 1.25 * one_step_error(alone, values, 4)


def test_the_influence_names_the_leading_column_and_its_sign():
    ridge = fit_component_ridge([part_of(led_columns(500))], horizon=2, season=1)
    assert ridge is not None
    influence = ridge.influence()
    assert influence.shape == (6, 6)
    assert np.abs(influence).argmax(1)[:3].tolist() == [5, 4, 3]
    # both steps follow it
    assert influence[[0, 1, 2], [5, 4, 3]] == pytest.approx(-1.0, abs=0.3)


def test_a_longer_season_is_among_the_own_values():
    assert own_places(4_000, 12, 288).tolist() == [*range(48), *range(276, 289)]
    assert own_places(4_000, 12, 24).tolist() == [*range(48)]
    # not without three seasons
    assert own_places(800, 12, 288).tolist() == [*range(48)]
    assert own_places(80, 12, 1).tolist() == [*range(10)]


def test_too_few_rows_have_no_fit():
    assert fit_component_ridge([part_of(led_columns(60))], horizon=12, season=1) is None


@pytest.fixture(scope="module")
def fitted():
    with only("columns"):
        return Forecaster(2, season=1, effort="least").fit(frame_of(led_columns(400)))


def test_a_forecaster_weights_it_by_its_error(fitted):
    values = led_columns(500)
    assert fitted.weights_ == {ALL_COLUMNS: 1.0}
    tested = fitted.backtest(frame_of(values), test_size=100)
    # the mean absolute value of white noise is 0.8
    assert tested.by_column["c0"]["mae"] < 0.4
    assert tested.by_column["c5"]["mae"] > 0.6


def test_a_saved_forecaster_gives_the_same_forecast(fitted, tmp_path):
    fitted.save(tmp_path / "m.toa")
    loaded = Forecaster.load(tmp_path / "m.toa")
    table = frame_of(led_columns(80, seed=3))
    pd.testing.assert_frame_equal(loaded.predict(table), fitted.predict(table), rtol=1e-12)
    again = only("columns")
    with again:
        other = Forecaster(2, season=1, effort="least").fit(frame_of(led_columns(400)))
    pd.testing.assert_frame_equal(other.predict(table), fitted.predict(table), check_exact=True)


@pytest.mark.filterwarnings("ignore:.* wherever it was validated")
@pytest.mark.parametrize("rows", [1, 2, 30])
def test_histories_of_any_length_are_forecast(fitted, rows):
    forecast = fitted.predict(frame_of(led_columns(rows, seed=5)))
    assert forecast.shape == (2, 7)
    assert np.isfinite(forecast.drop(columns="date").to_numpy()).all()


def test_few_columns_have_no_such_method():
    narrow = frame_of(led_columns(300, FEWEST_COLUMNS - 1))
    model = Forecaster(2, season=1, effort="least").fit(narrow)
    assert model.choice_ is not None
    assert ALL_COLUMNS not in model.choice_.ensemble.errors
    wide = Forecaster(2, season=1, effort="least").fit(frame_of(led_columns(300, FEWEST_COLUMNS)))
    assert wide.choice_ is not None
    assert ALL_COLUMNS in wide.choice_.ensemble.errors


def test_each_series_has_its_own_scale_also_one_that_fit_has_not_seen():
    first = led_columns(300)
    second = 1_000.0 + 50.0 * led_columns(300, seed=1)
    table = pd.concat([frame_of(first, id="a"), frame_of(second, id="b")], ignore_index=True)
    with only("columns"):
        model = Forecaster(2, season=1, effort="least", id="id").fit(table)
    new = -20.0 + 0.01 * led_columns(300, seed=2)
    tables = {"b": second, "new": new}
    for name, values in tables.items():
        forecast = model.predict(frame_of(values, id=name))
        # the rows three before each step
        expected = -(values[[-3, -2], 5] - values[:, 5].mean())
        np.testing.assert_allclose(
            (forecast["c0"].to_numpy() - values[:, 0].mean()) / values.std(), expected / values.std(), atol=0.5
        )


def test_late_columns_are_forecast():
    values = led_columns(400)
    values[:150, 2] = np.nan
    with only("columns"), pytest.warns(UserWarning, match="begin"):
        model = Forecaster(2, season=1, effort="least").fit(frame_of(values))
    tested = model.backtest(frame_of(led_columns(500)), test_size=100)
    assert tested.by_column["c2"]["mae"] < 0.5


def test_arrays_that_do_not_fit_one_another_are_refused(fitted):
    family = AllColumns()
    tensors, facts = family.save(fitted.fitted_.panel_methods)
    assert family.load(tensors, facts, 1, 2)
    with pytest.raises(ValueError, match=message("all columns: own must have shape")):
        family.load({**tensors, "own": tensors["own"][:, :, :1]}, facts, 1, 2)
    with pytest.raises(ValueError, match=message("all columns: back must have distances from 0 to")):
        family.load({**tensors, "back": tensors["back"] - 1}, facts, 1, 2)
    assert "columns" in FAMILIES


def test_the_page_names_the_columns_that_help_others(fitted, tmp_path):
    pairs = strongest_pairs(fitted.fitted_, most=3)
    assert {(column, helper) for column, helper, _ in pairs} == {("c0", "c5"), ("c1", "c4"), ("c2", "c3")}
    assert all(effect < -0.5 for _, _, effect in pairs)
    page = read_page(fitted.page(tmp_path / "page.html", frame_of(led_columns(100))))
    parts = next(section["parts"] for section in page["sections"] if "depends on" in section["title"])
    assert any("by the method all columns (weight 1.00)" in part.get("text", "") for part in parts)
    tables = [part["rows"] for part in parts if part["kind"] == "table"]
    assert tables[0][0] == ["forecast of", "is helped by", "effect"]
    assert tables[0][1][:2] in (["c0", "c5"], ["c1", "c4"], ["c2", "c3"])
    narrow = Forecaster(2, season=1, effort="least").fit(frame_of(led_columns(300, 4)))
    assert strongest_pairs(narrow.fitted_) == []
