import numpy as np
import pandas as pd
import pytest

from tests.support import message
from toa.data.columns import to_zone
from toa.data.frames import read_panel


def text(dates: pd.DatetimeIndex, form: str, **columns: object) -> pd.DataFrame:
    return pd.DataFrame({"date": dates.strftime(form), "y": np.arange(float(len(dates))), **columns})


MONTHS = pd.date_range("2015-01-01", periods=36, freq="MS")
HOURS = pd.date_range("2024-01-01", periods=100, freq="h")


@pytest.mark.parametrize(
    ("dates", "form", "freq"), [(MONTHS, "%d/%m/%Y", "MS"), (HOURS, "%d.%m.%Y %H:%M", "h"), (MONTHS, "%m/%d/%y", "MS")]
)
def test_the_order_in_which_rows_are_regular_is_taken_with_a_warning(dates, form, freq) -> None:
    which = "day" if form.startswith("%d") else "month"
    with pytest.warns(UserWarning, match=f"is read with the {which} first, because only then are the rows regular"):
        panel = read_panel(text(dates, form))
    assert (panel.freq, panel.day_first) == (freq, which == "day")
    assert panel.times is not None
    assert panel.times[0].tolist() == dates.tolist()


@pytest.mark.parametrize("form", ["%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y"])
def test_a_number_above_twelve_decides_without_a_warning(form) -> None:
    dates = pd.date_range("2024-01-01", periods=60, freq="D")
    panel = read_panel(text(dates, form))
    assert panel.times is not None
    assert panel.times[0].tolist() == dates.tolist()


def test_ten_months_that_may_be_ten_days_are_asked_for() -> None:
    frame = text(MONTHS[:10], "%d/%m/%Y")
    with pytest.raises(
        ValueError, match=message("'01/02/2015'", "in both orders", "day_first=True or day_first=False")
    ):
        read_panel(frame)
    assert read_panel(frame, day_first=True).freq == "MS"
    assert read_panel(frame, day_first=False).freq == "D"
    with pytest.warns(UserWarning, match="day first"):
        assert read_panel(frame, freq="MS").freq == "MS"
    # the same with a gap, in which case no order is regular
    with pytest.raises(ValueError, match="in neither order the rows are regular"):
        read_panel(frame.drop(index=4), missing="ffill")


def test_regularity_is_that_of_each_series() -> None:
    parts = [text(MONTHS[start : start + 20], "%d/%m/%Y", shop=shop) for shop, start in (("a", 0), ("b", 7))]
    with pytest.warns(UserWarning, match="day first"):
        panel = read_panel(pd.concat(parts), id="shop")
    assert (panel.freq, panel.lengths) == ("MS", (20, 20))


def test_dates_that_contradict_the_order_or_each_other_are_refused() -> None:
    frame = text(pd.date_range("2024-01-01", periods=40, freq="D"), "%m/%d/%Y")
    with pytest.raises(ValueError, match=message("day first", "got '01/13/2024' at data row 13; give day_first=False")):
        read_panel(frame, day_first=True)
    frame.loc[20, "date"] = "21/01/2024"
    with pytest.raises(ValueError, match=message("in one order", "'01/13/2024' at data row 13", "'21/01/2024'")):
        read_panel(frame)


ROME = pd.date_range("2024-10-20", periods=300, freq="h", tz="Europe/Rome")
SPRING = pd.date_range("2024-03-20", periods=300, freq="h", tz="Europe/Rome")


@pytest.mark.parametrize("dates", [ROME, SPRING])
def test_offsets_that_change_are_read_in_utc_or_in_the_zone_given(dates) -> None:
    frame = text(dates, "%Y-%m-%d %H:%M:%S%z")
    for zone in (None, "Europe/Rome"):
        panel = read_panel(frame, time_zone=zone)
        assert panel.freq == "h"
        assert panel.times is not None
        assert str(panel.times[0].tz) == (zone or "UTC")
        assert (panel.times[0] == dates).all()


@pytest.mark.parametrize("dates", [ROME, SPRING])
def test_local_times_need_their_zone_where_clocks_change(dates) -> None:
    frame = text(dates, "%Y-%m-%d %H:%M")
    with pytest.raises(ValueError, match="give time_zone, if the clocks were changed"):
        read_panel(frame)
    twice = pd.concat([frame.assign(site="a"), frame.assign(site="b")])
    panel = read_panel(twice, id="site", time_zone="Europe/Rome")
    assert panel.times is not None
    assert all((times == dates).all() for times in panel.times)


