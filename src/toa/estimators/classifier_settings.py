"""What a classifier fits by, and what it knows of the cases of its fit.

Alphabet: n cases, C channels, K classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from toa.data.frequency import Frequency
from toa.estimators.effort import Effort


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseNetworkSpec:
    """How networks are built and trained, see the parameters of `toa.Classifier`."""

    backbone: str | None
    attention: str | Mapping[str, Any] | None
    settings: Mapping[str, Any] | None
    epochs: int | None
    batch_size: int | None
    learning_rate: float
    patience: int
    seed: int
    device: str
    progress: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassifierSettings:
    """How a classifier is fitted.

    Attributes:
        alone: Whether the classifier is the network alone.
        validation_share: Share of the cases that each model of the network is validated on.
    """

    alone: bool
    effort: Effort
    seed: int
    validation_share: float
    network: CaseNetworkSpec


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CaseSchema:
    """What later cases must be like, and what they are mapped to.

    Attributes:
        columns: Channels.
        classes: Labels in the order of the columns of probabilities.
        length: Longest case that can be classified.
        lengths: Shortest and longest case of fit.
        freq: Frequency of the times, or None.
        steps: Columns of a table with one case per row; empty for other data.
        day_first: Whether the day comes first in dates.
        count: Number of cases of fit; 0 in older files.
    """

    columns: tuple[str, ...]
    classes: np.ndarray
    length: int
    lengths: tuple[int, int]
    freq: Frequency | None
    steps: Sequence[str]
    day_first: bool | None
    count: int
