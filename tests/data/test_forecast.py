from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from tests.data.files import make_spec, packed, values, write_csv
from tests.support import message
from toa.data import DATASETS, ChecksumError, checksum, load_forecast, read_csv_series, read_dataset, time_marks

TABLE = values(200) * [1.0, 5.0, 0.1] + [0.0, 100.0, -3.0]
SIZES: dict[str, Any] = {"lookback": 8, "horizon": 4}


def enter(monkeypatch, *specs):
    for spec in specs:
        monkeypatch.setitem(DATASETS, spec.name, spec)


@pytest.fixture
def small(home, monkeypatch):
    path = write_csv(home / "data/small/small.csv", TABLE)
    spec = make_spec(path, rows=200)
    enter(monkeypatch, spec)
    monkeypatch.setenv("TOA_DATA", str(home / "data"))
    return spec, path


def every(windows):
    return windows.batch(torch.arange(len(windows)))


def test_a_dataset_of_the_catalogue_is_loaded_by_name(small):
    spec, path = small
    data = load_forecast("Small", **SIZES)
    assert (data.spec, data.path, data.name, data.split) == (spec, path, "Small", "ratio")
    assert (data.checksum, data.subset, data.columns) == (spec.sha256, False, ("0", "1", "OT"))
    # floors of 0.7 and 0.2 of 200 rows
    assert data.segments == ((0, 140), (132, 160), (152, 200))
    assert [len(w) for w in (data.train, data.val, data.test)] == [129, 17, 37]


