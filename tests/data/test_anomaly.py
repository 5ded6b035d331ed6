import gzip
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.data.files import packed, write_csv, write_text
from tests.support import message
from toa.data import (
    ANOMALY_SETS,
    DatasetNotFoundError,
    FileSpec,
    SeriesWindows,
    checksum,
    load_anomaly,
    locate_anomaly,
    read_labels,
    read_values,
)

TRAIN = np.random.default_rng(0).normal(size=(60, 3)).round(3)
TEST = np.random.default_rng(1).normal(size=(50, 3)).round(3)
LABELS = np.isin(np.arange(50), [7, 8, 9, 30])


def save(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, array)
    return path


@pytest.fixture
def files(tmp_path):
    return {
        "dataset": save(tmp_path / "train.npy", TRAIN),
        "test_file": save(tmp_path / "test.npy", TEST),
        "label_file": save(tmp_path / "labels.npy", LABELS),
    }


def test_the_catalogue_holds_the_five_sets_and_every_machine():
    assert list(ANOMALY_SETS)[:5] == ["PSM", "MSL", "SMAP", "SMD", "SWaT"]
    machines = [ANOMALY_SETS[name] for name in ANOMALY_SETS if name.startswith("SMD-machine-")]
    assert len(machines) == 28
    whole = ANOMALY_SETS["SMD"]
    assert (whole.train_rows, whole.test_rows, whole.channels) == (708405, 708420, 38)
    assert sum(spec.train_rows for spec in machines) == whole.train_rows
    assert sum(spec.test_rows for spec in machines) == whole.test_rows
    assert all(spec.subset_of == "SMD" and spec.served is not None for spec in machines)


def test_only_files_their_maker_serves_have_a_url():
    served = [name for name in ANOMALY_SETS if ANOMALY_SETS[name].served is not None]
    assert all(name.startswith("SMD-machine-") for name in served)
    with pytest.raises(ValueError, match=message("unknown anomaly set 'msl'; known: PSM, MSL, SMAP, SMD, SWaT")):
        _ = ANOMALY_SETS["msl"]


def test_train_statistics_scale_both_series(files):
    data = load_anomaly(str(files.pop("dataset")), length=20, **files)
    assert (data.name, data.spec) == ("train.npy", None)
    mean = TRAIN.mean(0)
    std = TRAIN.std(0)
    np.testing.assert_allclose(data.train.numpy(), (TRAIN - mean) / std, atol=1e-6)
    np.testing.assert_allclose(data.test.numpy(), (TEST - mean) / std, atol=1e-6)
    assert data.train.dtype == torch.float32
    assert np.array_equal(data.labels, LABELS)


def test_csv_txt_and_gzipped_files_hold_the_same_numbers(tmp_path):
    plain = save(tmp_path / "a.npy", TRAIN)
    table = write_csv(tmp_path / "a.csv", TRAIN, dates=None)
    dated = write_csv(tmp_path / "dated.csv", TRAIN)
    rows = write_text(tmp_path / "a.txt", "\n".join(",".join(map(str, row)) for row in TRAIN) + "\n")
    for path in (plain, table, rows):
        assert np.array_equal(read_values(path), TRAIN)
        assert np.array_equal(read_values(packed(path)), TRAIN)
    assert np.array_equal(read_values(dated, index_column=True), TRAIN)


def test_an_ending_may_have_capital_letters(tmp_path):
    (tmp_path / "a.CSV").write_text("x\n1\n2\n")
    assert read_values(tmp_path / "a.CSV").tolist() == [[1.0], [2.0]]


def test_labels_may_be_flags_numbers_or_a_last_column(tmp_path):
    assert np.array_equal(read_labels(save(tmp_path / "a.npy", LABELS)), LABELS)
    assert np.array_equal(read_labels(save(tmp_path / "b.npy", LABELS.astype(np.int8)[:, None])), LABELS)
    column = write_text(tmp_path / "c.csv", "label\n" + "\n".join("1.0" if x else "0" for x in LABELS))
    assert np.array_equal(read_labels(column), LABELS)
    words = write_text(tmp_path / "d.csv", "t,label\n" + "\n".join(f"{i},{x}" for i, x in enumerate(LABELS)))
    assert np.array_equal(read_labels(words, index_column=True), LABELS)
    both = write_csv(tmp_path / "e.csv", np.column_stack((TEST, LABELS)), dates=None)
    assert np.array_equal(read_labels(both, label_column=True), LABELS)
    assert np.array_equal(read_values(both, label_column=True), TEST)


