import numpy as np
import pandas as pd
import pytest

from tests.support import message
from toa.data import formats
from toa.data.formats import read_frame, write_frame

arrow = pytest.importorskip("pyarrow")
feather = pytest.importorskip("pyarrow.feather")
parquet = pytest.importorskip("pyarrow.parquet")


def load(rows: int = 30) -> pd.DataFrame:
    hours = pd.date_range("2024-01-01", periods=rows, freq="h")
    wave = np.sin(np.arange(rows) / 4)
    return pd.DataFrame({"date": hours, "load": (20 + wave).round(3), "count": np.arange(rows) * 100})


WRITERS = {
    "a.csv": lambda frame, path: frame.to_csv(path, index=False),
    "a.csv.gz": lambda frame, path: frame.to_csv(path, index=False),
    "semicolons.csv": lambda frame, path: frame.to_csv(path, index=False, sep=";"),
    "tabs.tsv": lambda frame, path: frame.to_csv(path, index=False, sep="\t"),
    "bars.txt": lambda frame, path: frame.to_csv(path, index=False, sep="|"),
    "a.parquet": lambda frame, path: frame.to_parquet(path),
    "index.parquet": lambda frame, path: frame.set_index("date").to_parquet(path),
    "a.feather": lambda frame, path: frame.to_feather(path),
    "a.xlsx": lambda frame, path: frame.to_excel(path, index=False),
    "a.jsonl": lambda frame, path: frame.to_json(path, orient="records", lines=True, date_format="iso"),
    "a.jsonl.gz": lambda frame, path: frame.to_json(path, orient="records", lines=True, date_format="iso"),
    "a.json": lambda frame, path: frame.to_json(path, orient="records", date_format="iso"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_table(name, tmp_path) -> None:
    WRITERS[name](load(), tmp_path / name)
    found = read_frame(tmp_path / name)
    assert list(found) == ["date", "load", "count"]
    assert pd.to_datetime(found["date"]).tolist() == load()["date"].tolist()
    np.testing.assert_array_equal(found[["load", "count"]], load()[["load", "count"]])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_text_of_windows_programs_is_read_in_its_encoding(encoding, tmp_path) -> None:
    path = tmp_path / "own.csv"
    path.write_bytes("Zeit;Außentemperatur;Ort\r\n2024-01-01;1;Köln\r\n2024-01-02;2;007\r\n".encode(encoding))
    if encoding == "cp1252":
        with pytest.warns(UserWarning, match=message("own.csv: text that is not in UTF-8 is read as Windows-1252")):
            found = read_frame(path, names=["Ort"])
    else:
        found = read_frame(path, names=["Ort"])
    assert list(found) == ["Zeit", "Außentemperatur", "Ort"]
    assert found["Ort"].tolist() == ["Köln", "007"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_line_that_tells_excel_the_separator_is_no_header(encoding, tmp_path) -> None:
    path = tmp_path / "own.csv"
    path.write_bytes("sep=;\r\nday;y\r\n2024-01-01;1\r\n2024-01-02;2\r\n".encode(encoding))
    assert read_frame(path).to_dict("list") == {"day": ["2024-01-01", "2024-01-02"], "y": [1, 2]}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"day,y\n1,\x81\n", "must be text in UTF-8"),
        (b"day,y\n1,\xe4\x01\n", "must be text in UTF-8"),
        (b"\xff\xfed\x00a", "got binary data"),
        # one damaged byte beside characters of UTF-8
        ("ort,y\nKöln,1\n".encode() + b"\xdf,2\n", "must be text in UTF-8"),
    ],
)
def test_bytes_that_are_no_text_are_not_guessed(content, expected, tmp_path) -> None:
    path = tmp_path / "own.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message(expected)):
        read_frame(path)


# cells of a column, the separator, and the numbers that they are
DECIMALS = {
    "comma": (["10,5", "1,25", "7"], ";", [10.5, 1.25, 7.0]),
    "three digits after a comma": (["10,038", "11,250"], ";", [10.038, 11.25]),
    "comma and thousands": (["1.234,5", "12.345.678,25"], ";", [1234.5, 12345678.25]),
    "thousands": (['"1,234.5"', '"12"'], ",", [1234.5, 12.0]),
    "missing": (["1,5", "", "2,5"], ";", [1.5, np.nan, 2.5]),
}