def test_windows_are_the_files_rows_scaled_by_the_train_rows(small):
    data = load_forecast("Small", **SIZES)
    scaled = (TABLE - TABLE[:140].mean(0)) / TABLE[:140].std(0)
    x, y, x_marks, y_marks = every(data.test)
    for i in range(len(data.test)):
        np.testing.assert_allclose(x[i], scaled[152 + i : 160 + i], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(y[i], scaled[160 + i : 164 + i], rtol=1e-5, atol=1e-6)
    assert x_marks is None
    assert y_marks is None
    assert x.dtype == torch.float32
    # the last row of the file is a target
    np.testing.assert_allclose(data.scaler.inverse(y)[-1, -1], TABLE[-1], rtol=1e-5, atol=1e-5)


def test_the_scaler_ignores_validation_and_test_rows(small, home):
    changed = TABLE.copy()
    changed[140:] += 1000
    path = write_csv(home / "changed.csv", changed)
    np.testing.assert_array_equal(load_forecast(path, **SIZES).scaler.mean, load_forecast("Small", **SIZES).scaler.mean)


def test_the_rows_between_train_and_validation_are_targets_once(small):
    data = load_forecast("Small", lookback=8, horizon=1)
    targets = [every(windows).y[:, 0, 0] for windows in (data.train, data.val, data.test)]
    scaled = data.scaler.transform(TABLE)[8:, 0]
    np.testing.assert_allclose(torch.cat(targets), scaled, rtol=1e-5, atol=1e-6)


def test_a_user_file_gives_the_same_data_as_the_catalogue(small):
    _, path = small
    own, known = (load_forecast(d, **SIZES) for d in (path, "Small"))
    assert own.spec is None
    assert own.name == "small.csv"
    assert own.checksum == known.checksum
    assert torch.equal(every(own.test).y, every(known.test).y)
    assert load_forecast(str(path), **SIZES).path == path


def test_a_gzipped_file_gives_the_same_data_and_checksum(small):
    _, path = small
    plain = load_forecast("Small", **SIZES)
    gz = packed(path)
    data = load_forecast("Small", **SIZES)
    assert data.path == gz
    assert data.checksum == plain.checksum
    assert torch.equal(every(data.train).x, every(plain.train).x)


def test_marks_follow_their_windows(small):
    spec, path = small
    data = load_forecast("Small", **SIZES, marks=True)
    times = read_dataset(spec, path).times
    assert times is not None
    marks = time_marks(pd.DatetimeIndex(times[0]))
    _, _, x_marks, y_marks = every(data.val)
    assert x_marks.shape == (17, 8, 4)
    np.testing.assert_allclose(x_marks[0], marks[132:140], atol=1e-6)
    np.testing.assert_allclose(y_marks[-1], marks[156:160], atol=1e-6)
    assert every(load_forecast("Small", **SIZES, marks=True, freq="15min").val).x_marks.shape == (17, 8, 5)


def test_marks_without_dates_are_rejected(home):
    path = write_csv(home / "a.csv", TABLE, dates=None)
    with pytest.raises(ValueError, match=message("a.csv must have dates", "marks=False")):
        load_forecast(path, **SIZES, date_column=None, marks=True)


def test_a_changed_file_is_rejected_unless_verify_is_false(small, home):
    _, path = small
    changed = TABLE.copy()
    changed[0, 0] = 7
    write_csv(path, changed)
    with pytest.raises(ChecksumError, match=message("'Small' must have sha256")):
        load_forecast("Small", **SIZES)
    data = load_forecast("Small", **SIZES, verify=False)
    assert data.checksum == checksum(path)


def test_a_subset_is_marked_as_one(small, monkeypatch):
    spec, _ = small
    enter(monkeypatch, replace(spec, subset_of="Traffic"))
    assert load_forecast("Small", **SIZES).subset


@pytest.mark.parametrize("rule", ["pems", (0.6, 0.2, 0.2)])
def test_another_split_can_be_asked_for(small, rule):
    data = load_forecast("Small", **SIZES, split=rule)
    assert data.split == rule
    assert data.segments.train == (0, 120)
    np.testing.assert_allclose(data.scaler.mean, TABLE[:120].mean(0))


def test_a_column_constant_in_the_train_rows_is_rejected_by_name(home):
    table = TABLE.copy()
    table[:140, 1] = 5
    path = write_csv(home / "a.csv", table)
    with pytest.raises(ValueError, match=message("a.csv", "140 train rows", "1 constant: '1'", "allow_constant=True")):
        load_forecast(path, **SIZES)
    data = load_forecast(path, **SIZES, allow_constant=True)
    assert every(data.train).x[..., 1].abs().max() == 0


def test_gaps_are_filled_when_asked(home):
    table = TABLE.copy()
    table[50, 0] = np.nan
    path = write_csv(home / "a.csv", table)
    with pytest.raises(ValueError, match=message("1 in '0'", "'ffill'")):
        load_forecast(path, **SIZES)
    data = load_forecast(path, **SIZES, fill="ffill")
    assert data.scaler.inverse(every(data.train).x)[50, 0, 0].item() == pytest.approx(TABLE[49, 0], abs=1e-5)


@pytest.mark.parametrize(
    ("dataset", "options", "parts"),
    [
        ("Smal", {}, ("unknown dataset 'Smal'; known: Weather", "Small")),
        ("nowhere/my.csv", {}, ("name of the catalogue", "no such file", "my.csv")),
        ("ECL", {}, ("'ECL' must lie in a data folder", "archive.ics.uci.edu")),
        ("Small", {"horizon": 29}, ("needing 37 rows", "got 28 in val", "200 rows of Small", "is 20")),
        ("Small", {"split": "half"}, ("unknown split 'half'",)),
        ("Small", {"fill": "mean"}, ("unknown fill 'mean'",)),
        ("Small", {"freq": "s"}, ("unknown freq 's'",)),
    ],
)
def test_invalid_names_and_options_raise(small, dataset, options, parts):
    with pytest.raises((ValueError, FileNotFoundError), match=message(*parts)):
        load_forecast(dataset, **{**SIZES, **options})


def test_dates_with_the_day_first_are_read_as_the_estimators_read_them(home):
    months = pd.date_range("2015-01-01", periods=len(TABLE), freq="MS")
    path = write_csv(home / "a.csv", TABLE, dates=months.strftime("%d/%m/%Y"))
    with pytest.warns(UserWarning, match="'01/02/2015' is read with the day first"):
        panel = read_csv_series(path)
    assert panel.times is not None
    assert panel.times[0].tolist() == months.tolist()
    path = write_csv(home / "b.csv", TABLE[:10], dates=months[:10].strftime("%d/%m/%Y"))
    with pytest.raises(ValueError, match=message("b.csv must show if the day or the month comes first", "2015-02-01")):
        read_csv_series(path)
