"""load_classification: a dataset of the UEA archive by name, or a user's .ts files, as padded cases of three splits.

Alphabet: n cases, L length of the longest, l length of one, C channels.
"""

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from importlib.resources import files
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float32, Int
from torch import Tensor

from toa._checks import Argument, ArgumentError, MissingFileError, check_at_least, check_choice, check_fraction
from toa.data.catalogue import CLASSIFICATION_SETS, UEA_ARCHIVE, ClassificationSpec
from toa.data.files import DatasetNotFoundError, checksum, data_folders, find_file, joint_checksum
from toa.data.panel import Panel, Values
from toa.data.scaling import StandardScaler
from toa.data.tables import read_ts
from toa.data.windows import epoch_order

EvaluationSplit = Literal["strict", "folds", "tslib-uea"]
EVALUATIONS = ("strict", "folds", "tslib-uea")
VALIDATION_SHARE = 0.2
# "folds": training cases below which a set is validated by folds, and the number of folds
FOLDS_BELOW = 60
FOLDS = 5
# the rule of `hold_out`, as records state it
HOLD_OUT_RULE = "of a class with n cases round(share * n), at least 1 where n >= 2, none where n = 1"


class CaseBatch(NamedTuple):
    """Series (B, L, C), their classes (B,), and a mask (B, L) that is True for real steps; None without padding."""

    series: Tensor
    labels: Tensor
    mask: Tensor | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Cases:
    """Labelled cases on the training device, padded at the end with zeros.

    Args:
        labels: Class (n,), counted from 0.
        mask: (n, L), True for real steps; None without padding.
    """

    series: Float32[Tensor, "n length c"]
    labels: Int[Tensor, " n"]
    mask: Bool[Tensor, "n length"] | None = None

    def __len__(self) -> int:
        return len(self.series)

    def epoch_order(self, seed: int, epoch: int) -> Int[Tensor, " n"]:
        """The random order of an epoch; see `toa.data.windows.epoch_order`."""
        return epoch_order(len(self), seed, epoch).to(self.series.device)

    def batch(self, index: Int[Tensor, " b"]) -> CaseBatch:
        """The cases with these indices."""
        index = index.to(self.series.device)
        return CaseBatch(self.series[index], self.labels[index], None if self.mask is None else self.mask[index])


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FoldCases:
    """Cases of K models that train together: `rows` (r, K) has the index of one case for each of them."""

    cases: Cases
    rows: Int[Tensor, "r k"]

    def __len__(self) -> int:
        return len(self.rows)

    def epoch_order(self, seed: int, epoch: int) -> Int[Tensor, " r"]:
        """The random order of an epoch; see `toa.data.windows.epoch_order`."""
        return epoch_order(len(self), seed, epoch).to(self.rows.device)

    def batch(self, index: Int[Tensor, " b"]) -> CaseBatch:
        """The rows with these indices: series (B, K, L, C), classes (B, K) and a mask (B, K, L)."""
        return self.cases.batch(self.rows[index.to(self.rows.device)])


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ClassificationData:
    """Standardised and padded cases of the three splits, with the facts that a record needs.

    Args:
        classes: Names of the classes, in the order of the labels.
        length: Steps L of every padded case.
        scaler: Scaler of all splits; None if each split has its own statistics.
        facts: Named choices and counts for the record.
        folds: Fold of each training case. Then `train` and `val` are the same cases, and there is one model per fold,
            which is not trained on the cases of its fold. None if the validation cases are held out of `train`.
    """

    name: str
    spec: ClassificationSpec | None
    classes: tuple[str, ...]
    channels: int
    length: int
    train: Cases
    val: Cases
    test: Cases
    scaler: StandardScaler | None
    checksum: str
    facts: Mapping[str, object]
    folds: torch.Tensor | None = None


