"""What an estimator says about data that it can read, but that may mean something else."""

import numpy as np
import pandas as pd
import pytest

from tests.estimators.signals import quick, wave, wide
from tests.support import message
from toa.data.columns import warn_of_ended_columns, warn_of_single_cases
from toa.data.frames import read_panel
from toa.estimators import Classifier, Forecaster


def test_an_array_with_far_more_columns_than_rows_is_told_to_be_transposed() -> None:
    array = np.stack([wave(300, seed=seed) for seed in range(3)])
    with pytest.warns(UserWarning, match=message("data is read as 3 rows of 300 columns", "array.T")):
        read_panel(array)
    assert read_panel(array.T).lengths == (300,)
    with pytest.warns(UserWarning, match=message("3 rows of 300 columns")):
        read_panel([array, array])


@pytest.mark.parametrize("shape", [(3, 12), (40, 100), (30, 30)])
def test_an_array_that_may_be_wide_is_not_named(shape) -> None:
    values = np.random.default_rng(0).standard_normal(shape)
    assert read_panel(values).values[0].shape == shape


def test_a_column_that_ended_long_ago_is_named() -> None:
    frame = wide(240)
    frame.loc[150:, "heat"] = 0.0
    with pytest.warns(UserWarning, match=message("'heat' since 2024-01-13 12:00:00 (90 rows)", "values")):
        quick(epochs=1).fit(frame)
    frame.loc[150:, "heat"] = np.nan
    with (
        pytest.warns(UserWarning, match=message("'heat' since", "(91 rows)")),
        pytest.warns(UserWarning, match="has no value in its last 90 rows"),
    ):
        quick(epochs=1, missing="ffill").fit(frame)


@pytest.mark.parametrize(
    "values",
    [
        np.ones(200),
        np.append(wave(171), [0.5] * 29),
        np.tile(np.append([0.0] * 40, [1.0, 3.0]), 10)[:410],
        np.append(wave(1000), [0.5] * 60),
    ],
    ids=["constant", "few rows", "as long before", "a small share"],
)
def test_a_column_that_may_go_on_is_not_named(values, recwarn) -> None:
    panel = read_panel(values)
    warn_of_ended_columns(panel, panel.columns)
    assert not recwarn.list


def test_a_column_that_ended_is_named_with_its_series() -> None:
    days = pd.date_range("2024-01-01", periods=100, freq="D")
    parts = [pd.DataFrame({"id": name, "day": days, "y": wave(100)}) for name in ("a", "b")]
    parts[1].loc[50:, "y"] = 7.0
    panel = read_panel(pd.concat(parts), id="id")
    with pytest.warns(UserWarning, match=message("'y' of series 'b' since 2024-02-20 00:00:00 (50 rows)")):
        warn_of_ended_columns(panel, panel.columns)


def test_an_interval_that_short_series_do_not_allow_is_stated() -> None:
    with pytest.warns(UserWarning, match=message("no interval of 0.8")):
        model = Forecaster(3, interval=0.8, effort="quick").fit(wave(2))
    # also later, as by a model that was loaded
    with pytest.warns(UserWarning, match=message("no interval of 0.8", "rows of fit were too few")):
        forecast = model.predict()
    assert forecast.shape == (3, 1)


def test_a_class_with_one_case_is_named() -> None:
    with pytest.warns(UserWarning, match=message("classes with one case: 'rare'", "leave these out")):
        warn_of_single_cases(["a", "b", "rare"], [5, 2, 1])


def test_a_classifier_names_a_class_with_one_case() -> None:
    cases = np.stack([wave(30, seed=seed) + seed % 2 for seed in range(9)])
    labels = [*("even", "odd") * 4, "rare"]
    with pytest.warns(UserWarning, match=message("classes with one case: 'rare'")):
        Classifier(model="toa", epochs=1).fit(cases, labels)
