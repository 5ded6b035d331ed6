import gzip
import io
import tracemalloc
import zipfile
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from tests.data.files import make_spec, packed, values, write_csv, write_text
from tests.support import message
from toa.data import DATASETS, load_forecast, read_csv_series, read_dataset, read_frame, read_values
from toa.data.files import checksum
from toa.data.formats import write_frame
from toa.data.frames import read_panel

TABLE = values()


def test_a_csv_gives_values_columns_and_dates(tmp_path):
    series = read_csv_series(write_csv(tmp_path / "a.csv", TABLE))
    np.testing.assert_array_equal(series.values[0], TABLE)
    assert series.values[0].dtype == np.float64
    assert series.columns == ("0", "1", "OT")
    assert series.times is not None
    assert list(series.times[0]) == list(pd.date_range("2016-07-01", periods=120, freq="h"))


def test_a_gzipped_csv_is_read(tmp_path):
    series = read_csv_series(packed(write_csv(tmp_path / "a.csv", TABLE)))
    np.testing.assert_array_equal(series.values[0], TABLE)


def test_integers_and_a_byte_order_mark_are_read(tmp_path):
    series = read_csv_series(write_text(tmp_path / "a.csv", "\ufeffdate,a,b\n2020-01-01,1,2\n2020-01-02,3,4.5\n"))
    assert series.columns == ("a", "b")
    np.testing.assert_array_equal(series.values[0], [[1, 2], [3, 4.5]])


@pytest.mark.parametrize(
    "cells",
    [
        ["1990/1/1 0:00", "1990/1/2 0:00", "1990/1/10 0:00"],
        ["2016-07-01 00:00:00", "2016-07-01 01:00:00", "2016-07-02 00:00:00"],
        # midnight without its time
        ["2016-07-01", "2016-07-01 01:00", "2016-07-02"],
        ["2016-07-01T00:00:00+02:00", "2016-07-01T01:00:00+02:00", "2016-07-02T00:00:00+02:00"],
    ],
)
def test_the_ways_benchmark_files_and_exports_write_dates_are_read(tmp_path, cells):
    series = read_csv_series(write_csv(tmp_path / "a.csv", TABLE[:3], dates=cells))
    assert series.times is not None
    assert list(series.times[0]) == [pd.Timestamp(cell) for cell in cells]


def test_dates_may_have_another_name_and_place_or_be_absent(tmp_path):
    path = write_text(tmp_path / "a.csv", "a,when,b\n1,2020-01-01,2\n3,2020-01-02,4\n")
    series = read_csv_series(path, date_column="when")
    assert series.columns == ("a", "b")
    undated = read_csv_series(write_csv(tmp_path / "b.csv", TABLE, dates=None), date_column=None)
    assert undated.times is None
    np.testing.assert_array_equal(undated.values[0], TABLE)


def test_csv_moves_the_target_to_the_end_and_ett_csv_keeps_the_order(tmp_path):
    path = write_csv(tmp_path / "a.csv", TABLE, columns=["a", "OT", "b"])
    custom = read_dataset(make_spec(), path)
    assert custom.columns == ("a", "b", "OT")
    np.testing.assert_array_equal(custom.values[0], TABLE[:, [0, 2, 1]])
    ett = read_dataset(make_spec(reader="ett-csv"), path)
    assert ett.columns == ("a", "OT", "b")
    np.testing.assert_array_equal(ett.values[0], TABLE)


@pytest.mark.parametrize("pack", [False, True])
def test_text_without_header_or_dates_is_read(tmp_path, pack):
    path = write_text(tmp_path / "a.txt", "\n".join(",".join(map(str, row)) for row in TABLE))
    series = read_dataset(make_spec(reader="txt", target=None), packed(path) if pack else path)
    np.testing.assert_array_equal(series.values[0], TABLE)
    assert series.columns == ("0", "1", "2")
    assert series.times is None


def test_csv_with_header_and_no_dates_is_read(tmp_path):
    path = write_csv(tmp_path / "a.csv", TABLE, columns=["POWER_5", "POWER_6", "POWER_11"], dates=None)
    series = read_dataset(make_spec(reader="csv-undated", target=None), path)
    np.testing.assert_array_equal(series.values[0], TABLE)
    assert series.times is None