def load_classification(
    dataset: str | Path,
    *,
    evaluation: EvaluationSplit = "strict",
    seed: int = 0,
    min_length: int = 1,
    data_dir: str | Path | None = None,
    device: str | torch.device = "cpu",
    download: bool = True,
) -> ClassificationData:
    """Read, check, split, fill missing values, standardise and pad.

    | evaluation     | strict                                      | tslib-uea                        |
    | -------------- | ------------------------------------------- | -------------------------------- |
    | validation     | 20 % of TRAIN, stratified by class          | TEST itself                      |
    | statistics     | of the training cases, for all three splits | of each split                    |
    | EthanolConcentration | like any other dataset                | an extra step for each case      |

    "folds" is "strict" for a set with at least 60 training cases. A smaller set would hold out too few cases to decide
    anything, so it is split into five folds, or as many as the smallest class has cases, stratified by class: each case
    is predicted by a model that was not trained on it. The statistics are then those of TRAIN.

    All interpolate missing values within a case, and pad cases to the longest of TRAIN and TEST. Classes are those of
    TRAIN.

    Args:
        dataset: A name of `CLASSIFICATION_SETS`, or the path of a file NAME_TRAIN.ts beside NAME_TEST.ts.
        evaluation: "strict", "folds", or "tslib-uea" as Time-Series-Library and its peers do.
        min_length: Minimum number of steps of the padded cases.
        data_dir: Folder to search before $TOA_DATA, the user's cache and the datasets inside aeon.
    """
    check_choice("evaluation", evaluation, EVALUATIONS)
    check_at_least("min_length", min_length, 1)
    spec, paths = _resolve(dataset, data_dir, download)
    name = paths[0].name.split("_TRAIN")[0] if spec is None else spec.name
    panels = train_panel, test_panel = read_classification(spec, paths)
    classes = _check_classes(name, train_panel, test_panel)
    train, test = (
        [interpolate_missing(case, f"case {row} of {split} of {name}") for row, case in enumerate(panel.values, 1)]
        for panel, split in zip(panels, ("TRAIN", "TEST"), strict=True)
    )
    train_labels, test_labels = ([classes.index(label) for label in _labels(panel)] for panel in panels)
    length = max(min_length, *map(len, train), *map(len, test))
    masked = any(len(case) != length for case in (*train, *test))
    pad = partial(pad_cases, length=length, masked=masked, device=device)
    missing = sum(int(np.isnan(case).sum()) for panel in panels for case in panel.values)
    facts: dict[str, object] = {"evaluation": evaluation, "missing_values": missing, "length": length}
    scaler: StandardScaler | None = None
    folds: torch.Tensor | None = None
    if evaluation == "tslib-uea":
        train, test = standardise_as_peers(train), standardise_as_peers(test)
        if name == "EthanolConcentration":
            train, test = ([scale_by_channels(case) for case in part] for part in (train, test))
        split_train, split_test = pad(train, train_labels), pad(test, test_labels)
        split_val = split_test
        facts |= {"validation": "TEST", "statistics": "each split's own"}
    else:
        kept = held = list(range(len(train)))
        if evaluation == "folds" and len(train) < FOLDS_BELOW:
            folds = torch.from_numpy(fold_numbers(train_labels, FOLDS, seed)).to(device)
            facts |= {"validation": f"{int(folds.max()) + 1} folds of TRAIN", "statistics": "of TRAIN"}
        else:
            kept, held = hold_out(train_labels, VALIDATION_SHARE, seed)
            facts |= {"validation": "held out of TRAIN", "statistics": "of what is trained on", "rule": HOLD_OUT_RULE}
        scaler = StandardScaler.fit(np.concatenate([train[i] for i in kept]), allow_constant=True, name=name)
        train, test = ([scaler.transform(case) for case in part] for part in (train, test))
        split_train, split_val = (
            pad([train[i] for i in chosen], [train_labels[i] for i in chosen]) for chosen in (kept, held)
        )
        split_test = pad(test, test_labels)
        counts = np.bincount([train_labels[i] for i in held], minlength=len(classes)).tolist()
        facts |= {
            "held_out": dict(zip(classes, counts, strict=True)),
            "not_validated": [kind for kind, count in zip(classes, counts, strict=True) if not count],
        }
    return ClassificationData(
        name=name,
        spec=spec,
        classes=classes,
        channels=len(train_panel.columns),
        length=length,
        train=split_train,
        val=split_val,
        test=split_test,
        scaler=scaler,
        checksum=joint_checksum([checksum(path) for path in paths]),
        facts=facts,
        folds=folds,
    )


def _labels(part: Panel) -> list[str]:
    assert part.labels is not None
    return part.labels.tolist()


def _check_classes(name: str, train: Panel, test: Panel) -> tuple[str, ...]:
    """Names of the classes in the training cases, after checking that the test cases fit them."""
    if len(train.columns) != len(test.columns):
        raise ArgumentError(
            f"TRAIN and TEST of {name}",
            "have as many channels",
            f"{len(train.columns)} and {len(test.columns)}",
            "are the files of one dataset?",
        )
    classes = tuple(sorted(set(_labels(train))))
    unknown = sorted(set(_labels(test)) - set(classes))
    if unknown:
        raise ArgumentError(
            f"TEST of {name}",
            "have only classes of TRAIN",
            f"{', '.join(map(repr, unknown))} besides "
            f"{', '.join(map(repr, classes[:8]))}{' ...' if len(classes) > 8 else ''}",
            "no model can learn them: move some of their cases to TRAIN, or drop them",
        )
    if len(classes) < 2:
        raise ArgumentError(f"TRAIN of {name}", "have at least two classes", f"only {classes[0]!r}")
    return classes