def test_a_local_time_that_cannot_be_told_apart_is_refused() -> None:
    wall = pd.DataFrame({"date": ["2024-10-27 01:00", "2024-10-27 02:00", "2024-10-27 03:00"], "y": [1.0, 2.0, 3.0]})
    with pytest.raises(
        ValueError, match=message("2024-10-27 02:00:00 at data row 2", "only once", "with their offset")
    ):
        read_panel(wall, time_zone="Europe/Rome")
    wall["date"] = ["2024-03-31 01:00", "2024-03-31 02:00", "2024-03-31 03:00"]
    with pytest.raises(ValueError, match=message("2024-03-31 02:00:00 at data row 2", "the clocks skip")):
        read_panel(wall, time_zone="Europe/Rome")
    with pytest.raises(ValueError, match="time_zone must be a name such as 'Europe/Rome' or 'UTC', got 'Rome'"):
        read_panel(wall, time_zone="Rome")


def test_text_that_is_constant_in_each_series_is_left_out_with_a_warning() -> None:
    dates = pd.date_range("2024-01-01", periods=5)
    frame = text(dates, "%Y-%m-%d", region="north")[["region", "date", "y"]]
    with pytest.warns(UserWarning, match="are left out: 'region'"):
        assert read_panel(frame).columns == ("y",)
    both = pd.concat([frame.assign(shop="a"), frame.assign(shop="b", region="south")])
    with pytest.warns(UserWarning, match="are left out: 'region'"):
        assert read_panel(both, id="shop").columns == ("y",)
    with pytest.raises(ValueError, match=message("only numeric columns", "'north' in column 'region'")):
        read_panel(frame.assign(region=["north", "south"] * 2 + ["north"]))


def test_a_column_may_begin_later_than_others() -> None:
    frame = text(pd.date_range("2024-01-01", periods=6), "%Y-%m-%d", late=[np.nan, np.nan, 5.0, 6.0, 7.0, 8.0])
    panel = read_panel(frame, late_columns=True)
    assert [column.tolist() for column in panel.histories(panel.columns)] == [[0, 1, 2, 3, 4, 5], [5, 6, 7, 8]]
    assert panel.complete().lengths == (4,)
    assert [column.tolist() for column in panel.tail(5).histories(["late", "y"])] == [[5, 6, 7, 8], [1, 2, 3, 4, 5]]
    assert [column.tolist() for column in panel.histories(["late", "y"], [(0, 5)], 2)] == [[6, 7], [3, 4]]
    with pytest.raises(ValueError, match="2 NaN: 2 in 'late', the first at data row 1"):
        read_panel(frame)
    frame.loc[4, "late"] = np.nan
    with pytest.raises(ValueError, match="1 NaN: 1 in 'late', the first at data row 5"):
        read_panel(frame, late_columns=True)


def test_minutes_that_the_clocks_repeat_need_their_zone() -> None:
    minutes = pd.date_range("2024-10-27 00:30", periods=240, freq="min", tz="Europe/Rome")
    frame = text(minutes, "%Y-%m-%d %H:%M")
    hint = "give time_zone, if the clocks were changed"
    with pytest.raises(ValueError, match=message("02:00:00 after 2024-10-27 02:59:00 at data row 151", hint)):
        read_panel(frame)
    panel = read_panel(frame, time_zone="Europe/Rome")
    assert panel.times is not None
    assert (panel.times[0] == minutes).all()
    with pytest.raises(ValueError, match=message("at data row 101", "date, or give id, if it has several series.")):
        read_panel(frame.iloc[[*range(100), 45, *range(100, 140)]])


@pytest.mark.parametrize(("cell", "shown"), [("Summe", "'Summe'"), (None, "None")])
def test_a_row_without_a_date_is_named_also_where_the_day_comes_first(cell, shown) -> None:
    frame = text(pd.date_range("2024-01-01", periods=60, freq="D"), "%d.%m.%Y").astype({"date": object})
    frame.loc[59, "date"] = cell
    found = f"must have a date in every row, got {shown} at data row 60 (1 such rows) beside dates such as '01.01.2024'"
    with pytest.raises(ValueError, match=message(found)):
        read_panel(frame, time="date")


