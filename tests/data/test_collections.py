import gzip
from dataclasses import replace

import numpy as np
import pytest

from tests.support import message
from toa.data import COLLECTIONS, DatasetNotFoundError, checksum, load_collection, read_tsf

TSF = """# caf\xe9
@relation sales
@attribute series_name string
@attribute start_timestamp date
@frequency monthly
@missing true
@data
A:1999-03-01 00-00-00:1,2.5,?,4
B:2001-01-31 00-00-00:7,8
"""


def write(path, text, encoding="utf-8"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode(encoding))
    return path


def test_a_tsf_file_gives_series_of_any_length_with_dates(tmp_path):
    panel = read_tsf(write(tmp_path / "a.tsf", TSF, "latin-1"))
    assert (panel.ids, panel.lengths, panel.freq) == (("A", "B"), (4, 2), "MS")
    np.testing.assert_array_equal(panel.values[0][:, 0], [1, 2.5, np.nan, 4])
    assert panel.times is not None
    assert [str(times[-1].date()) for times in panel.times] == ["1999-06-01", "2001-02-01"]


def test_a_tsf_file_without_dates_has_none(tmp_path):
    path = tmp_path / "a.tsf.gz"
    path.write_bytes(gzip.compress(b"@attribute series_name string\n@data\nA:1,2\n"))
    panel = read_tsf(path)
    assert (panel.times, panel.freq, panel.ids) == (None, None, ("A",))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("@attribute series_name string\n@data\n", ("must hold series below @data",)),
        ("@attribute series_name string\n@data\nA:x:1\n", ("1 attributes, got 2", "line 3")),
        ("@attribute series_name string\n@data\nA:1,two\n", ("must hold numbers", "'two'", "line 3")),
    ],
)
def test_a_damaged_tsf_file_raises(tmp_path, text, parts):
    with pytest.raises(ValueError, match=message(*parts)):
        read_tsf(write(tmp_path / "a.tsf", text))


def enter(monkeypatch, folder, name, texts, **fields):
    files = COLLECTIONS[name].files
    sums = tuple(checksum(write(folder / path, text)) for path, text in zip(files, texts, strict=True))
    monkeypatch.setitem(COLLECTIONS, name, replace(COLLECTIONS[name], sha256=sums, **fields))
    return load_collection(name, folder)


def test_m4_rows_are_histories_and_the_values_after_them(tmp_path, monkeypatch):
    texts = '"V1","V2","V3"\n"H1","1","2"\n"H2","3"\n', '"V1","V2"\n"H1","5"\n"H2","6"\n'
    found = enter(monkeypatch, tmp_path, "M4-Hourly", texts, series=2, horizon=1)
    assert found.train.ids == found.test.ids == ("H1", "H2")
    assert [values[:, 0].tolist() for values in found.joined().values] == [[1, 2, 5], [3, 6]]
    swapped = texts[0], '"V1","V2"\n"H2","5"\n"H1","6"\n'
    with pytest.raises(ValueError, match="same order"):
        enter(monkeypatch, tmp_path, "M4-Hourly", swapped, series=2, horizon=1)
    with pytest.raises(ValueError, match=message("must have 2 last values, got 1")):
        enter(monkeypatch, tmp_path, "M4-Hourly", texts, series=2, horizon=2)
    with pytest.raises(ValueError, match=message("must have 3 series, got 2")):
        enter(monkeypatch, tmp_path, "M4-Hourly", texts, series=3, horizon=1)


def test_a_part_of_m3_has_its_own_series_and_their_last_values(tmp_path, monkeypatch):
    text = "id,period,type,n,h,values\nN1,YEARLY,MICRO,2,1,1 2 3\nN2,MONTHLY,MICRO,2,1,4 5 6\n"
    found = enter(monkeypatch, tmp_path, "M3-Monthly", (text,), series=1, horizon=1)
    assert (found.train.ids, found.train.values[0][:, 0].tolist(), found.test.values[0].item()) == (("N2",), [4, 5], 6)


def test_hospital_rows_are_numbered_and_wide_files_have_a_column_per_series(tmp_path, monkeypatch):
    found = enter(monkeypatch, tmp_path, "Hospital", ("1,2\n3,4\n", '"1";5\n"1";6\n'), series=2, horizon=1)
    assert [values[:, 0].tolist() for values in found.joined().values] == [[1, 2, 5], [3, 4, 6]]
    wide = enter(monkeypatch, tmp_path, "NN5-Daily", ("a,b\n1,\n2,5\n3,6\n",), series=2, horizon=1)
    assert wide.train.ids == ("a", "b")
    assert np.isnan(wide.train.values[1][0, 0])
    assert wide.test.values[1].tolist() == [[6.0]]


def test_a_changed_file_raises(tmp_path):
    write(tmp_path / "collections" / "nn5_daily.csv", "a\n1\n")
    with pytest.raises(ValueError, match=message("dataset 'NN5-Daily' must have sha256")):
        load_collection("NN5-Daily", tmp_path)


@pytest.mark.data
@pytest.mark.parametrize("name", [name for name in COLLECTIONS if name != "M4-Monthly"])
def test_every_available_collection_has_its_series(name):
    try:
        found = load_collection(name)
    except DatasetNotFoundError as error:
        pytest.skip(str(error))
    assert min(found.train.lengths) >= 13
    assert np.isfinite(np.concatenate(found.train.values)).all() or name == "NN5-Daily"
