import numpy as np
import pandas as pd
import pytest

from toa.data import mark_names, time_marks

NUMBERS = {"W": 2, "D": 3, "h": 4, "5min": 5, "10min": 5, "15min": 5}


@pytest.mark.parametrize(("freq", "number"), NUMBERS.items())
def test_each_frequency_has_its_number_of_marks_within_half(freq, number):
    dates = pd.date_range("2015-12-30", "2021-01-03", freq="7h")
    marks = time_marks(dates, freq)
    assert marks.shape == (len(dates), number) == (len(dates), len(mark_names(freq)))
    assert marks.min() == -0.5
    assert marks.max() == 0.5


def test_marks_are_the_fields_formulas():
    # a Sunday in a leap year: hour 23, weekday 6, day 31 of the month, 152 of the year, ISO week 22
    dates = pd.DatetimeIndex(["2020-05-31 23:59", "2020-01-01 00:00"])
    np.testing.assert_allclose(
        time_marks(dates, "15min"),
        [
            [59 / 59 - 0.5, 23 / 23 - 0.5, 6 / 6 - 0.5, 30 / 30 - 0.5, 151 / 365 - 0.5],
            [-0.5, -0.5, 2 / 6 - 0.5, -0.5, -0.5],
        ],
    )
    np.testing.assert_array_equal(time_marks(dates), time_marks(dates, "15min")[:, 1:])
    np.testing.assert_array_equal(time_marks(dates, "D"), time_marks(dates, "h")[:, 1:])
    np.testing.assert_allclose(time_marks(dates, "W"), [[0.5, 21 / 52 - 0.5], [-0.5, -0.5]])


def test_the_default_is_the_scripts_hour_whatever_the_data():
    assert mark_names() == ("hour-of-day", "day-of-week", "day-of-month", "day-of-year")


def test_an_unknown_frequency_is_rejected():
    with pytest.raises(ValueError, match="unknown freq 's'; known: min, 5min, 10min, 15min, h, D, W"):
        time_marks(pd.DatetimeIndex(["2020-01-01"]), "s")
