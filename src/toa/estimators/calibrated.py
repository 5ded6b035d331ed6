"""The weighted mean of methods with its intervals and quantiles: all that a forecast of a fitted forecaster needs.

    choice.combine(histories, others, owners)    # forecasts with intervals and quantiles
    choice.add_series(scale, level, histories)   # with series that fit has not seen

A `Choice` is the `Ensemble` of `toa.estimators.choice`, calibrated by `toa.estimators.intervals.calibrate`.

Alphabet: P horizon, C columns, Q levels, S series, W windows, N one per window and column.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from toa._checks import ArgumentError, check_shape, check_shares
from toa._limits import shorten
from toa.estimators.architecture import NETWORK
from toa.estimators.baselines import REGRESSIONS
from toa.estimators.choice import Ensemble
from toa.estimators.error_effects import FEATURES, ErrorEffects
from toa.estimators.error_scale import KINDS, LEARNED, ErrorScale
from toa.estimators.families import FAMILIES
from toa.estimators.files import tensors_under
from toa.estimators.lag_methods import history_rows
from toa.estimators.methods import FittedMethod
from toa.estimators.saved_types import check_errors
from toa.estimators.units import Prediction

# arrays of a choice in a file
_ARRAYS = ("width", "offsets", "counts")
# arrays of what its errors depend on
_EFFECTS = ("coefficients", "centre")


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Weights of the methods, and what intervals and quantiles need.

    Attributes:
        error_scale: Scale of the errors of each forecast: the seasonal error of the series and column, at least a small
            number, times a factor by the rows before the forecast.
        width: Half of the interval (P, C), in scales; None for no interval.
        offsets: Quantiles minus forecast (P, Q, C), in scales; None without quantiles.
        counts: Columns that hold counts, 0, 1, 2, …: their forecasts are at least 0.
    """

    ensemble: Ensemble
    error_scale: ErrorScale
    width: Float64[np.ndarray, "p c"] | None
    offsets: Float64[np.ndarray, "p q c"] | None
    counts: Bool[np.ndarray, " c"]

    @property
    def scale(self) -> Float64[np.ndarray, "s c"]:
        """Seasonal error of each series and column (S, C), at least a small number."""
        return self.error_scale.scale

    @property
    def rows_read(self) -> int:
        """Rows that the methods of past values and, if there are any, the intervals and quantiles read."""
        bounds = 0 if self.width is None and self.offsets is None else self.error_scale.rows_read
        rows = max(self.ensemble.rows_read, bounds)
        return min(rows, history_rows(self.ensemble.season, self.ensemble.horizon))

    def combine(
        self,
        histories: Sequence[Float64[np.ndarray, " _"]],
        others: Mapping[str, Float64[np.ndarray, "n p"]],
        owners: Tensor,
    ) -> Prediction:
        """Forecasts after histories, one per window and column; `owners` are the series of the windows.

        `others` has the forecasts of the methods that do not read the histories alone.
        """
        forecast = self.ensemble.forecast(histories, others)
        point = forecast.mean.reshape(len(owners), len(self.counts), -1).swapaxes(1, 2)
        scale = self.error_scale.at(histories, owners.numpy(), forecast.spread)  # (W, P, C)
        parts: dict[str, np.ndarray] = {"forecast": point}
        if self.offsets is not None:
            parts["quantiles"] = point[:, :, None] + self.offsets * scale[:, :, None]
        if self.width is not None:
            parts |= {"lower": point - self.width * scale, "upper": point + self.width * scale}
        floor = np.where(self.counts, 0.0, -np.inf)
        return {name: torch.from_numpy(np.maximum(part, floor)) for name, part in parts.items()}

    def add_series(
        self,
        scale: Float64[np.ndarray, "s c"],
        level: Float64[np.ndarray, "all c"],
        histories: Sequence[Float64[np.ndarray, " _"]],
    ) -> "Choice":
        """The choice with further series, of these seasonal errors; `level` is the size of the mean of all series."""
        fitted, new = np.split(level, [len(self.scale)])
        scale = np.where(np.isnan(scale), new * usual_share(self.scale, fitted), scale)
        error_scale = self.error_scale.add_series(np.maximum(scale, self.scale.min()), histories)
        wider: Choice = replace(self, error_scale=error_scale)
        return wider

    def check(
        self, series: int, columns: int, horizon: int, levels: int, season: int, panel_methods: Iterable[str] = ()
    ) -> None:
        """Raise ValueError if a loaded choice has other sizes than its forecaster, or weights that are no shares."""
        arrays: dict[str, Any] = {"scale": self.scale, "reference": self.error_scale.reference, "counts": self.counts}
        arrays |= {name: part for name in ("width", "offsets") if (part := getattr(self, name)) is not None}
        shapes = {"scale": (series, columns), "reference": (series, columns), "counts": (columns,)}
        shapes |= {"width": (horizon, columns), "offsets": (horizon, levels, columns)}
        if self.error_scale.effects is not None:
            arrays |= {name: getattr(self.error_scale.effects, name) for name in _EFFECTS}
            shapes |= dict.fromkeys(_EFFECTS, (len(FEATURES),))
        for name, part in arrays.items():
            check_shape(f"choice.{name}", part, str(shapes[name]), shapes[name])
        check_shares(self.ensemble.weights)
        check_errors(self.ensemble.errors)
        steps = (self.ensemble.horizon, self.ensemble.season)
        if steps != (horizon, season):
            raise ArgumentError("choice", f"have horizon and season {(horizon, season)}", steps)
        others = dict.fromkeys((NETWORK, *REGRESSIONS, *panel_methods), np.zeros((columns, horizon)))
        forecast = self.combine([np.zeros(2)] * columns, others, torch.tensor([0]))["forecast"]
        check_shape("forecast", forecast, "(W, P, C)", (1, horizon, columns))

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON values to save."""
        ensemble = self.ensemble
        facts: dict[str, Any] = {name: getattr(ensemble, name) for name in ("season", "horizon", "measure", "seasonal")}
        facts |= {
            "weights": dict(ensemble.weights),
            "errors": dict(ensemble.errors),
            "error_scale": self.error_scale.kind,
        }
        arrays = {name: part for name in _ARRAYS if (part := getattr(self, name)) is not None}
        # a file from which one was removed is refused: without its width a forecast would have no interval
        facts["arrays"] = list(arrays)
        arrays |= {"scale": self.scale, "reference": self.error_scale.reference}
        if self.error_scale.effects is not None:
            arrays |= {name: getattr(self.error_scale.effects, name) for name in _EFFECTS}
        # copies: a file has no two arrays that share memory
        tensors = {name: torch.from_numpy(np.array(part, order="C")) for name, part in arrays.items()}
        for key, family in FAMILIES.items():
            parts, state = family.save(ensemble.fitted)
            tensors |= {f"{key}.{name}": part for name, part in parts.items()}
            facts |= {} if state is None else {key: state}
        return tensors, facts

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> "Choice":
        """From the result of `state`."""
        arrays: dict[str, Any] = {name: tensors[name].cpu().numpy() if name in tensors else None for name in _ARRAYS}
        present = [name for name in _ARRAYS if name in tensors]
        # older files do not list them
        if facts.get("arrays", present) != present:
            raise ArgumentError("arrays of the choice", f"be {shorten(facts['arrays'])}, as the file lists", present)
        # older files hold no kind and no reference
        kind = facts.get("error_scale", KINDS[0])
        scale = tensors["scale"].cpu().numpy()
        reference = tensors["reference"].cpu().numpy() if "reference" in tensors else scale
        effects = None
        if kind == LEARNED:
            effects = ErrorEffects(**{name: tensors[name].double().cpu().numpy() for name in _EFFECTS})
        error_scale = ErrorScale(
            kind=kind,
            scale=scale,
            reference=reference,
            season=facts["season"],
            horizon=facts["horizon"],
            effects=effects,
        )
        apart = ("error_scale", "arrays", *FAMILIES)
        rest = {name: value for name, value in facts.items() if name not in apart}
        fitted: dict[str, FittedMethod] = {}
        for key, family in FAMILIES.items():
            if key in facts:
                fitted |= family.load(tensors_under(tensors, f"{key}."), facts[key], facts["season"], facts["horizon"])
        return cls(ensemble=Ensemble(**rest, fitted=fitted), error_scale=error_scale, **arrays)


def usual_share(scale: np.ndarray, level: np.ndarray) -> float:
    """The usual scale of a series, as a share of its level."""
    usable = (scale > 0) & (level > 0)
    return float(np.median(scale[usable] / level[usable])) if usable.any() else 0.0
