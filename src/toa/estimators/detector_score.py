"""The score of a detector: that of one fitted method, or the combination of several.

    score = DetectorScore(model="auto", window=100, baselines=baselines, network=network, combination=combination)
    score.parts(series)                # (T, C): the part of each channel in the score of each row
    score.of_rows(series)              # (T,)
    score.of_rows(series, ends=True)   # of the rows after the first window, as they arrive

Alphabet: T rows, C channels.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from toa._checks import check_finite
from toa.estimators.alarms import Evidence
from toa.estimators.architecture import NETWORK
from toa.estimators.combination import Combination
from toa.estimators.reconstruction import FittedReconstruction
from toa.estimators.scoring import Baseline, Rows, Score, Scorer, Series, window_mean
from toa.estimators.thresholds import NormalScores, spread_pieces

# ending of the name of a method whose score is the mean over a window
MEAN = " mean"
# methods whose score of a row depends on the rows around it
WINDOWED = frozenset((NETWORK, "sub-sequence pca"))
# a row stands out if it is as unusual as one normal row in a thousand, on the scale of a combination
_RARE = math.log(1_000.0)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DetectorScore:
    """How the rows of a standardised series are scored.

    Attributes:
        model: "auto" for the combination; else the name of the only method, which may end in " mean".
        window: Rows per window.
        baselines: The fitted baselines by name; not all of them have a weight.
        network: The network; None for none.
        combination: The chosen methods; None for one method.
    """

    model: str
    window: int
    baselines: Mapping[str, Baseline]
    network: FittedReconstruction | None = None
    combination: Combination | None = None

    @property
    def scorers(self) -> dict[str, Scorer]:
        """All methods that were fitted, by name."""
        scorers: dict[str, Scorer] = dict(self.baselines)
        if self.network is not None:
            scorers[NETWORK] = self.network
        return scorers

    @property
    def weights(self) -> dict[str, float]:
        """Weight of each method."""
        return {self.model: 1.0} if self.combination is None else self.combination.weights

    def member(self, name: str, series: Series, *, ends: bool = False) -> Rows:
        """Parts of the channels in the score of a method; `ends` scores rows after the first window by earlier ones."""
        scorer = self.scorers[name]
        return scorer.ends(series, self.window) if ends else scorer.rows(series)

    def parts(self, series: Series, *, ends: bool = False) -> Rows:
        """Parts of the channels in the score."""
        return self._parts(series, ends=ends, channels=True)

    def of_rows(self, series: Series, *, ends: bool = False) -> Score:
        """The score of each row; takes less memory than the parts."""
        return self._parts(series, ends=ends, channels=False)[:, 0]

    def evidence(self, series: Series) -> Evidence | None:
        """How unusual each row is by itself; None if the score has nothing of the rows around it."""
        if self.combination is not None:
            rows = self.combination.of_rows_alone(lambda name: self.member(name, series))
            return Evidence(rows, _RARE)
        if self.model.endswith(MEAN):
            return Evidence(self.member(self.model.removesuffix(MEAN), series).sum(1))
        return Evidence(self.of_rows(series)) if self.model in WINDOWED else None

    def of_normal_rows(self, series: Sequence[Series], context: int) -> NormalScores:
        """Scores of series, and of pieces of them as their rows arrive."""
        rows = [self.of_rows(values) for values in series]
        pieces = spread_pieces(series, context)
        return NormalScores(rows=rows, stream=[self.of_rows(piece, ends=True)[self.window // 2 :] for piece in pieces])

    def _parts(self, series: Series, *, ends: bool, channels: bool) -> Rows:
        """Parts of the channels in the score, or without `channels` one column; raises ValueError if not finite."""
        parts = self._unchecked_parts(series, ends=ends, channels=channels)
        check_finite("scores", torch.from_numpy(parts))
        return parts

    def _unchecked_parts(self, series: Series, *, ends: bool, channels: bool) -> Rows:
        """Parts of the channels in the score, or without `channels` one column."""

        def member(name: str) -> Rows:
            part = self.member(name, series, ends=ends)
            return part if channels else part.sum(1, keepdims=True)

        if self.combination is not None:
            return self.combination.parts(member, self.window, later=not ends)
        part = member(self.model.removesuffix(MEAN))
        half = self.window // 2
        return window_mean(part, half, 0 if ends else half) if self.model.endswith(MEAN) else part