@pytest.mark.parametrize("pack", [False, True])
def test_npz_gives_the_first_feature(tmp_path, pack):
    np.savez(tmp_path / "a.npz", data=np.stack((TABLE, TABLE + 9), axis=2))
    path = tmp_path / "a.npz"
    series = read_dataset(make_spec(reader="npz", target=None), packed(path) if pack else path)
    np.testing.assert_array_equal(series.values[0], TABLE)


@pytest.mark.parametrize(
    ("fill", "want"),
    [
        ("ffill", [1.0, 1.0, 1.0, 4.0, 4.0]),
        ("interpolate", [1.0, 2.0, 3.0, 4.0, 4.0]),
        ("zero", [1.0, 0.0, 0.0, 4.0, 0.0]),
    ],
)
def test_gaps_are_filled_when_asked(tmp_path, fill, want):
    rows = "".join(f"2020-01-0{day},{cell}\n" for day, cell in zip(range(1, 6), ("1", "", "", "4", ""), strict=True))
    series = read_csv_series(write_text(tmp_path / "a.csv", "date,a\n" + rows), fill=fill)
    assert series.values[0][:, 0].tolist() == want


HEAD = "date,a,b\n2020-01-01,1,2\n"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ("must hold a table", "an empty file")),
        (" \n\n", ("must hold a table", "an empty file")),
        ("date,a,b\n", ("at least one row of values", "got none")),
        ("date\n2020-01-01\n", ("at least one column of values")),
        ("when,a\n2020-01-01,1\n", ("must have a column 'date'", "'when', 'a'", "date_column=None")),
        (HEAD + "tomorrow,1,2\n", ("a date in every row", "'tomorrow' at data row 2", "2016-07-01 00:00:00")),
        (HEAD + "2020-02-30,1,2\n", ("a date in every row", "'2020-02-30' at data row 2")),
        (HEAD + ",1,2\n", ("a date in every row", "at data row 2", "1 such rows")),
        (HEAD + "2019-12-31,1,2\n", ("must be sorted by date", "2019-12-31", "after 2020-01-01", "data row 2")),
        (HEAD + "2020-01-01,1,2\n", ("each date once", "2020-01-01", "again at data row 2", "keep one row per date")),
        (HEAD + "2020-01-02,x,2\n", ("only numeric columns", "'x' in column 'a' at data row 2", "drop the column")),
        (HEAD + "2020-01-02,,2\n", ("no missing values", "1 in 'a'", "'ffill'", "'interpolate'")),
        (HEAD + "2020-01-02,1\n", ("no missing values", "1 in 'b'")),
        (
            HEAD + "2020-01-02,inf,2\n",
            ("must be finite", "1 infinite", "column 'a' at data row 2", "fill missing values"),
        ),
        (HEAD + "2020-01-02,1,2,3\n", ("same number of values in each row", "line 3")),
        ("date,a\n2020-01-01,1,2\n", ("same number of values in each row",)),
        (b"date,a\n2020-01-01,1\0\n", ("comma-separated text", "binary data")),
        (bytes(range(1, 256)) * 9, ("UTF-8",)),
        (b"date,W/m\xb2,\xc3\xa9\n2020-01-01,1,2\n", ("text in UTF-8", "save it in UTF-8")),
        ("<html>\n<body>Not Found</body>\n</html>\n", ("must have a column 'date'",)),
    ],
)
def test_a_damaged_csv_raises(tmp_path, text, parts):
    path = write_text(tmp_path / "bad.csv", text)
    with pytest.raises(ValueError, match=message(path, *parts)):
        read_csv_series(path)


