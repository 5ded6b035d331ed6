"""Labelled series of different lengths as one padded tensor; splitting and standardising them.

Alphabet: n cases, L length of the longest, l length of one, C channels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float32, Int
from torch import Tensor

from toa._checks import check_fraction
from toa.data.panel import Values
from toa.data.splits import StandardScaler
from toa.data.windows import epoch_order

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
        raise ValueError(
            f"labels must have a class with two cases, one of them for validation, got {len(kinds)} cases of "
            f"{len(np.unique(kinds))} classes; add cases, or use protocol tslib-uea, which validates on TEST."
        )
    kept = np.setdiff1d(np.arange(len(kinds)), held)
    return kept.tolist(), sorted(held)


def fold_numbers(labels: Sequence[int], folds: int, seed: int) -> Int[np.ndarray, " n"]:
    """The fold in which each case is held out, stratified by class; fewer folds if a class has fewer cases."""
    # imported on use: scikit-learn takes long to import
    from sklearn.model_selection import StratifiedKFold

    kinds, counts = np.unique(labels, return_counts=True)
    if counts.min() < 2:
        raise ValueError(
            f"labels must have two cases of each class for folds, got one of class {kinds[counts.argmin()]}; add "
            "cases, or use evaluation=strict."
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
        raise ValueError(f"{name} must be finite, got {int(np.isinf(case).sum())} infinite values; remove them.")
    missing = np.isnan(case)
    if not missing.any():
        return case
    if missing.all(0).any():
        channel = int(missing.all(0).argmax())
        raise ValueError(
            f"{name} must have a value in each channel, got none in channel {channel + 1}; drop the case or channel."
        )
    filled = pd.DataFrame(case).interpolate("linear", limit_direction="both")
    return filled.to_numpy(dtype=np.float64)


def fit_scaler(cases: Sequence[Values], name: str) -> StandardScaler:
    """Mean and population std per channel over all steps; a constant channel stays unscaled."""
    return StandardScaler.fit(np.concatenate(cases), allow_constant=True, name=name)


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