def read_classification(spec: ClassificationSpec | None, paths: Sequence[Path]) -> tuple[Panel, Panel]:
    """Training and test cases of a dataset, checked against the sizes in the catalogue if it is there."""
    train, test = (read_ts(path) for path in paths)
    if spec is None:
        return train, test
    want = {"channels": spec.channels, "classes": spec.classes}
    found = {"channels": len(train.columns), "classes": len(set(_labels(train)))}
    if spec.verified:
        want |= {"train cases": spec.train, "test cases": spec.test, "steps": spec.length}
        found |= {"train cases": len(train), "test cases": len(test), "steps": max(*train.lengths, *test.lengths)}
    wrong = [f"{found[key]} {key} instead of {want[key]}" for key in want if found[key] != want[key]]
    if wrong:
        raise ArgumentError(
            f"dataset {spec.name!r}",
            "have the archive's sizes",
            f"{', '.join(wrong)} in {paths[0].parent}",
            f"get the official files from {UEA_ARCHIVE}, or load your own files by their path",
        )
    return train, test


def _resolve(
    dataset: str | Path, data_dir: str | Path | None, download: bool
) -> tuple[ClassificationSpec | None, tuple[Path, Path]]:
    if isinstance(dataset, str) and dataset in CLASSIFICATION_SETS:
        spec = CLASSIFICATION_SETS[dataset]
        return spec, locate_classification(spec, data_dir, download=download)
    path = Path(dataset).expanduser()
    if isinstance(dataset, str) and not path.name.endswith((".ts", ".ts.gz")):
        # neither: the error of the catalogue lists its names
        return CLASSIFICATION_SETS[dataset], (path, path)
    if "_TRAIN.ts" not in path.name:
        raise ArgumentError("dataset", "be a file NAME_TRAIN.ts beside NAME_TEST.ts, or a name", path)
    pair = own_pair(path)
    for file in pair:
        if not file.is_file():
            rule = f" must be two files NAME_TRAIN.ts and NAME_TEST.ts, no such file: {file}."
            raise MissingFileError(Argument("dataset"), rule)
    return None, pair


def own_pair(path: Path) -> tuple[Path, Path]:
    """A user's training file and the test file beside it."""
    return path, path.with_name(path.name.replace("_TRAIN.ts", "_TEST.ts"))


def locate_classification(
    spec: ClassificationSpec, data_dir: str | Path | None = None, *, download: bool = False
) -> tuple[Path, Path]:
    """Paths of TRAIN and TEST, plain or gzipped: in a data folder, inside aeon, or downloaded from the archive.

    Raises DatasetNotFoundError if they are not found and `download` is False, ConnectionError if a download fails.
    """
    folders = data_folders(data_dir)
    # aeon's wheel has some datasets; aeon itself is slow to import
    for folder in (*folders, Path(str(files("aeon"))) / "datasets" / "data"):
        train, test = (find_file(folder, path) for path in spec.files())
        if train is not None and test is not None:
            return train, test
    if download:
        return fetch_classification(spec, data_dir)
    raise DatasetNotFoundError(
        f"dataset {spec.name!r} must lie in a data folder as {' and '.join(spec.files())}, found none in "
        f"{', '.join(map(str, folders))}; get it from {UEA_ARCHIVE}, or name its folder with ",
        Argument("data_dir"),
        " or $TOA_DATA.",
    )


def fetch_classification(spec: ClassificationSpec, data_dir: str | Path | None = None) -> tuple[Path, Path]:
    """Download both files with aeon into `data_dir`, else $TOA_DATA, else the user's cache."""
    from aeon.datasets import load_classification as load_from_archive

    folder = data_folders(data_dir)[0]
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
        try:
            load_from_archive(spec.name, split="train", extract_path=scratch)
        except (OSError, ValueError, HTTPException) as error:
            raise ConnectionError(
                f"dataset {spec.name!r} could not be fetched from {UEA_ARCHIVE}: {error}; try again, or save its files "
                f"as {' and '.join(spec.files())} in a folder that $TOA_DATA names."
            ) from error
        downloaded = [Path(scratch) / file for file in spec.files()]
        # the archive sends a web page if it has no such file
        read_classification(spec, downloaded)
        target = folder / spec.name
        target.mkdir(exist_ok=True)
        for path in downloaded:
            shutil.copy2(path, target / f".{path.name}")
            os.replace(target / f".{path.name}", target / path.name)
    return target / downloaded[0].name, target / downloaded[1].name