@pytest.mark.filterwarnings("ignore:.*Windows-1252:UserWarning", "ignore:.*decimal comma:UserWarning")
def test_a_file_is_read_as_for_a_forecaster(tmp_path):
    """The same reader: other separators, decimal commas, other encodings, offsets from UTC, other formats."""
    text = "date;W/m²;kind\n2020-01-01;1,5;2\n2020-01-02;2,5;3\n"
    path = write_text(tmp_path / "a.csv", text.encode("cp1252"))
    with pytest.raises(ValueError, match="must show"):
        read_csv_series(write_text(tmp_path / "b.csv", "date;a\n2020-01-01;1.234\n2020-01-02;2.345\n"))
    series = read_csv_series(path)
    assert series.columns == ("W/m²", "kind")
    assert series.values[0].tolist() == [[1.5, 2.0], [2.5, 3.0]]
    panel = read_panel(read_frame(path))
    np.testing.assert_array_equal(panel.values[0], series.values[0])
    assert panel.times is not None
    assert series.times is not None
    assert panel.times[0].equals(series.times[0])
    write_frame(pd.DataFrame({"date": panel.times[0], "a": [1.0, 2.0]}), tmp_path / "a.parquet")
    assert read_csv_series(tmp_path / "a.parquet").values[0].tolist() == [[1.0], [2.0]]
    clocks = "date,a\n2020-03-29T00:00:00+01:00,1\n2020-03-29T03:00:00+02:00,1\n"
    times = read_csv_series(write_text(tmp_path / "c.csv", clocks)).times
    assert times is not None
    assert times[0].tolist() == list(pd.to_datetime(["2020-03-28T23:00Z", "2020-03-29T01:00Z"]))


def test_codes_for_missing_values_are_named_in_a_users_file_only(tmp_path):
    table = values()
    table[[3, 9], 0] = -9999
    path = write_csv(tmp_path / "a.csv", table)
    assert read_csv_series(path).values[0].min() == -9999
    with pytest.warns(UserWarning, match="-9999 in column '0' [(]2 times"):
        load_forecast(path, lookback=8, horizon=2)
    data = load_forecast(path, lookback=8, horizon=2, missing_values=-9999, fill="ffill")
    assert float(data.train.batch(torch.arange(4)).x.min()) > -10


def test_a_gap_at_the_start_cannot_be_filled_from_the_past(tmp_path):
    path = write_text(tmp_path / "a.csv", "date,a\n2020-01-01,\n2020-01-02,2\n")
    for fill in ("ffill", "interpolate"):
        with pytest.raises(ValueError, match=message("1 in 'a'", f"'{fill}' has no earlier value")):
            read_csv_series(path, fill=fill)


def test_missing_values_are_counted_by_column(tmp_path):
    table = values(20, 12)
    table[3:5, :10] = np.nan
    path = write_csv(tmp_path / "a.csv", table)
    with pytest.raises(ValueError, match=message("2 in '0', 2 in '1'", "more in 2 further columns", "fill")):
        read_csv_series(path)


def test_an_unknown_fill_is_rejected(tmp_path):
    with pytest.raises(ValueError, match=message("unknown fill 'mean'; known: ffill, interpolate, zero.")):
        read_csv_series(write_csv(tmp_path / "a.csv", TABLE), fill="mean")


def test_a_missing_target_is_rejected(tmp_path):
    path = write_csv(tmp_path / "a.csv", TABLE, columns=["a", "b", "c"])
    with pytest.raises(ValueError, match=message("target column 'OT'", "'a', 'b', 'c'")):
        read_dataset(make_spec(), path)


def test_a_repeated_date_passes_where_the_entry_allows_it(tmp_path):
    dates = pd.date_range("2020-01-01", periods=120, freq="h")
    path = write_csv(tmp_path / "a.csv", TABLE, dates=dates[[0, 1, 1, *range(3, 120)]])
    assert read_dataset(make_spec(duplicate_dates=True), path).lengths == (120,)
    with pytest.raises(ValueError, match="each date once"):
        read_dataset(make_spec(), path)


@pytest.mark.parametrize(("rows", "channels"), [(119, 3), (120, 4)])
def test_a_file_of_another_shape_than_the_entry_is_rejected(tmp_path, rows, channels):
    path = write_csv(tmp_path / "a.csv", values(rows, channels))
    parts = ("'Small' must have 120 rows and 3 channels", f"got {rows} and {channels}", "example.org")
    with pytest.raises(ValueError, match=message(*parts)):
        read_dataset(make_spec(), path)


