"""Numbers that stand for missing values: named, never replaced silently, and replaced where the user says so."""

import warnings

import numpy as np
import pandas as pd
import pytest

from tests.support import message
from toa.data import DATASETS, DatasetNotFoundError, locate
from toa.data.codes import find_codes, mark_missing
from toa.data.frames import read_cases, read_panel

RNG = np.random.default_rng(0)


def weather(rows: int = 200) -> np.ndarray:
    """Temperatures from about -15 to 35, and wind of at least 0."""
    return np.stack([10.0 + 10.0 * RNG.standard_normal(rows), np.abs(3.0 * RNG.standard_normal(rows))], axis=1)


def with_code(value: float, count: int = 3, column: int = 0) -> np.ndarray:
    values = weather()
    values[5 : 5 + count, column] = value
    return values


@pytest.mark.parametrize(
    "value", [-99.99, -999, -999.9, 999, 9999, -9999, 32766, 32767, -32768, 65535, 7777, 88888, 1e20, 1e30, 9.96921e36]
)
def test_codes_are_found_with_column_and_count(value):
    (code,) = find_codes(with_code(value, column=1), ("temperature", "wind"))
    assert (code.column, code.value, code.count) == ("wind", value, 3)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (with_code(-9999, count=1), "it occurs once"),
        (with_code(-123.4), "it is not written as a code"),
        (with_code(99), "a positive 99 is a price"),
        (with_code(34.99), "it lies within the others"),
        (np.append(RNG.uniform(1, 900, 300), [999] * 3)[:, None], "it is near the others"),
        (np.append(RNG.uniform(-12_000, 12_000, 300), [-9999] * 3)[:, None], "others are beyond it"),
        (np.append(RNG.uniform(0, 400, 300), [999.99] * 9)[:, None], "a price among prices"),
        (np.append(np.zeros(300), [9999] * 3)[:, None], "without a range nothing shows what far is"),
        (np.full((9, 1), -9999.0), "there is nothing else"),
        (np.full((9, 1), np.nan), "there is nothing"),
        (np.repeat(np.arange(1000.0), 2)[:, None], "999 counts"),
    ],
)
def test_other_numbers_are_no_codes(values, why):
    assert find_codes(values, [str(place) for place in range(values.shape[1])]) == [], why


def test_several_codes_of_one_column_do_not_hide_one_another():
    values = with_code(-9999)
    values[20:22, 0] = -999
    values[30:32, 0] = 1e30
    assert sorted(code.value for code in find_codes(values, ("a", "b"))) == [-9999, -999, 1e30]


def test_a_number_that_two_columns_have_once_repeats():
    values = weather()
    values[3] = -9999
    assert [code.count for code in find_codes(values, ("a", "b"))] == [1, 1]


def test_a_negative_code_is_found_among_large_numbers_without_any_negative_one():
    counts = RNG.uniform(1e6, 3e6, 100)
    counts[:2] = -9999
    assert len(find_codes(counts[:, None], ("visits",))) == 1


def test_a_code_in_single_precision_is_equal_to_its_short_form():
    values = with_code(-999.9).astype(np.float32).astype(np.float64)
    assert [code.count for code in find_codes(values, ("a", "b"))] == [3]
    assert np.isnan(mark_missing(values, [-999.9])).sum() == 3


def test_a_table_with_codes_is_read_as_it_is_with_a_warning():
    frame = pd.DataFrame(with_code(-9999), columns=["air", "wind"])
    with pytest.warns(
        UserWarning, match=message("look like codes", "-9999 in column 'air' (3 times)", "missing_values=-9999 if")
    ):
        panel = read_panel(frame)
    assert (panel.values[0][:, 0] == -9999).sum() == 3


def test_named_codes_are_missing_values():
    frame = pd.DataFrame(with_code(-9999), columns=["air", "wind"])
    panel = read_panel(frame, missing_values=-9999, missing="ffill")
    assert panel.values[0][5:8, 0].tolist() == [frame["air"][4]] * 3
    assert panel.filled is not None
    assert panel.filled[0].sum() == 3
    with pytest.raises(ValueError, match=message("no missing values", "3 in 'air'")):
        read_panel(frame, missing_values=[-9999])


@pytest.mark.parametrize("nothing", [[], [float("nan")], float("nan")])
def test_a_user_can_say_that_numbers_are_values(nothing):
    panel = read_panel(with_code(-9999), missing_values=nothing)
    assert (panel.values[0] == -9999).sum() == 3


def test_codes_of_arrays_and_of_cases_are_named_too():
    with pytest.warns(UserWarning, match=message("-9999 in column '0'")):
        read_panel(with_code(-9999))
    cases = weather(120).T.reshape(2, 4, 30).swapaxes(0, 1).copy()
    cases[:, 1, 7] = -9999
    with pytest.warns(UserWarning, match=message("X has numbers that look like codes", "column 'channel 1' (4 times)")):
        read_cases(cases)
    panel = read_cases(cases, missing_values=[-9999], missing="ffill")
    assert min(case.min() for case in panel.values) > -100
    wide = pd.DataFrame(cases[:, 1])
    assert read_cases(wide, missing_values=[-9999], missing="ffill").values[0].min() > -100


@pytest.mark.parametrize("wrong", ["-9999", True, [True], ["x"], [None]])
def test_missing_values_must_be_numbers(wrong):
    with pytest.raises(ValueError, match=message("missing_values must be numbers")):
        read_panel(weather(), missing_values=wrong)


def test_categories_are_no_codes():
    frame = pd.DataFrame({"y": weather()[:, 0], "day": ["a", "b"] * 100})
    panel = read_panel(frame, values=["y", "day"], categories={"day": None}, missing_values=[1.0])
    assert panel.values[0][:, 1].tolist() == [0.0, 1.0] * 100


@pytest.mark.data
@pytest.mark.parametrize(("name", "count"), [("Weather", 3), ("ETTh1", 0), ("Exchange", 0)])
def test_real_files_have_these_codes(name, count):
    from toa.data import read_dataset

    spec = DATASETS[name]
    try:
        path = locate(spec)
    except DatasetNotFoundError as error:
        pytest.skip(str(error))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        panel = read_dataset(spec, path)
    assert len(find_codes(panel.values[0], panel.columns)) == count
