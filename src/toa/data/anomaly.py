"""load_anomaly: a set by name, or files of one's own, as standardised train and test series with labels.

Alphabet: L window length, C channels, T rows.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from toa._checks import check_at_least
from toa.data.anomaly_catalog import ANOMALY_SETS
from toa.data.anomaly_spec import AnomalyFiles, AnomalySpec
from toa.data.arrays import read_labels, read_values
from toa.data.location import DatasetNotFoundError, candidates, checksum, locate
from toa.data.location import verify as verify_file
from toa.data.scaling import StandardScaler
from toa.data.windows import epoch_order


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LabelledSeries:
    """What the files hold: train (T, C), test (S, C), and for each test step whether it is anomalous (S,)."""

    train: Float64[np.ndarray, "t c"]
    test: Float64[np.ndarray, "s c"]
    labels: Bool[np.ndarray, " s"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class AnomalyData:
    """A set on the scale of its train rows, on a device, and what a record has to say about its origin.

    Args:
        train: (T, C) in float32.
        test: (S, C) in float32.
        labels: (S,), on the CPU.
        spec: The catalogue's entry; None for files of one's own.
        checksum: Sha256 of the sha256 of each unpacked file.
    """

    name: str
    spec: AnomalySpec | None
    train: Float[Tensor, "t c"]
    test: Float[Tensor, "s c"]
    labels: Bool[np.ndarray, " s"]
    scaler: StandardScaler
    checksum: str


class SeriesWindows:
    """Windows of L rows of a series (T, C) on a device, one every `stride` rows, gathered by place.

    Args:
        series: Where they come from.
        length: Rows L of a window.
        stride: Rows between the starts of two.
        whole: Whether a last window, flush with the end, is added where the stride leaves rows over.
    """

    def __init__(self, series: Float[Tensor, "t c"], length: int, *, stride: int = 1, whole: bool = False) -> None:
        check_at_least("length", length, 1)
        check_at_least("stride", stride, 1)
        rows, channels = series.shape
        if rows < length:
            raise ValueError(f"series must have at least one window of {length} rows, got {rows}; shorten the window.")
        self.length, self.rows, self.channels = length, rows, channels
        starts = torch.arange(0, rows - length + 1, stride)
        self.regular = len(starts)
        if whole and starts[-1] != rows - length:
            starts = torch.cat((starts, starts.new_tensor([rows - length])))
        self.starts: Int[Tensor, " n"] = starts.to(series.device)
        # every window as a view: an unbroken stretch of memory
        self._view = series.contiguous().view(-1).unfold(0, length * channels, channels)

    def __len__(self) -> int:
        return len(self.starts)

    def batch(self, index: Int[Tensor, " b"]) -> Float[Tensor, "b l c"]:
        """The windows at these places."""
        picked = self._view.index_select(0, self.starts[index])
        return picked.view(len(index), self.length, self.channels)

    def epoch_order(self, seed: int, epoch: int) -> Int[Tensor, " n"]:
        """The random order of an epoch; see `toa.data.windows.epoch_order`."""
        return epoch_order(len(self), seed, epoch).to(self.starts.device)


def locate_anomaly(spec: AnomalySpec, data_dir: str | Path | None = None) -> tuple[AnomalyFiles, list[Path]]:
    """The first layout whose files are all here, and where they are.

    Raises:
        DatasetNotFoundError: If none is whole; it names a file of the first, or of one that can be fetched.
    """
    for files in spec.layouts:
        found = [next((path for path in candidates(file, data_dir) if path.is_file()), None) for file in files]
        paths = [path for path in found if path is not None]
        if len(paths) == len(found):
            return files, paths
    wanted = spec.served or spec.layouts[0]
    for file in wanted:
        locate(file, data_dir)
    raise DatasetNotFoundError(f"dataset {spec.name!r} must lie whole in a data folder; some of its files are missing.")


def read_anomaly(spec: AnomalySpec, files: AnomalyFiles, paths: list[Path]) -> LabelledSeries:
    """Read a set of the catalogue and check its sizes and its share of anomalies."""
    inside = files.labels is None
    train, test = (
        read_values(path, fill=spec.fill, index_column=spec.index_column, label_column=inside) for path in paths[:2]
    )
    labels = read_labels(paths[-1], index_column=spec.index_column, label_column=inside)
    series = _checked(train, test, labels, spec.name)
    want = (spec.train_rows, spec.test_rows, spec.channels)
    found = (len(train), len(test), train.shape[1])
    ratio = float(labels.mean())
    if want != found or abs(ratio - spec.label_ratio) > 1e-4:
        raise ValueError(
            f"dataset {spec.name!r} must have {want[0]} train rows, {want[1]} test rows, {want[2]} channels and "
            f"{spec.label_ratio:.2%} anomalous steps, got {found[0]}, {found[1]}, {found[2]} and {ratio:.2%} in "
            f"{paths[0].parent}; get the true files from {spec.source}, or load files of your own by their paths."
        )
    return series


def load_anomaly(
    dataset: str | Path,
    *,
    length: int,
    test_file: str | Path | None = None,
    label_file: str | Path | None = None,
    data_dir: str | Path | None = None,
    device: str | torch.device = "cpu",
    verify: bool = True,
    fill: str | None = None,
    index_column: bool = False,
    label_column: bool = False,
    allow_constant: bool = False,
) -> AnomalyData:
    """Read, check and scale by the train rows.

    Args:
        dataset: A name of the catalogue, or the path of a train file (npy, csv or txt).
        length: Rows of a window, which neither series may be shorter than.
        test_file: With a train file of one's own, the file of the test series.
        label_file: And the file with the labels of its steps.
        data_dir: Folder to look in before $TOA_DATA and the user's cache.
        device: Where the values live.
        verify: Whether files of the catalogue must have the known checksums.
        fill: What to do about missing values in files of one's own, see `read_values`.
        index_column: Whether the first column of one's own csv files is an index, to be left out.
        label_column: Whether the last column of one's own files is the label; then there is no `label_file`.
        allow_constant: Leave channels that never change in the train rows unscaled instead of refusing them.
    """
    check_own_files(dataset, test_file, label_file, label_column=label_column)
    if isinstance(dataset, str) and dataset in ANOMALY_SETS:
        spec: AnomalySpec | None = ANOMALY_SETS[dataset]
        assert spec is not None
        files, paths = locate_anomaly(spec, data_dir)
        sums = [verify_file(path, file) if verify else checksum(path) for file, path in zip(files, paths, strict=True)]
        series, name = read_anomaly(spec, files, paths), spec.name
    else:
        spec, name = None, Path(dataset).name
        given = (dataset, test_file, test_file if label_column else label_file)
        paths = [Path(path).expanduser() for path in given if path is not None]
        train, test = (
            read_values(path, fill=fill, index_column=index_column, label_column=label_column) for path in paths[:2]
        )
        labels = read_labels(paths[2], index_column=index_column, label_column=label_column)
        series = _checked(train, test, labels, name)
        sums = [checksum(path) for path in paths]
    _check_length(series, length, name)
    scaler = StandardScaler.fit(series.train, allow_constant=allow_constant, name=name)
    train_values, test_values = (
        torch.from_numpy(scaler.transform(values).astype(np.float32)).to(device)
        for values in (series.train, series.test)
    )
    return AnomalyData(
        name=name,
        spec=spec,
        train=train_values,
        test=test_values,
        labels=series.labels,
        scaler=scaler,
        checksum=hashlib.sha256("".join(sums).encode()).hexdigest(),
    )


def check_own_files(
    dataset: str | Path, test_file: str | Path | None, label_file: str | Path | None, *, label_column: bool
) -> None:
    """Refuse files beside a set of the catalogue, and a train file without its companions."""
    known = isinstance(dataset, str) and dataset in ANOMALY_SETS
    if not known and isinstance(dataset, str) and not Path(dataset).suffix:
        # no path: let the catalogue say what it knows
        _ = ANOMALY_SETS[dataset]
    for name, given in (("test_file", test_file), ("label_file", label_file)):
        wanted = not known and not (name == "label_file" and label_column)
        if given and not wanted:
            beside = f"dataset {dataset!r}" if known else "label_column=True"
            raise ValueError(f"{name} goes with a train file of your own, got it beside {beside}; leave it out.")
        if not given and wanted:
            raise ValueError(f"{name} must be given with a train file of your own, {dataset}, got none.")
    if known and label_column:
        raise ValueError(f"label_column goes with a train file of your own, got dataset {dataset!r}; leave it out.")


def _checked(
    train: Float64[np.ndarray, "t c"], test: Float64[np.ndarray, "s d"], labels: Bool[np.ndarray, " n"], name: str
) -> LabelledSeries:
    if train.shape[1] != test.shape[1]:
        raise ValueError(
            f"test series of {name} must have as many channels as train, {train.shape[1]}, got {test.shape[1]}."
        )
    if len(labels) != len(test):
        raise ValueError(f"labels of {name} must be one for each of the {len(test)} test rows, got {len(labels)}.")
    return LabelledSeries(train=train, test=test, labels=labels)


def _check_length(series: LabelledSeries, length: int, name: str) -> None:
    for part, values in (("train", series.train), ("test", series.test)):
        if len(values) < length:
            raise ValueError(
                f"{part} series of {name} must have at least one window of {length} rows, got {len(values)}; shorten "
                "the window."
            )
