"""What a detector fits by: the parameters of `AnomalyDetector` that are not about reading tables, checked."""

from dataclasses import dataclass

from toa.estimators.effort import Effort
from toa.estimators.reconstruction import ReconstructionSpec
from toa.estimators.thresholds import ThresholdRule

# model that combines all methods
COMBINED = "auto"
# largest standardised value that methods of windows read in a combination
LARGEST = 5.0
# the same in files that do not name it
OLDER_LARGEST = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class DetectorSettings:
    """How a detector is fitted.

    Attributes:
        model: "auto" for the combination, "toa" for the network alone, or the name of a baseline.
        window: Rows per window; None chooses by data size.
        validation_share: Share held out at the end of each series.
    """

    model: str
    window: int | None
    validation_share: float
    effort: Effort
    seed: int
    threshold: ThresholdRule
    network: ReconstructionSpec

    @property
    def combines(self) -> bool:
        """Whether the score is a combination."""
        return self.model == COMBINED

    @property
    def largest(self) -> float | None:
        """Largest standardised value that methods of windows read; None for all values."""
        return LARGEST if self.combines else None