@pytest.mark.parametrize(("zone", "day"), [("America/Santiago", "2024-09-08"), ("Asia/Beirut", "2024-03-31")])
def test_a_day_whose_midnight_the_clocks_skip_begins_at_their_next_time(zone, day) -> None:
    days = pd.date_range(pd.Timestamp(day) - pd.Timedelta("8D"), periods=16)
    read = read_panel(text(days, "%Y-%m-%d"), time_zone=zone)
    assert (read.freq, read.times is not None) == ("D", True)
    (times,) = read.times or ()
    assert times[8].hour == 1
    assert times[7].hour == times[9].hour == 0
    # stored dates, rows before and after that day, gaps, and the forecast of it
    stored = pd.DataFrame({"date": times, "y": np.arange(16.0)})
    for part in (stored, stored[:9], stored[8:], stored.drop(index=[8]), stored.drop(index=[3])):
        found = read_panel(part, missing="ffill")
        assert (found.freq, found.times is not None) == ("D", True)
        (own,) = found.times or ()
        assert own.equals(times[times.get_loc(own[0]) :][: len(own)])
    (ahead,) = read_panel(stored[:7]).next_times(4)
    assert ahead is not None
    assert ahead.equals(times[7:11])


def test_a_day_whose_midnight_the_clocks_repeat_begins_at_the_first() -> None:
    days = pd.date_range("2024-10-30", periods=8)
    (times,) = read_panel(text(days, "%Y-%m-%d"), time_zone="America/Havana").times or ()
    assert [str(one)[-6:] for one in times[3:6]] == ["-04:00", "-04:00", "-05:00"]
    # a time of the day that the clocks skip or repeat is still not one
    hours = pd.date_range("2024-11-02 12:00", periods=24, freq="h")
    with pytest.raises(
        ValueError, match="an hour that the clocks repeat, but only once; write dates with their offset"
    ):
        read_panel(text(hours, "%Y-%m-%d %H:%M"), time_zone="America/Havana")


def test_days_at_another_time_than_midnight_stay_there_where_clocks_change() -> None:
    days = pd.date_range("2024-09-01 01:00", periods=10, tz="America/Santiago")
    panel = read_panel(pd.DataFrame({"date": days, "y": np.arange(10.0)}))
    assert panel.freq == "D"
    assert panel.next_times(1)[0] == pd.DatetimeIndex(["2024-09-11 01:00"], tz="America/Santiago")
    # also beside a series of midnights, one of which the clocks skip
    midnights = to_zone(pd.date_range("2024-09-01", periods=10), "America/Santiago", None, "data")
    both = pd.DataFrame({"id": ["a"] * 10 + ["b"] * 10, "date": [*midnights, *days], "y": np.arange(20.0)})
    panel = read_panel(both, id="id")
    assert [times[-1] for times in panel.times or ()] == [midnights[-1], days[-1]]


@pytest.mark.parametrize(
    ("dates", "form", "shown"),
    [
        (pd.date_range("2024-05-06", periods=10), "%y-%m-%d", "'24-05-06'"),
        (pd.date_range("2024-05-06", periods=60).delete(4), "%y/%m/%d", "'24/05/06'"),
        (HOURS, "%y-%m-%d %H:%M", "'24-01-01 00:00'"),
        (MONTHS, "%y-%m-%d", "'17-01-01'"),
    ],
)
def test_years_of_two_digits_that_come_first_are_not_read_as_days(dates, form, shown) -> None:
    with pytest.raises(ValueError, match=message("years of four digits if they come first", shown)):
        read_panel(text(dates, form), missing="ffill")
    with pytest.raises(ValueError, match=message("years of four digits", "write dates as 2016-07-01.")):
        read_panel(text(dates - pd.DateOffset(years=30), form), day_first=True)


def test_years_of_two_digits_that_come_last_are_read_as_before() -> None:
    for dates in (pd.date_range("2024-01-13", periods=4), pd.date_range("2023-12-25", periods=60)):
        (times,) = read_panel(text(dates, "%d-%m-%y")).times or ()
        assert times.tolist() == dates.tolist()
    years = pd.date_range("2021-01-01", periods=5, freq="YS")
    with pytest.raises(ValueError, match=message("'01-01-21'", "day_first=True or day_first=False if it does not")):
        read_panel(text(years, "%d-%m-%y"))
    assert read_panel(text(years, "%d-%m-%y"), day_first=True).freq == "YS"
