import importlib
import re
import sys

import numpy as np
import pandas as pd
import pytest

import toa
from tests.cli import test_app
from tests.estimators.signals import PERIOD, wave
from tests.support import message
from toa._files import replacing

pytest.importorskip("pyarrow", reason="pyarrow is not installed; it comes with toa[files]")

import pyarrow as arrow
import pyarrow.parquet as parquet

import toa.integrations.ray
from toa.integrations.ray import forecast_parts, part_files, sample_series, whole_series


def call(*words: object):
    return test_app.call(*map(str, words))


def panel(first: int, count: int) -> pd.DataFrame:
    """Series of different lengths."""
    days = pd.date_range("2024-01-01", periods=60, freq="D")
    parts = [
        pd.DataFrame({"shop": f"s{one}", "day": days[one % 7 :], "sales": wave(60, level=9.0, seed=one)[one % 7 :]})
        for one in range(first, first + count)
    ]
    return pd.concat(parts, ignore_index=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three files, one in a folder of its region."""
    root = tmp_path_factory.mktemp("panel")
    for number, name in enumerate(("a.parquet", "b.parquet", "region=de/c.parquet")):
        (root / name).parent.mkdir(exist_ok=True)
        parquet.write_table(arrow.Table.from_pandas(panel(10 * number, 10)), root / name, row_group_size=37)
    return root


@pytest.fixture(scope="module")
def model(folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.toa"
    options = {"season": PERIOD, "effort": "least", "interval": 0.5}
    sample = sample_series(folder, "shop", series=12).select(["shop", "day", "sales"])
    toa.Forecaster(6, id="shop", time="day", **options).fit(sample).save(path)
    return path


def read(out) -> pd.DataFrame:
    found = pd.concat([pd.read_parquet(file) for file in part_files(out)])
    return found.sort_values(["shop", "day"]).reset_index(drop=True)


@pytest.mark.parametrize(("executor", "workers"), [("process", None), pytest.param("pool", 2, marks=pytest.mark.slow)])
def test_forecasts_of_parts_are_those_of_the_whole_panel(executor, workers, folder, model, tmp_path):
    found = forecast_parts(model, folder, tmp_path / "out", executor=executor, workers=workers, batch_rows=100)
    whole = panel(0, 30)
    assert (found.files, found.series, found.rows) == (3, 30, len(whole))
    assert found.peak_bytes > 2**20
    expected = toa.Forecaster.load(model).predict(whole).sort_values(["shop", "day"]).reset_index(drop=True)
    pd.testing.assert_frame_equal(read(tmp_path / "out"), expected, check_dtype=False)
    assert {file.name for file in (tmp_path / "out").rglob("*.*")} == {"a.parquet", "b.parquet", "c.parquet"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
def test_ray_data_forecasts_the_same(folder, model, tmp_path):
    pytest.importorskip("ray")
    forecast_parts(model, folder, tmp_path / "here")
    found = forecast_parts(model, folder, tmp_path / "ray", executor="ray", workers=2, horizon=6)
    assert found.series == 30
    pd.testing.assert_frame_equal(read(tmp_path / "ray"), read(tmp_path / "here"))
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    parquet.write_table(arrow.Table.from_pandas(panel(0, 1).assign(sales=np.nan)), wrong / "a.parquet")
    with pytest.raises(ValueError, match=r"a\.parquet, rows 1 to 60 as data: series 's0'"):
        forecast_parts(model, wrong, tmp_path / "none", executor="ray", workers=1)


def test_batches_hold_whole_series_however_small_they_are(folder):
    for rows in (1, 50, 10_000):
        tables = list(whole_series(folder, "a.parquet", "shop", ["shop", "sales"], rows))
        ids = [set(table["shop"].to_pylist()) for table in tables]
        assert sum(map(len, ids)) == len(set().union(*ids)) == 10
        assert sum(table.num_rows for table in tables) == len(panel(0, 10))
    assert len(tables) == 1
    # the name of a folder is a column
    (table,) = whole_series(folder, "region=de/c.parquet", "shop", ["shop", "region"], 10_000)
    assert table["region"].to_pylist()[0] == "de"


def test_a_sample_has_whole_series_of_all_files(folder):
    sample = sample_series(folder, "shop", series=6).to_pandas()
    assert list(sample["shop"].unique()) == ["s0", "s1", "s10", "s11", "s20", "s21"]
    assert sample.groupby("shop", sort=False).size().tolist() == [60, 59, 57, 56, 54, 60]


def test_a_series_in_several_places_is_refused(folder, model, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    mixed = panel(0, 3).sort_values("day", kind="stable")
    parquet.write_table(arrow.Table.from_pandas(mixed), source / "a.parquet")
    with pytest.raises(
        ValueError, match=message("follow each other in one file", "such as 's", "sort each file by id")
    ):
        forecast_parts(model, source, tmp_path / "mixed")
    assert not list((tmp_path / "mixed").rglob("*.*"))
    for name in ("a.parquet", "b.parquet"):
        parquet.write_table(arrow.Table.from_pandas(panel(0, 2)), source / name)
    found = message("got 2 ids in several places, such as 's", "' in a.parquet and b.parquet; sort")
    with pytest.raises(ValueError, match=found):
        forecast_parts(model, source, tmp_path / "files")
    # found before a forecast is made
    assert not list((tmp_path / "files").iterdir())


def test_a_repeated_call_keeps_finished_files_and_names_the_wrong_one(model, tmp_path):
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    parquet.write_table(arrow.Table.from_pandas(panel(0, 3)), source / "a.parquet")
    wrong = panel(3, 3)
    wrong.loc[70, "sales"] = np.nan
    parquet.write_table(arrow.Table.from_pandas(wrong), source / "b.parquet")
    parquet.write_table(arrow.Table.from_pandas(panel(6, 1)[:0]), source / "empty.parquet")
    words = ("b.parquet, rows 58 to 113 as data: series 's4'", "out has the forecasts of 1 of 3 files")
    with pytest.raises(ValueError, match=message(*words)):
        forecast_parts(model, source, out, batch_rows=60)
    before = (out / "a.parquet").stat().st_mtime_ns
    # a killed worker leaves such a file
    (out / f"b.parquet.{'0' * 32}.partial").touch()
    parquet.write_table(arrow.Table.from_pandas(panel(3, 3)), source / "b.parquet")
    found = forecast_parts(model, source, out)
    assert (found.series, found.kept) == (3, 1)
    assert (out / "a.parquet").stat().st_mtime_ns == before
    # a file without rows has no forecasts
    assert sorted(file.name for file in out.iterdir()) == ["a.parquet", "b.parquet"]
    pd.testing.assert_frame_equal(read(out), toa.Forecaster.load(model).predict(panel(0, 6)), check_dtype=False)
    assert forecast_parts(model, source, out, executor="ray")[1:3] == (0, 0)
    with pytest.raises(ValueError, match=message("the same model and horizon", "a.parquet; choose another")):
        forecast_parts(model, source, out, horizon=2)
    parquet.write_table(arrow.Table.from_pandas(panel(0, 4)), source / "a.parquet")
    with pytest.raises(ValueError, match=message("of the same files", "a.parquet; choose another")):
        forecast_parts(model, source, out)


def test_ids_that_are_names_of_folders_are_text(tmp_path):
    for number, name in enumerate(("007", "12", "abc")):
        file = tmp_path / "in" / f"shop={name}" / "year=2024" / "a.parquet"
        file.parent.mkdir(parents=True)
        parquet.write_table(arrow.Table.from_pandas(panel(number, 1).drop(columns="shop")), file)
    sample = sample_series(tmp_path / "in", "shop")
    assert sample["year"].to_pylist()[0] == 2024
    options = {"id": "shop", "time": "day", "values": ["sales"], "effort": "least"}
    toa.Forecaster(6, **options).fit(sample).save(tmp_path / "m.toa")
    assert forecast_parts(tmp_path / "m.toa", tmp_path / "in", tmp_path / "out").series == 3
    found = pd.read_parquet(tmp_path / "out", partitioning=None)
    assert list(found["shop"].unique()) == ["007", "12", "abc"]


def test_a_model_that_was_written_again_is_read_again(folder, model, tmp_path):
    file = tmp_path / "model.toa"
    file.write_bytes(model.read_bytes())
    forecast_parts(file, folder, tmp_path / "first")
    other = toa.Forecaster(6, id="shop", time="day", season=1, effort="least", interval=0.5).fit(panel(0, 12))
    other.save(file)
    forecast_parts(file, folder, tmp_path / "second")
    expected = other.predict(panel(0, 30)).sort_values(["shop", "day"]).reset_index(drop=True)
    pd.testing.assert_frame_equal(read(tmp_path / "second"), expected, check_dtype=False)
    assert not read(tmp_path / "first")["sales"].equals(expected["sales"])


def test_wrong_folders_and_models_are_refused_before_work(folder, model, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="got none below"):
        forecast_parts(model, tmp_path, tmp_path / "out")
    with pytest.raises(ValueError, match=message("a new or empty folder", "choose another")):
        forecast_parts(model, folder, folder)
    with pytest.raises(ValueError, match="unknown executor 'dask'"):
        forecast_parts(model, folder, tmp_path / "out", executor="dask")
    with pytest.raises(ValueError, match="got 2 for process"):
        forecast_parts(model, folder, tmp_path / "out", workers=2)
    alone = tmp_path / "alone.toa"
    toa.Forecaster(6, season=PERIOD, effort="least").fit(np.asarray(wave(60))).save(alone)
    monkeypatch.setattr("toa.integrations.ray._mapped", None)
    with pytest.raises(ValueError, match=message("a forecaster with an id column", "got id=None")):
        forecast_parts(alone, folder, tmp_path / "out")
    with pytest.raises(ValueError, match="horizon must be from 1 to 6, the horizon of fit, got 7"):
        forecast_parts(model, folder, tmp_path / "out", horizon=7)


def test_the_command_trains_on_a_sample_and_forecasts_the_folder(folder, tmp_path):
    words = ["forecast", folder, "--id", "shop", "--time", "day", "--value", "sales", "--effort", "least"]
    code, text = call(*words, "--horizon", 6, "--out", tmp_path / "out", "--save", tmp_path / "m.toa")
    assert code == 0, text
    assert "trained on 30 series" in text
    assert "30 series, 1715 rows in 3 files" in text
    assert len(read(tmp_path / "out")) == 30 * 6
    code, text = call("forecast", folder, "--model", tmp_path / "m.toa", "--out", tmp_path / "out")
    assert code == 0, text
    assert "3 files were finished before and are kept" in text
    code, text = call("forecast", folder, "--model", tmp_path / "m.toa", "--horizon", 2, "--out", tmp_path / "two")
    assert code == 0, text
    assert len(read(tmp_path / "two")) == 30 * 2
    for more, complaint in (
        (["--page", "a.html", "--horizon", 6], "--page goes with a single table"),
        ([], "--horizon must be given to train on the folder"),
        (["--horizon", 6, "--out", "a.csv"], "--out must be a folder"),
        (["--horizon", 6, "--out", tmp_path / "out"], "must be a new or empty folder to train on"),
    ):
        code, text = call(*words, "--out", tmp_path / "x", *more)
        assert code == 2
        assert complaint in text
    code, text = call("forecast", folder / "a.parquet", "--horizon", 6, "--executor", "ray")
    assert "--executor goes with a folder" in text


def test_a_call_leaves_alone_what_another_call_is_writing(folder, model, tmp_path):
    with replacing(tmp_path / "out" / "a.parquet") as file:
        file.write(b"first half")
        forecast_parts(model, folder, tmp_path / "out")
        assert len(list((tmp_path / "out").glob("a.parquet.*.partial"))) == 1
    assert (tmp_path / "out" / "a.parquet").read_bytes() == b"first half"


def test_without_pyarrow_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=re.escape("install toa[files]")):
        importlib.reload(toa.integrations.ray)


def test_a_damaged_column_is_named_by_its_file(folder, model, tmp_path):
    table = parquet.read_table(folder / "a.parquet")
    parquet.write_table(table, tmp_path / "a.parquet", compression="none", use_dictionary=False, write_statistics=False)
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    # the header of the pages of the last column
    start = parquet.read_metadata(tmp_path / "a.parquet").row_group(0).column(2).data_page_offset
    content[start : start + 16] = bytes(16)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.parquet").write_bytes(bytes(content))
    with pytest.raises(ValueError, match=message(tmp_path / "data" / "a.parquet")):
        forecast_parts(model, tmp_path / "data", tmp_path / "out")