def npz(**arrays) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def compressed(**arrays) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    content = bytearray(buffer.getvalue())
    content[60:90] = b"\xff" * 30
    return bytes(content)


def zipped(name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, content)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"", ("must be an npz archive",)),
        (b"\x80\x04K\x01.", ("must be an npz archive",)),
        (npz(flow=TABLE), ("no array 'data' but flow",)),
        (npz(data=TABLE), ("numbers (T, C, features)", "(120, 3)")),
        (npz(data=np.array([[["a"]]])), ("numbers (T, C, features)", "<U1")),
        (npz(data=np.array([[[{}]]])), ("unpickled array", "allow_pickle=False")),
        (npz(data=np.full((120, 3, 1), np.nan)), ("only NaN in column '0'",)),
        (npz(data=np.zeros((0, 3, 1))), ("at least one row",)),
        (compressed(data=TABLE[..., None]), ("unpickled array 'data'",)),
        (zipped("data.npy", b"junk"), ("unpickled array 'data'",)),
        (npz(data=TABLE[..., None])[:-300], ("must be an npz archive",)),
        (zipped("readme.txt", b""), ("no array 'data' but readme.txt",)),
    ],
)
def test_a_damaged_npz_raises(tmp_path, content, parts):
    path = write_text(tmp_path / "bad.npz", content)
    with pytest.raises(ValueError, match=message(path, *parts)):
        read_dataset(make_spec(reader="npz", target=None), path)


def test_a_packed_file_that_grows_too_much_is_refused(tmp_path):
    """Zeros pack a thousandfold: a file of 1 MB would take 1 GB."""
    path = tmp_path / "zeros.npy.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(np.lib.format.magic(1, 0))
        for _ in range(300):
            file.write(bytes(1 << 20))
    with pytest.raises(ValueError, match=message("zeros.npy.gz must unpack to at most", "unpack it")):
        read_values(path)
    small = tmp_path / "small.csv.gz"
    small.write_bytes(gzip.compress(bytes(30 << 20)))
    tracemalloc.start()
    checksum(small)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 << 20, "a file is read piece by piece"
    archive = tmp_path / "zeros.npz"
    np.savez_compressed(archive, data=np.zeros((1 << 15, 1 << 7, 9)))
    spec = replace(DATASETS["PEMS03"], rows=1 << 15, channels=1 << 7)
    with pytest.raises(ValueError, match=message("zeros.npz must hold", "bytes packed into")):
        read_dataset(spec, archive)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000,), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (" + "9" * 400 + ",), }",
        "{'descr': 7, 'fortran_order': False, 'shape': (3,), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (3,), }",
        "{'descr': '<f8', 'shape': (3,), }",
        "(" * 4000,
    ],
)
def test_forged_headers_of_arrays_are_refused(tmp_path, header):
    text = (header + "\n").encode()
    path = tmp_path / "x.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(24))
    with pytest.raises(ValueError, match=r"x\.npy must"):
        read_values(path)


def test_the_size_in_a_header_is_compared_before_memory_is_allocated(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(3))
    content = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(content.replace(b"(3,), }        ", b"(99999999,), } "))
    with pytest.raises(ValueError, match="states 799999992 bytes, but only 24 follow"):
        read_values(tmp_path / "x.npy")


@pytest.mark.parametrize("rows", [("0", "9" * 400, "1"), ("x", "9" * 400, "1e5")])
def test_an_integer_beyond_float_is_refused_by_name(tmp_path, rows):
    path = tmp_path / "x.txt"
    path.write_text("\n".join(rows) + "\n")
    with pytest.raises(ValueError, match=r"x\.txt must"):
        read_values(path)


def test_a_long_cell_is_not_repeated_in_the_message(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,2\n3," + "y" * 1_000_000 + "\n")
    with pytest.raises(ValueError, match="must have only numeric columns") as caught:
        read_values(path)
    assert len(str(caught.value)) < 400
