import numpy as np
import pandas as pd
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest

import toa
from tests.cli import test_app
from tests.estimators.signals import PERIOD, wave
from tests.support import message
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
    options = {"season": PERIOD, "time_limit": 1e-9, "interval": 0.5}
    sample = sample_series(folder, "shop", series=12).select(["shop", "day", "sales"])
    toa.Forecaster(6, id="shop", time="day", **options).fit(sample).save(path)
    return path


def read(out) -> pd.DataFrame:
    found = pd.concat([pd.read_parquet(file) for file in part_files(out)])
    return found.sort_values(["shop", "day"]).reset_index(drop=True)


@pytest.mark.parametrize(("executor", "workers"), [("process", None), ("pool", 2)])
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
    with pytest.raises(ValueError, match="got 2 ids in several places; sort"):
        forecast_parts(model, source, tmp_path / "files")


def test_wrong_folders_and_models_are_refused_before_work(folder, model, tmp_path):
    with pytest.raises(ValueError, match="got none below"):
        forecast_parts(model, tmp_path, tmp_path / "out")
    with pytest.raises(ValueError, match=message("a new or empty folder", "choose another")):
        forecast_parts(model, folder, folder)
    with pytest.raises(ValueError, match="unknown executor 'dask'"):
        forecast_parts(model, folder, tmp_path / "out", executor="dask")
    with pytest.raises(ValueError, match="got 2 for process"):
        forecast_parts(model, folder, tmp_path / "out", workers=2)
    alone = tmp_path / "alone.toa"
    toa.Forecaster(6, season=PERIOD, time_limit=1e-9).fit(np.asarray(wave(60))).save(alone)
    with pytest.raises(ValueError, match=message("a forecaster with an id column", "got id=None")):
        forecast_parts(alone, folder, tmp_path / "out")


def test_the_command_trains_on_a_sample_and_forecasts_the_folder(folder, tmp_path):
    words = ["forecast", folder, "--id", "shop", "--time", "day", "--value", "sales", "--time-limit", 1e-9]
    code, text = call(*words, "--horizon", 6, "--out", tmp_path / "out", "--save", tmp_path / "m.toa")
    assert code == 0, text
    assert "trained on 30 series" in text
    assert "30 series, 1715 rows in 3 files" in text
    assert len(read(tmp_path / "out")) == 30 * 6
    code, text = call("forecast", folder, "--model", tmp_path / "m.toa", "--horizon", 2, "--out", tmp_path / "two")
    assert code == 0, text
    assert len(read(tmp_path / "two")) == 30 * 2
    for more, complaint in (
        (["--page", "a.html", "--horizon", 6], "--page goes with a single table"),
        ([], "--horizon must be given to train on the folder"),
        (["--horizon", 6, "--out", "a.csv"], "--out must be a folder"),
    ):
        code, text = call(*words, "--out", tmp_path / "x", *more)
        assert code == 2
        assert complaint in text
    code, text = call("forecast", folder / "a.parquet", "--horizon", 6, "--executor", "ray")
    assert "--executor goes with a folder" in text
