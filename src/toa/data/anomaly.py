"""load_anomaly: a dataset by name, or a user's files, as standardised train and test series with labels.

Alphabet: C channels, T train rows, S test rows.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from toa._checks import ArgumentError
from toa.data.catalogue import ANOMALY_SETS, AnomalyFiles, AnomalySpec
from toa.data.files import DatasetNotFoundError, checksum, joint_checksum, locate
from toa.data.files import verify as verify_file
from toa.data.scaling import StandardScaler
from toa.data.tables import read_labels, read_values


class LabelledSeries(NamedTuple):
    """Values of the files: train (T, C), test (S, C), and whether each test step is anomalous (S,)."""

    train: Float64[np.ndarray, "t c"]
    test: Float64[np.ndarray, "s c"]
    labels: Bool[np.ndarray, " s"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class AnomalyData:
    """A dataset standardised by its train rows, on a device, with the facts that a record needs.

    Args:
        checksum: Sha256 over the sha256 of each unpacked file.
    """

    name: str
    spec: AnomalySpec | None
    train: Float[Tensor, "t c"]
    test: Float[Tensor, "s c"]
    labels: Bool[np.ndarray, " s"]
    scaler: StandardScaler
    checksum: str


def locate_anomaly(spec: AnomalySpec, data_dir: str | Path | None = None) -> tuple[AnomalyFiles, list[Path]]:
    """The first complete layout of a dataset, and the paths of its files; raises DatasetNotFoundError without one."""
    for files in spec.layouts:
        with suppress(DatasetNotFoundError):
            return files, [locate(file, data_dir) for file in files]
    # raises, because no layout is complete
    files = spec.served or spec.layouts[0]
    return files, [locate(file, data_dir) for file in files]


def read_anomaly(spec: AnomalySpec, files: AnomalyFiles, paths: list[Path]) -> LabelledSeries:
    """Read a dataset of the catalogue and check its sizes and its share of anomalies."""
    series = _read(paths, spec.name, fill=spec.fill, index_column=spec.index_column, label_column=len(files) == 2)
    want = (spec.train_rows, spec.test_rows, spec.channels)
    sizes = (len(series.train), len(series.test), series.train.shape[1])
    ratio = float(series.labels.mean())
    if want != sizes or abs(ratio - spec.label_ratio) > 1e-4:
        raise ArgumentError(
            f"dataset {spec.name!r}",
            f"have {want[0]} train rows, {want[1]} test rows, {want[2]} channels and {spec.label_ratio:.2%} anomalous "
            "steps",
            f"{sizes[0]}, {sizes[1]}, {sizes[2]} and {ratio:.2%} in {paths[0].parent}",
            f"get the official files from {spec.source}, or load your own files by their paths",
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
        dataset: Name in the catalogue, or path of a train file (npy, csv or txt).
        length: Rows per window; both series must have at least one window.
        test_file: File of the test series, if `dataset` is a file.
        label_file: File with a label for each test step, if `dataset` is a file.
        data_dir: Folder to search before $TOA_DATA and the user's cache.
        verify: Whether files of the catalogue must have the known checksums.
        fill: How to fill missing values in a user's files, see `read_values`.
        index_column: Whether to drop the first column of a user's csv files.
        label_column: Whether the last column of a user's files is the label; then there is no `label_file`.
        allow_constant: Leave channels that are constant in the train rows unscaled instead of raising an error.
    """
    check_own_files(dataset, test_file, label_file, label_column=label_column)
    spec = ANOMALY_SETS[dataset] if isinstance(dataset, str) and dataset in ANOMALY_SETS else None
    if spec is not None:
        name = spec.name
        files, paths = locate_anomaly(spec, data_dir)
        sums = [verify_file(path, file) if verify else checksum(path) for file, path in zip(files, paths, strict=True)]
        series = read_anomaly(spec, files, paths)
    else:
        name = Path(dataset).name
        paths = own_files(dataset, test_file, label_file, label_column=label_column)
        series = _read(paths, name, fill=fill, index_column=index_column, label_column=label_column)
        sums = [checksum(path) for path in paths]
    for part, values in (("train", series.train), ("test", series.test)):
        if len(values) < length:
            raise ArgumentError(
                f"{part} series of {name}", f"have a window of {length} rows", len(values), "shorten it"
            )
    scaler = StandardScaler.fit(series.train, allow_constant=allow_constant, name=name)
    train, test = (
        torch.from_numpy(scaler.transform(values).astype(np.float32)).to(device)
        for values in (series.train, series.test)
    )
    known = joint_checksum(sums)
    return AnomalyData(
        name=name, spec=spec, train=train, test=test, labels=series.labels, scaler=scaler, checksum=known
    )


def own_files(
    dataset: str | Path, test_file: str | Path | None, label_file: str | Path | None, *, label_column: bool
) -> list[Path]:
    """Files of a user's dataset: train, test and labels."""
    given = (dataset, test_file, test_file if label_column else label_file)
    return [Path(path).expanduser() for path in given if path]


def check_own_files(
    dataset: str | Path, test_file: str | Path | None, label_file: str | Path | None, *, label_column: bool
) -> None:
    """Raise ValueError for files given together with a dataset name, and for a train file without test and labels."""
    in_catalogue = isinstance(dataset, str) and dataset in ANOMALY_SETS
    if not in_catalogue and isinstance(dataset, str) and not Path(dataset).suffix:
        # not a path: the error of the catalogue lists its names
        _ = ANOMALY_SETS[dataset]
    for name, file in (("test_file", test_file), ("label_file", label_file)):
        wanted = not in_catalogue and not (name == "label_file" and label_column)
        if file and not wanted:
            beside = f"dataset {dataset!r}" if in_catalogue else "label_column=True"
            raise ValueError(f"{name} goes with a train file of your own, got it beside {beside}; leave it out.")
        if not file and wanted:
            raise ArgumentError(name, f"be given with a train file of your own, {dataset}", "none")
    if in_catalogue and label_column:
        raise ValueError(f"label_column goes with a train file of your own, got dataset {dataset!r}; leave it out.")


def _read(paths: list[Path], name: str, *, fill: str | None, index_column: bool, label_column: bool) -> LabelledSeries:
    """Train and test values of the first two files, labels of the last."""
    train, test = (
        read_values(path, fill=fill, index_column=index_column, label_column=label_column) for path in paths[:2]
    )
    labels = read_labels(paths[-1], index_column=index_column, label_column=label_column)
    if train.shape[1] != test.shape[1]:
        raise ArgumentError(f"test series of {name}", f"have {train.shape[1]} channels, as train", test.shape[1])
    if len(labels) != len(test):
        raise ArgumentError(f"labels of {name}", f"be one for each of the {len(test)} test rows", len(labels))
    return LabelledSeries(train=train, test=test, labels=labels)