def test_the_first_complete_layout_is_read_and_checked(home, monkeypatch):
    folder = home / "data"
    spec = replace(ANOMALY_SETS["SMD-machine-1-1"], train_rows=60, test_rows=50, channels=3, label_ratio=0.08)
    arrays = spec.layouts[0]
    texts = tuple(replace(file, git_id=None, sha256=None) for file in spec.layouts[1])
    spec = replace(spec, layouts=(arrays, texts))
    for file, values in zip(texts, (TRAIN, TEST, LABELS.astype(int)), strict=True):
        rows = values if values.ndim == 2 else values[:, None]
        write_text(folder / file.path, "\n".join(",".join(map(str, row)) for row in rows))
    monkeypatch.setitem(ANOMALY_SETS, spec.name, spec)
    first = load_anomaly(spec.name, length=20, data_dir=folder)
    assert locate_anomaly(spec, folder)[0] is texts
    for file, values in zip(arrays, (TRAIN, TEST, LABELS), strict=True):
        packed(save(folder / file.path, values))
    assert locate_anomaly(spec, folder)[0] is arrays
    second = load_anomaly(spec.name, length=20, data_dir=folder)
    assert torch.equal(first.train, second.train)
    assert first.checksum != second.checksum
    monkeypatch.setitem(ANOMALY_SETS, spec.name, replace(spec, label_ratio=0.5))
    with pytest.raises(ValueError, match=message("must have 60 train rows", "50.00% anomalous", "8.00%")):
        load_anomaly(spec.name, length=20, data_dir=folder)
    monkeypatch.setitem(ANOMALY_SETS, spec.name, replace(spec, channels=4))
    with pytest.raises(ValueError, match=message("4 channels", "got 60, 50, 3")):
        load_anomaly(spec.name, length=20, data_dir=folder)


def test_a_file_with_another_checksum_is_rejected(home, monkeypatch):
    files = [
        FileSpec(name="Own", path=save(home / f"{part}.npy", array).name, source="https://example.org")
        for part, array in (("train", TRAIN), ("test", TEST), ("labels", LABELS))
    ]
    files[0] = replace(files[0], sha256=checksum(home / "test.npy"))
    spec = replace(ANOMALY_SETS["MSL"], name="Own", layouts=(tuple(files),))
    monkeypatch.setitem(ANOMALY_SETS, "Own", spec)
    with pytest.raises(ValueError, match=message("dataset 'Own' must have sha256", "train.npy")):
        load_anomaly("Own", length=20, data_dir=home)


def test_a_missing_dataset_names_its_path_and_how_to_get_it(home):
    with pytest.raises(DatasetNotFoundError, match=message("'MSL' must lie in a data folder", "MSL/MSL_train.npy")):
        load_anomaly("MSL", length=100, data_dir=home)
    with pytest.raises(DatasetNotFoundError, match=message("run `toa data fetch SMD-machine-1-6`")):
        load_anomaly("SMD-machine-1-6", length=100, data_dir=home)


def test_windows_follow_the_stride_and_may_reach_the_end():
    series = torch.arange(11.0)[:, None].repeat(1, 2)
    windows = SeriesWindows(series, 4, stride=3)
    assert windows.starts.tolist() == [0, 3, 6]
    whole = SeriesWindows(series, 4, stride=3, whole=True)
    assert (whole.starts.tolist(), whole.regular) == ([0, 3, 6, 7], 3)
    assert whole.batch(torch.tensor([3, 1]))[:, :, 1].tolist() == [[7, 8, 9, 10], [3, 4, 5, 6]]
    assert sorted(whole.epoch_order(1, 2).tolist()) == [0, 1, 2, 3]
    assert SeriesWindows(series, 11, whole=True).starts.tolist() == [0]


