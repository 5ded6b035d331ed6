"""Sets with many channels: arrays and series as columns, missing cells, constant columns, heavy tails, large values."""

import gzip
import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.data.files import make_spec, values, write_csv, write_text
from tests.support import message
from toa.data import DATASETS, DatasetNotFoundError, load_forecast, read_dataset, split_rows
from toa.experiments import resolve
from toa.training import TASKS


def write_array(path, array):
    """An .npy.gz file."""
    content = io.BytesIO()
    np.save(content, array)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content.getvalue()))
    return path


def array_spec(**changes):
    return make_spec(path="many/small.npy", reader="npy", target=None, split="6:2:2", **changes)


def test_a_packed_array_has_a_channel_per_column(tmp_path):
    table = np.arange(360, dtype=np.int16).reshape(120, 3)
    panel = read_dataset(array_spec(), write_array(tmp_path / "small.npy.gz", table))
    assert panel.values[0].dtype == np.float64
    assert np.array_equal(panel.values[0], table)


def test_the_number_for_missing_values_becomes_the_last_value_before(tmp_path):
    table = values()
    table[[4, 5, 9], [1, 1, 0]] = 32766
    path = write_array(tmp_path / "small.npy.gz", table.astype(np.float32))
    found = read_dataset(array_spec(missing_value=32766, fill="ffill"), path).values[0]
    assert found[4, 1] == found[5, 1] == np.float32(table[3, 1])
    assert found[9, 0] == np.float32(table[8, 0])
    assert abs(found).max() < 10
    with pytest.raises(ValueError, match="missing"):
        read_dataset(array_spec(missing_value=32766), path)


def test_gaps_of_a_csv_file_are_filled_as_its_entry_says(tmp_path):
    table = values()
    table[7, 2] = np.nan
    path = write_csv(tmp_path / "small.csv", table, dates=None)
    spec = make_spec(reader="csv-undated", target=None, fill="ffill")
    assert read_dataset(spec, path).values[0][7, 2] == table[6, 2]


def test_series_of_a_tsf_file_are_columns(tmp_path):
    head = "@attribute series_name string\n@attribute start_timestamp date\n@frequency daily\n@data\n"
    series = [f"T{i}:2015-07-01 00-00-00:{','.join(map(str, range(i, 120 + i)))}\n" for i in range(3)]
    path = write_text(tmp_path / "small.tsf", head + "".join(series))
    panel = read_dataset(make_spec(reader="tsf", target=None), path)
    assert panel.columns == ("T0", "T1", "T2")
    assert panel.values[0][5].tolist() == [5, 6, 7]
    late = series[2].replace("2015-07-01", "2015-07-02")
    other = write_text(tmp_path / "other.tsf", head + series[0] + series[1] + late)
    with pytest.raises(ValueError, match=message("must have series of one length that begin together", "2 first days")):
        read_dataset(make_spec(reader="tsf", target=None), other)


def test_counts_are_read_as_signed_logarithms(tmp_path):
    table = np.full((120, 3), [-3.0, 0.0, 99.0])
    path = write_array(tmp_path / "small.npy.gz", table)
    found = read_dataset(array_spec(log=True), path).values[0]
    assert found[0] == pytest.approx([-np.log(4), 0.0, np.log(100)])


def small_set(tmp_path, monkeypatch, table, **changes):
    spec = array_spec(**changes)
    write_array(tmp_path / f"{spec.path}.gz", table)
    monkeypatch.setitem(DATASETS, "Small", spec)
    return {"dataset": "Small", "lookback": 6, "horizon": 2, "data_dir": tmp_path}


def test_large_values_are_clipped_after_scaling_by_the_train_rows(tmp_path, monkeypatch):
    table = values()
    table[100, 0] = 1e4
    options = small_set(tmp_path, monkeypatch, table)
    free = load_forecast(**options)
    clipped = load_forecast(**options, clip=3.0)
    assert clipped.scaler.mean == pytest.approx(free.scaler.mean)
    test = torch.arange(len(free.test))
    raw, cut = free.test.batch(test).y, clipped.test.batch(test).y
    assert raw.max() > 1000
    assert torch.equal(cut, raw.clamp(-3, 3))
    assert cut.max() == 3
    with pytest.raises(ValueError, match=message("clip must be positive, got 0")):
        load_forecast(**options, clip=0)


def test_fewer_columns_are_a_part_of_more_and_keep_their_scale(tmp_path, monkeypatch):
    options = small_set(tmp_path, monkeypatch, values())
    whole = load_forecast(**options)
    parts = {count: load_forecast(**options, most_columns=count) for count in (1, 2, 3)}
    assert parts[3].columns == whole.columns
    assert set(parts[1].columns) < set(parts[2].columns) < set(parts[3].columns)
    index = torch.tensor([5])
    for count, part in parts.items():
        assert part.channels == count
        places = [whole.columns.index(name) for name in part.columns]
        assert torch.equal(part.test.batch(index).x, whole.test.batch(index).x[..., places])
    with pytest.raises(ValueError, match=message("most_columns must lie between 1 and the 3 columns of Small, got 4")):
        load_forecast(**options, most_columns=4)