@pytest.mark.parametrize("case", DECIMALS)
def test_decimal_commas_and_thousands_are_read_and_reported(case, tmp_path) -> None:
    cells, separator, expected = DECIMALS[case]
    days = pd.date_range("2024-01-01", periods=len(cells)).astype(str)
    lines = [f"day{separator}y", *(f"{day}{separator}{cell}" for day, cell in zip(days, cells, strict=True))]
    path = tmp_path / "own.csv"
    path.write_text("\n".join(lines))
    what = "commas between thousands" if case == "thousands" else "a decimal comma"
    with pytest.warns(UserWarning, match=f"numbers are read with {what} in 'y'"):
        found = read_frame(path)
    np.testing.assert_array_equal(found["y"], expected)


def test_a_comma_that_may_be_either_is_asked_for(tmp_path) -> None:
    path = tmp_path / "own.csv"
    path.write_text('day,y\n2024-01-01,"1,234"\n2024-01-02,"2,500"\n')
    with pytest.raises(
        ValueError, match=message("column 'y' of own.csv", "'1,234'", "give decimal=',' or decimal='.'")
    ):
        read_frame(path)
    assert read_frame(path, decimal=",")["y"].tolist() == [1.234, 2.5]
    assert read_frame(path, decimal=".")["y"].tolist() == [1234, 2500]


def test_numbers_that_a_workbook_stores_as_text_are_read(tmp_path) -> None:
    path = tmp_path / "own.xlsx"
    frame = pd.DataFrame({"date": ["01.01.2024", "02.01.2024", "03.01.2024"], "y": ["480,9", "1.327,5", None]})
    frame.assign(z=[480.125, 2.5, 3.0], mixed=["1,5", 480.125, 2.0], w=["1.327", "2.5", "3"]).to_excel(path)
    with pytest.warns(UserWarning, match="own.xlsx: numbers are read with a decimal comma in 'y'."):
        found = read_frame(path)
    assert found["y"].tolist()[:2] == [480.9, 1327.5]
    assert found["z"].tolist() == [480.125, 2.5, 3.0]
    assert found["mixed"].tolist() == ["1,5", 480.125, 2.0]
    assert found["w"].tolist() == [1.327, 2.5, 3.0]
    frame.assign(y=1.0, code=["007", "010", "100"], number=["7", "10", "100"]).to_excel(path, index=False)
    found = read_frame(path, names=["code", "number"])
    assert found["code"].tolist() == ["007", "010", "100"]
    assert found["number"].tolist() == [7, 10, 100]
    assert found["number"].dtype == np.int64
    frame.assign(y=["1.327", "2.000", None]).to_excel(path, index=False)
    shown = "'1.327' at data row 1, stored as text; give decimal=',' if it is 1327, else decimal='.'"
    with pytest.raises(ValueError, match=message("column 'y' of own.xlsx must show what a point is", shown)):
        read_frame(path)
    assert read_frame(path, decimal=".")["y"].tolist()[:2] == [1.327, 2]
    assert read_frame(path, decimal=",")["y"].tolist()[:2] == [1327, 2000]
    frame.assign(y=["1,327", "2,000", None]).to_excel(path, index=False)
    with pytest.raises(ValueError, match=message("column 'y' of own.xlsx must show which mark is decimal")):
        read_frame(path)


def test_integers_with_too_many_digits_are_no_decimals(tmp_path) -> None:
    path = tmp_path / "own.csv"
    path.write_text(f"day,y\n2024-01-01,1\n2024-01-02,{'2' * 50}\n")
    assert int(read_frame(path)["y"].tolist()[1]) == int("2" * 50)


# tables with a point that may be between thousands, what is said about it, and the column y with a decimal comma
POINTS = {
    "in one column": (
        "d;y\n1;1,5\n2;1.234\n",
        "'1.234' at data row 2, beside the decimal commas in column 'y'",
        [1.5, 1234],
    ),
    "in another column": ("d;y;z\n1;1.234;1,5\n2;2.500;2,5\n", "'1.234' at data row 1, beside the", [1234, 2500]),
    "between semicolons": ("d;y\n1;999\n2;1.000\n", "'1.000' at data row 2, in a file with semicolons", [999, 1000]),
}


@pytest.mark.parametrize("case", POINTS)
def test_a_point_that_may_be_between_thousands_is_asked_for(case, tmp_path) -> None:
    content, found, expected = POINTS[case]
    path = tmp_path / "own.csv"
    path.write_text(content)
    with pytest.raises(
        ValueError, match=message("column 'y' of own.csv must show what a point is", found, "decimal=','")
    ):
        read_frame(path)
    assert read_frame(path, decimal=",")["y"].tolist() == expected
    if "," in content:
        with pytest.raises(ValueError, match=message("the decimal mark '.', got '1,5' at data row 1")):
            read_frame(path, decimal=".")
    else:
        assert read_frame(path, decimal=".")["y"].tolist() == [999, 1]