def pad_cases(
    cases: Sequence[Values], labels: Sequence[int], length: int, *, masked: bool, device: str | torch.device = "cpu"
) -> Cases:
    """Cases (l, C) as one tensor of `length` steps; with `masked`, also the mask of real steps."""
    series = np.zeros((len(cases), length, cases[0].shape[1]), dtype=np.float32)
    for row, case in enumerate(cases):
        series[row, : len(case)] = case
    lengths = torch.tensor([len(case) for case in cases])
    mask = (torch.arange(length) < lengths[:, None]).to(device) if masked else None  # (n, L)
    return Cases(
        series=torch.from_numpy(series).to(device), labels=torch.tensor(labels, dtype=torch.long).to(device), mask=mask
    )


def hold_out(labels: Sequence[int], share: float, seed: int) -> tuple[list[int], list[int]]:
    """Indices of the cases to train on and of those held out, stratified by class; see `HOLD_OUT_RULE`."""
    check_fraction("share", share)
    kinds = np.asarray(labels)
    held: list[int] = []
    for label in np.unique(kinds):
        indices = np.flatnonzero(kinds == label)
        # rounds half up; Python rounds 2.5 to 2
        count = 0 if len(indices) < 2 else max(1, int(share * len(indices) + 0.5))
        held += indices[epoch_order(len(indices), seed, int(label)).numpy()[:count]].tolist()
    if not held:
        raise ArgumentError(
            "labels",
            "have a class with two cases, one of them for validation",
            f"{len(kinds)} cases of {len(np.unique(kinds))} classes",
            "add cases, or use protocol tslib-uea, which validates on TEST",
        )
    kept = np.setdiff1d(np.arange(len(kinds)), held)
    return kept.tolist(), sorted(held)


def fold_numbers(labels: Sequence[int], folds: int, seed: int) -> Int[np.ndarray, " n"]:
    """The fold in which each case is held out, stratified by class; fewer folds if a class has fewer cases."""
    # imported on use: scikit-learn takes long to import
    from sklearn.model_selection import StratifiedKFold

    kinds, counts = np.unique(labels, return_counts=True)
    if counts.min() < 2:
        raise ArgumentError(
            "labels",
            "have two cases of each class for folds",
            f"one of class {kinds[counts.argmin()]}",
            "add cases, or use evaluation=strict",
        )
    numbers = np.zeros(len(labels), dtype=np.int64)
    splitter = StratifiedKFold(min(folds, int(counts.min())), shuffle=True, random_state=seed % 2**32)
    for fold, (_, held) in enumerate(splitter.split(numbers, labels)):
        numbers[held] = fold
    return numbers


def fold_rows(numbers: Int[Tensor, " n"]) -> Int[Tensor, "r k"]:
    """Training cases of each fold's model, column by column: all cases of the other folds.

    A model with fewer cases than another sees some of them twice per epoch.
    """
    kept = [torch.nonzero(numbers != fold)[:, 0] for fold in range(int(numbers.max()) + 1)]
    longest = torch.arange(max(map(len, kept)), device=numbers.device)
    return torch.stack([index[longest % len(index)] for index in kept], dim=1)


def interpolate_missing(case: Values, name: str) -> Values:
    """A case without NaN: linear between neighbours in time, the nearest value at the ends."""
    if np.isinf(case).any():
        raise ArgumentError(name, "be finite", f"{int(np.isinf(case).sum())} infinite values", "remove them")
    missing = np.isnan(case)
    if not missing.any():
        return case
    if missing.all(0).any():
        channel = int(missing.all(0).argmax())
        raise ArgumentError(name, "have values in every channel", f"none in channel {channel + 1}", "drop it")
    filled = pd.DataFrame(case).interpolate("linear", limit_direction="both")
    return filled.to_numpy(dtype=np.float64)


def standardise_as_peers(cases: Sequence[Values]) -> list[Values]:
    """Standardise by the cases' own statistics, sample std plus machine epsilon, as Time-Series-Library does."""
    rows = np.concatenate(cases)
    mean = rows.mean(0)
    std = rows.std(0, ddof=1) if len(rows) > 1 else np.zeros(rows.shape[1])
    return [(case - mean) / (std + np.finfo(np.float64).eps) for case in cases]


def scale_by_channels(case: Values) -> Values:
    """Subtract the mean per channel, divide each step by its std over channels: an extra step of the peers."""
    centred = case - case.mean(0)
    return centred / np.sqrt(centred.var(1, keepdims=True) + 1e-5)