def test_fewer_training_windows_are_the_last_ones_and_change_nothing_else(tmp_path, monkeypatch):
    options = small_set(tmp_path, monkeypatch, values())
    whole = load_forecast(**options)
    part = load_forecast(**options, train_windows=5)
    assert len(part.train) == 5
    last = len(whole.train) - 1
    assert torch.equal(part.train.batch(torch.tensor([4])).y, whole.train.batch(torch.tensor([last])).y)
    assert torch.equal(part.test.batch(torch.tensor([0])).x, whole.test.batch(torch.tensor([0])).x)
    most = len(whole.train)
    with pytest.raises(ValueError, match=message(f"train_windows must lie between 1 and the {most} windows")):
        load_forecast(**options, train_windows=most + 1)


def test_a_column_that_is_constant_in_training_is_divided_by_one(tmp_path, monkeypatch):
    table = values()
    table[:72, 1] = 5.0
    options = small_set(tmp_path, monkeypatch, table)
    with pytest.raises(ValueError, match="constant"):
        load_forecast(**options)
    data = load_forecast(**options, allow_constant=True)
    assert data.scaler.std[1] == 1
    assert data.train.batch(torch.tensor([0])).x[..., 1].abs().max() == 0


def test_the_split_622_gives_validation_a_fifth_with_overlap():
    assert split_rows("6:2:2", 1000, lookback=96, horizon=12) == ((0, 600), (504, 800), (704, 1000))


def test_a_run_can_have_another_split_and_fewer_batches_per_epoch(tmp_path, monkeypatch):
    options = small_set(tmp_path, monkeypatch, values())
    monkeypatch.setenv("TOA_DATA", str(tmp_path))
    changes = ["lookback=6", "marks=false", "batch_size=8", "split=pems", "clip=2", "epoch_steps=3"]
    config = resolve("forecast", "toa-paper", dataset="any.csv", horizon=2, backbone="itransformer", changes=changes)
    config = replace(config, dataset="Small")
    task = TASKS["forecast"]
    data = task.load(config, torch.device("cpu"))
    assert data.segments == split_rows("pems", 120, lookback=6, horizon=2)
    assert data.train.batch(torch.arange(len(data.train))).x.abs().max() == 2
    batches: Any = task.batches(config, data, torch.device("cpu"))
    assert batches.steps_per_epoch == 3
    # other windows in each epoch
    drawn = {tuple(batches.indices(epoch, step).tolist()) for epoch in range(4) for step in range(3)}
    assert len({index for batch in drawn for index in batch}) > 3 * 8
    assert load_forecast(**options).segments.train == (0, 72)


def test_run_settings_added_later_leave_the_hash_of_older_runs():
    from toa.experiments.records import hashed_values

    config = resolve("forecast", "toa-paper", dataset="ETTh1", horizon=96, backbone="itransformer")
    assert not {"split", "clip", "epoch_steps", "most_columns", "train_windows"} & hashed_values(config).keys()


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ("split=half", ("unknown split 'half'", "6:2:2")),
        ("clip=0", ("clip",)),
        ("epoch_steps=0", ("epoch_steps",)),
        ("most_columns=0", ("most_columns",)),
        ("train_windows=0", ("train_windows",)),
    ],
)
def test_wrong_settings_of_a_run_raise(change, parts):
    with pytest.raises(ValueError, match=message(*parts)):
        resolve("forecast", "toa-paper", dataset="ETTh1", horizon=96, backbone="itransformer", changes=[change])


# rows and channels are checked on reading; constant columns of the train rows and the last value of the last column
KNOWN = {
    "PEMS08-Last40": (0, 6),
    "EIA930": (0, 98),
    "China-Temperature": (0, 151),
    "Hangzhou-Metro": (0, 0),
    "NYC-Taxi": (0, 51),
    "Favorita": (0, 0),
    "SMD-1-6": (5, 0),
    "SMD-2-1": (5, 0),
    "NN5-Daily": (0, 12.9011),
    "Web-Traffic": (5, 2.1972246),
}


@pytest.mark.data
@pytest.mark.parametrize("name", KNOWN)
def test_a_real_set_has_its_checksum_its_constant_columns_and_its_last_value(name):
    try:
        data = load_forecast(name, lookback=56, horizon=7, allow_constant=True)
    except DatasetNotFoundError as error:
        pytest.skip(str(error))
    constant, last = KNOWN[name]
    assert data.checksum == DATASETS[name].sha256
    start = data.segments.train.start
    train = read_dataset(DATASETS[name], data.path).values[0][start : data.segments.train.stop]
    assert int((np.ptp(train, axis=0) == 0).sum()) == constant
    assert len(data.val) >= 100
    rows = read_dataset(DATASETS[name], data.path).values[0]
    assert rows[-1, -1] == pytest.approx(last, rel=1e-5)
    if name == "China-Temperature":
        assert rows.max() < 500
        assert rows[16713, 121] == rows[16712, 121]
