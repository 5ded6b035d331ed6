"""Members of a classifier, behind one interface.

    validated = KernelMember().fit(training)        # or FeatureMember("statistics"), NetworkMember(…)
    validated.held_out                              # probabilities of cases that it was not fitted to
    validated.fitted.probabilities(cases)           # (n, K)

A new linear member is one class with `fit`, which returns a `FittedRidge`, and one line in
`toa.estimators.classifier_fitting`. Both it and what it returns are frozen values.

Alphabet: n cases, C channels, l length of a case, K classes, F folds.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from toa.data.panel import Panel, Values
from toa.data.scaling import StandardScaler, check_standardised
from toa.estimators.effort import Effort
from toa.estimators.kernels import CaseArray, align_cases
from toa.estimators.probabilities import Codes, Folds, HeldOut, Probabilities, log_loss
from toa.training.loop import TrainingStopped


@dataclass(frozen=True, kw_only=True, eq=False)
class ScaledCases:
    """Standardised cases of any length.

    Attributes:
        values: Each case (l, C).
        length: Longest case that can be classified.
        padded: Whether shorter cases are padded in `series`, not stretched.
    """

    values: Sequence[Values]
    length: int
    padded: bool

    @classmethod
    def read(cls, panel: Panel, scaler: StandardScaler, *, length: int, padded: bool) -> "ScaledCases":
        """Standardise the cases of a panel; raises ValueError for values far from those of fit."""
        values = [
            check_standardised(scaler.transform(case), panel.columns, f"case {index + 1} of X")
            for index, case in enumerate(panel.values)
        ]
        return cls(values=values, length=length, padded=padded)

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def series(self) -> CaseArray:
        """All cases with one length, as one array."""
        return align_cases(self.values, self.length, pad=self.padded)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CaseTraining:
    """Labelled cases that members are fitted to.

    Attributes:
        codes: Class of each case.
        classes: Number of classes.
        folds: Fold of each case, whose predictions measure what the other cases choose.
    """

    cases: ScaledCases
    codes: Codes
    classes: int
    folds: Folds
    seed: int
    effort: Effort


class FittedMember(Protocol):
    """A member that can classify."""

    @abstractmethod
    def probabilities(self, cases: ScaledCases) -> Probabilities:
        """Probabilities (n, K) of the classes."""


@dataclass(frozen=True, slots=True, eq=False)
class ValidatedMember:
    """A fitted member, and its probabilities of cases that it was not fitted to; None if all were needed to fit it.

    Attributes:
        stopped: The signal that ended its training early, with its best state so far.
    """

    fitted: FittedMember
    held_out: HeldOut | None
    stopped: TrainingStopped | None = None

    def loss(self, codes: Codes) -> float:
        """Log loss of cases that were left out one by one; -inf if none was."""
        return -math.inf if self.held_out is None else log_loss(self.held_out[-1], codes)


class Member(Protocol):
    """A member that can be fitted."""

    @abstractmethod
    def fit(self, training: CaseTraining) -> ValidatedMember:
        """Fit to all cases, and predict each case without it."""