@pytest.mark.filterwarnings("ignore:own.csv. numbers are read with a decimal comma")
def test_a_point_that_cannot_be_between_thousands_is_decimal(tmp_path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("d;x;y\n1;0.234;1,5\n2;2.001;2,5\n")
    assert read_frame(path)["x"].tolist() == [0.234, 2.001]
    with pytest.raises(ValueError, match=message("the decimal mark ','", "'0.234' at data row 1", "decimal='.'")):
        read_frame(path, decimal=",")


@pytest.mark.parametrize("name", [name for name in WRITERS if name not in ("bars.txt", "index.parquet")])
def test_a_written_table_is_read_back(name, tmp_path) -> None:
    written = load().assign(why=["a, b", None] * 15)
    found = read_frame(write_frame(written, tmp_path / "new" / name))
    found["date"] = pd.to_datetime(found["date"]).astype(written["date"].dtype)
    pd.testing.assert_frame_equal(found, written, check_dtype=False)


@pytest.mark.parametrize("name", ["a.xls", "a.pkl", "a.parquet.gz", "a.xlsm"])
def test_a_format_that_cannot_be_written_is_refused(name, tmp_path) -> None:
    with pytest.raises(ValueError, match=message("must be written to a file that ends in .csv", repr(name))):
        write_frame(load(), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_dates_in_a_time_zone_are_text_in_excel(tmp_path) -> None:
    frame = load().assign(date=load()["date"].dt.tz_localize("Europe/Rome"))
    assert read_frame(write_frame(frame, tmp_path / "a.xlsx"))["date"][0] == "2024-01-01 00:00:00+01:00"


def test_text_that_looks_like_a_formula_stays_text_in_excel(tmp_path) -> None:
    frame = pd.DataFrame({"=1+1": ['=HYPERLINK("http://x","a")', "#REF!", "a"], "y": [1.5, 2.5, 3.5]})
    pd.testing.assert_frame_equal(read_frame(write_frame(frame, tmp_path / "a.xlsx")), frame, check_dtype=False)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_small_numbers_keep_all_digits_in_json(name, tmp_path) -> None:
    frame = pd.DataFrame({"s": ["é/", "b"], "y": [1.2345678901234567e-12, np.nan], "n": [2**60, 1], "z": [5e-300, 0.1]})
    found = read_frame(write_frame(frame, tmp_path / name))
    pd.testing.assert_frame_equal(found, frame, check_dtype=False, check_exact=True)


def test_a_first_column_of_row_numbers_is_left_out_with_a_warning(tmp_path) -> None:
    load().to_csv(tmp_path / "own.csv")
    with pytest.warns(UserWarning, match="the first column has no name and counts the rows; it is left out"):
        assert list(read_frame(tmp_path / "own.csv")) == ["date", "load", "count"]


def test_two_sheets_and_damaged_files_are_refused(tmp_path) -> None:
    with pd.ExcelWriter(tmp_path / "two.xlsx") as book:
        load().to_excel(book, sheet_name="a")
        load().to_excel(book, sheet_name="b")
    with pytest.raises(ValueError, match=message("must have one sheet with rows, got 'a', 'b'", "with sheet")):
        read_frame(tmp_path / "two.xlsx")
    with pytest.raises(ValueError, match=message("must have rows in sheet 'c', got 'a', 'b'")):
        read_frame(tmp_path / "two.xlsx", sheet="c")
    assert len(read_frame(tmp_path / "two.xlsx", sheet="b")) == 30
    with pytest.raises(ValueError, match=message("sheet must be left out", "'b' for a.csv")):
        read_frame(tmp_path / "a.csv", sheet="b")
    for name in ("a.parquet", "a.feather", "a.xlsx", "a.jsonl"):
        WRITERS[name](load(), tmp_path / name)
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[: len(content) // 2 + 3])
        with pytest.raises(ValueError, match=f"{name} must be "):
            read_frame(tmp_path / name)


@pytest.mark.parametrize("text", ["a\rb", "a\0b", "\x1b[31m", "\ufffe", "x" * 40_000, "NaN", "1.50"])
@pytest.mark.parametrize("ending", ["csv", "tsv", "xlsx", "parquet", "feather", "jsonl", "json"])
def test_names_and_ids_are_kept_or_refused(tmp_path, ending, text):
    path = tmp_path / f"x.{ending}"
    frame = pd.DataFrame({"id": ["u", f"v{text}"], text: [1.0, 2.5]})
    controls = text in ("a\rb", "a\0b", "\x1b[31m", "\ufffe") or len(text) > 32_767
    if ending == "xlsx" and controls:
        with pytest.raises(ValueError, match="a table in Excel must have text"):
            write_frame(frame, path)
        return
    write_frame(frame, path)
    if ending in ("csv", "tsv") and "\0" in text:
        with pytest.raises(ValueError, match="must be comma-separated text"):
            read_frame(path)
        return
    found = read_frame(path)
    assert [str(name) for name in found] == ["id", text]
    assert found["id"].tolist() == ["u", f"v{text}"]


@pytest.mark.parametrize("ending", ["parquet", "feather"])
def test_bytes_that_are_no_text_are_refused_on_reading(tmp_path, ending):
    path = tmp_path / f"x.{ending}"
    write_frame(pd.DataFrame({"id": ["abcdefgh"] * 3, "v": [1.0, 2.0, 3.0]}), path)
    path.write_bytes(path.read_bytes().replace(b"abcdefgh", b"abcd\xff\xfegh"))
    with pytest.raises(ValueError, match=f"x.{ending} must be a complete {ending} file"):
        read_frame(path)


@pytest.mark.parametrize("ending", ["parquet", "feather"])
def test_a_table_that_unpacks_to_more_than_the_memory_budget_is_refused(tmp_path, ending, monkeypatch):
    path = tmp_path / f"x.{ending}"
    table = arrow.table({"v": np.zeros(40_000_000)})
    if ending == "parquet":
        parquet.write_table(table, path)
    else:
        feather.write_feather(table, path, compression="zstd")
    assert path.stat().st_size < 10**6
    monkeypatch.setenv("TOA_MEMORY", "0.1")
    said = message(f"x.{ending} must unpack to at most 268435456 bytes, got 320000000", "TOA_MEMORY to 1 (GiB)")
    with pytest.raises(ValueError, match=said):
        read_frame(path)
    # the remedy helps
    monkeypatch.setenv("TOA_MEMORY", "1")
    assert len(read_frame(path)) == 40_000_000


def test_a_workbook_that_unpacks_to_too_much_or_is_none_has_its_own_remedy(tmp_path, monkeypatch):
    path = write_frame(load(), tmp_path / "a.xlsx")
    monkeypatch.setattr(formats, "unpacked_limit", lambda size: 100)
    with pytest.raises(ValueError, match=message("a.xlsx must unpack to at most 100 bytes, got", "; save it as CSV.")):
        read_frame(path)
    path.write_text("day,y\n2024-01-01,1\n")
    with pytest.raises(ValueError, match=message("a.xlsx must be an Excel workbook (.xlsx)", "; save it as .xlsx.")):
        read_frame(path)


def test_a_long_reason_is_cut_at_a_word(tmp_path):
    path = tmp_path / ("x" * 100) / "a.parquet"
    path.parent.mkdir()
    path.write_text("no parquet " * 20)
    with pytest.raises(ValueError, match=r"got an error: .*( …|parquet file); write it again\.$") as caught:
        read_frame(path)
    reason = str(caught.value).partition("got an error: ")[2].removesuffix("; write it again.")
    assert set(reason.split()) - {"…"} <= set(str(caught.value.__cause__).replace("file.", "file").split())


FORMULAS = ['=HYPERLINK("http://x","a")', "+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "\tx", "\r=1"]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.csv.gz", "a.txt"])
def test_text_that_a_spreadsheet_would_execute_is_marked_as_text(name, tmp_path) -> None:
    frame = pd.DataFrame({"=1+1": FORMULAS, "y": [-1.5, 2, 3, 4, 5, 6], "n": ["-5", "+5.5", "a=b", "1", "", "-1e3"]})
    read = {"dtype": {"n": str}, "keep_default_na": False, "sep": "\t" if name == "a.tsv" else ","}
    written = pd.read_csv(write_frame(frame, tmp_path / name), **read)
    assert written.columns.tolist() == ["'=1+1", "y", "n"]
    assert written["'=1+1"].tolist() == [f"'{text}" for text in FORMULAS]
    # numbers stay numbers, also those that are text
    assert written["y"].tolist() == frame["y"].tolist()
    assert written["n"].tolist() == frame["n"].tolist()
    kept = pd.read_csv(write_frame(frame, tmp_path / name, keep_formulas=True), **read)
    assert kept["=1+1"].tolist() == FORMULAS


def test_dates_flags_and_empty_cells_are_not_marked(tmp_path) -> None:
    frame = pd.DataFrame(
        {"day": pd.date_range("2024-01-01", periods=2), "on": [True, False], "kind": pd.Categorical(["=a", None])}
    )
    lines = write_frame(frame, tmp_path / "a.csv").read_text().splitlines()
    assert lines == ["day,on,kind", "2024-01-01,True,'=a", "2024-01-02,False,"]