def with_own(files, **changes: Any) -> dict[str, Any]:
    return {**files, "length": 20, **changes}


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"label_file": LABELS[:-1]}, ("labels of train.npy must be one for each of the 50 test rows, got 49",)),
        ({"test_file": TEST[:, :2]}, ("must have 3 channels, as train, got 2",)),
        ({"dataset": TRAIN[:19]}, ("train series of train.npy must have a window of 20 rows, got 19",)),
        ({"dataset": np.where(TRAIN > 2, np.nan, TRAIN)}, ("must have no missing values", "'ffill'")),
        ({"dataset": np.where(TRAIN > 2, np.inf, TRAIN)}, ("must be finite",)),
        ({"dataset": np.column_stack((TRAIN[:, :2], np.ones(60)))}, ("constant: '2'", "allow_constant")),
        ({"label_file": np.arange(50)}, ("labels 0 and 1, got 2 at data row 3",)),
        ({"label_file": np.zeros((50, 2))}, ("must have one label column, got 2", "index_column")),
        ({"label_file": np.full(50, np.nan)}, ("values in every column, got only NaN",)),
        ({"dataset": np.zeros((4, 4, 4))}, ("must hold numbers (T, C) or (T,), got float64 of shape (4, 4, 4)",)),
        ({"dataset": np.array(["a", "b"])}, ("must hold numbers (T, C) or (T,), got <U1",)),
        ({"test_file": None}, ("test_file must be given with a train file of your own",)),
        ({"label_file": None}, ("label_file must be given with a train file of your own",)),
    ],
    ids=lambda value: None if isinstance(value, tuple) else next(iter(value)),
)
def test_bad_files_are_rejected(files, change, parts):
    for name, value in change.items():
        if isinstance(value, np.ndarray):
            np.save(files[name], value)
        else:
            files[name] = value
    with pytest.raises(ValueError, match=message(*parts)):
        load_anomaly(**with_own(files))


def test_bad_bytes_are_rejected(files, tmp_path):
    np.save(files["dataset"], np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=message("must be an unpickled .npy array")):
        load_anomaly(**with_own(files))
    files["dataset"].write_bytes(b"")
    with pytest.raises(ValueError, match=message("must hold an array, got an empty file")):
        load_anomaly(**with_own(files))
    files["dataset"].write_bytes(b"not an array")
    with pytest.raises(ValueError, match=message("must be an unpickled .npy array")):
        load_anomaly(**with_own(files))
    broken = tmp_path / "train.npy.gz"
    broken.write_bytes(gzip.compress(b"x" * 1000)[:20])
    with pytest.raises(ValueError, match=message("must be complete gzip data")):
        load_anomaly(**with_own(files, dataset=broken))
    with pytest.raises(ValueError, match=message("must hold a table, got an empty file")):
        load_anomaly(**with_own(files, dataset=write_text(tmp_path / "empty.csv", "")))
    with pytest.raises(ValueError, match=message("must end in .npy, .csv, .txt", "'train.pkl'")):
        load_anomaly(**with_own(files, dataset=write_text(tmp_path / "train.pkl", "x")))
    with pytest.raises(FileNotFoundError, match=message("No such file", "none.npy")):
        load_anomaly(**with_own(files, dataset=tmp_path / "none.npy"))


def test_names_and_files_do_not_mix(files):
    with pytest.raises(ValueError, match=message("test_file goes with a train file", "'MSL'; leave it out")):
        load_anomaly(**with_own(files, dataset="MSL"))
    with pytest.raises(ValueError, match=message("unknown anomaly set 'MLS'; known: PSM, MSL")):
        load_anomaly("MLS", length=20)


def test_labels_may_be_the_last_column_of_user_files(files, tmp_path):
    train = write_csv(tmp_path / "train.csv", np.column_stack((TRAIN, np.zeros(60))))
    test = write_csv(tmp_path / "test.csv", np.column_stack((TEST, LABELS)))
    data = load_anomaly(train, length=20, test_file=test, index_column=True, label_column=True)
    assert data.train.shape == (60, 3)
    assert np.array_equal(data.labels, LABELS)
    with pytest.raises(ValueError, match=message("label_file goes with", "beside label_column=True; leave it out")):
        load_anomaly(train, length=20, test_file=test, label_file=files["label_file"], label_column=True)
    with pytest.raises(ValueError, match=message("label_column goes with a train file", "'MSL'")):
        load_anomaly("MSL", length=20, label_column=True)


@pytest.mark.data
@pytest.mark.parametrize("name", ["MSL", "SMAP", "SMD-machine-1-6", "SMD-machine-2-1"])
def test_real_sets_have_the_known_sizes_and_checksums(name):
    try:
        data = load_anomaly(name, length=100, allow_constant=True)
    except DatasetNotFoundError as error:
        pytest.skip(str(error))
    spec = ANOMALY_SETS[name]
    assert data.train.shape == (spec.train_rows, spec.channels)
    assert data.test.shape == (spec.test_rows, spec.channels)
    assert data.labels.mean() == pytest.approx(spec.label_ratio, abs=1e-4)
