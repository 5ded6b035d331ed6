"""Train, validation and test rows, by the rules of the field's loaders, and standardisation by the train rows.

Rows are counted from 0 and segments are half-open. In rules with overlap, validation and test start one look-back
early, so that their first target is exactly at the border. Alphabet: L look-back, P horizon.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from toa._checks import Argument, ArgumentError, Name, Phrase, check_at_least, check_choice

T = TypeVar("T", np.ndarray, Tensor)

# a model squares its inputs in float32, whose largest number is 3e38
_LARGEST = 1e18


class Segment(NamedTuple):
    """Rows [start, stop)."""

    start: int
    stop: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start

    def windows(self, lookback: int, horizon: int) -> int:
        """Number of windows at stride 1: rows - L - P + 1."""
        return max(0, self.rows - lookback - horizon + 1)


class Split(NamedTuple):
    """The three segments of a series, each with the look-back of its first target."""

    train: Segment
    val: Segment
    test: Segment


SPLIT_RULES = ("ett-hour", "ett-minute", "ratio", "solar", "pems", "6:2:2")
# shares of train, validation and test of the rules that are only shares
_SHARES = {"ratio": (0.7, 0.1, 0.2), "6:2:2": (0.6, 0.2, 0.2)}


def split_rows(
    rule: str | tuple[float, float, float], rows: int, *, lookback: int, horizon: int, name: str = "the series"
) -> Split:
    """Cut `rows` rows into train, validation and test segments for windows of `lookback` + `horizon` rows.

    `rule` is "ett-hour", "ett-minute", "ratio" (0.7/0.1/0.2), "solar", "pems" (0.6/0.2/0.2 without overlap), "6:2:2"
    (0.6/0.2/0.2 with overlap), or three fractions (train, val, test) that sum to 1 and are cut as "ratio" is. Error
    messages call the series `name`.
    """
    check_at_least("lookback", lookback, 1)
    check_at_least("horizon", horizon, 1)
    if isinstance(rule, str):
        check_choice("split", rule, SPLIT_RULES)
    elif len(rule) != 3 or not all(0 < part < 1 for part in rule) or abs(sum(rule) - 1) > 1e-9:
        raise ArgumentError(
            "split",
            "be the name of a rule or three fractions (train, val, test) in (0, 1) that sum to 1",
            rule,
            "use (0.7, 0.1, 0.2), for instance",
        )
    # ends of train and validation, start and end of test, floored as in the field's loaders
    if rule in ("ett-hour", "ett-minute"):
        month = 30 * 24 * (1 if rule == "ett-hour" else 4)
        train, val_stop, test_start, stop = 12 * month, 16 * month, 16 * month, 20 * month
    elif rule == "solar":
        # unlike "ratio", one or two rows may lie between validation and test
        train = int(rows * 0.7)
        test_start = rows - int(rows * 0.2)
        stop = rows
        val_stop = train + int(rows * 0.1)
    elif rule == "pems":
        train = int(rows * 0.6)
        val_stop = int(rows * 0.8)
        test_start = int(rows * 0.8)
        stop = rows
    else:
        first, _, last = _SHARES[rule] if isinstance(rule, str) else rule
        train = int(rows * first)
        stop = rows
        val_stop = test_start = rows - int(rows * last)
    if stop > rows:
        use_ratio = Phrase("use ", Argument("split", "ratio"))
        raise ArgumentError(f"split {rule!r}", f"have at least {stop} rows", f"{rows} in {name}", use_ratio)
    # windows of "pems" stay inside their own segment
    early = 0 if rule == "pems" else lookback
    split = Split(train=Segment(0, train), val=Segment(train - early, val_stop), test=Segment(test_start - early, stop))
    longest = min(segment.rows for segment in split) - lookback
    if longest < horizon:
        short, segment = next((n, s) for n, s in split._asdict().items() if s.rows < lookback + horizon)
        remedy = f"the longest horizon that fits this lookback is {longest}"
        if longest < 1:
            remedy = f"no horizon fits this lookback: shorten it (now {lookback}) or use a longer series"
        raise ArgumentError(
            Phrase(Argument("lookback", lookback), " and ", Argument("horizon", horizon)),
            f"fit every split, needing {lookback + horizon} rows",
            f"{max(0, segment.rows)} in {short} (split {rule!r} of the {rows} rows of {name})",
            remedy,
        )
    return split


def check_standardised(values: np.ndarray, columns: Sequence[str], name: Name) -> np.ndarray:
    """Return standardised values (T, C); raises ValueError if one is too large to compute with in float32."""
    wrong = ~(np.abs(values) <= _LARGEST)
    if wrong.any():
        row, place = np.argwhere(wrong)[0].tolist()
        raise ArgumentError(
            name,
            "have values in the range of the data of fit",
            f"one that is {values[row, place]:.3g} standard deviations from the mean in column {columns[place]!r} at "
            f"data row {row + 1}",
            "check its units, or fit again with such values",
        )
    return values


@dataclass(frozen=True, slots=True, eq=False)
class StandardScaler:
    """z = (x - mean) / std with one mean and one population std per channel, on arrays and tensors (..., C)."""

    mean: Float64[np.ndarray, " c"]
    std: Float64[np.ndarray, " c"]

    def __post_init__(self) -> None:
        if self.mean.ndim != 1 or self.mean.shape != self.std.shape:
            raise ArgumentError("mean and std", "have one shape (C,)", f"{self.mean.shape} and {self.std.shape}")
        if not (np.isfinite(self.mean).all() and np.isfinite(self.std).all() and (self.std > 0).all()):
            raise ArgumentError("mean", "be finite and std positive", f"mean {self.mean} and std {self.std}")

    @classmethod
    def fit(
        cls,
        train: Float64[np.ndarray, "t c"],
        *,
        columns: Sequence[str] | None = None,
        allow_constant: bool = False,
        name: Name = "the series",
    ) -> "StandardScaler":
        """Fit to the train rows; a constant channel raises ValueError, or is divided by 1 with `allow_constant`."""
        if train.ndim != 2 or not len(train):
            raise ArgumentError("train rows", "have shape (T, C) with T >= 1", train.shape)
        mean = train.mean(0)
        std = train.std(0)
        # rounding may give a constant column a std of about the last digit
        constant = (np.ptp(train, axis=0) == 0) | (std <= np.finfo(np.float64).eps * np.abs(mean))
        if constant.any() and not allow_constant:
            indices = np.flatnonzero(constant).tolist()
            names = [repr(str(i) if columns is None else columns[i]) for i in indices]
            raise ArgumentError(
                name,
                f"have columns that change in the {len(train)} train rows",
                f"{len(names)} constant: {', '.join(names[:8])}{' ...' if len(names) > 8 else ''}",
                "drop them",
                Phrase("give ", Argument("allow_constant", True), " to leave them unscaled"),
            )
        return cls(mean, np.where(constant, 1.0, std))

    def transform(self, x: T) -> T:
        """Standardise (..., C)."""
        mean, std = self._like(x)
        return (x - mean) / std

    def inverse(self, z: T) -> T:
        """Undo `transform`."""
        mean, std = self._like(z)
        return z * std + mean

    def state(self) -> dict[str, Tensor]:
        """Mean and std as float64 tensors."""
        return {"mean": torch.from_numpy(self.mean.copy()), "std": torch.from_numpy(self.std.copy())}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor | Sequence[float]]) -> "StandardScaler":
        """A scaler from the result of `state`, or with lists in place of tensors."""
        if set(state) != {"mean", "std"}:
            raise ArgumentError("state", "have the entries mean and std", ", ".join(state) or "none")
        mean, std = (torch.as_tensor(state[key], dtype=torch.float64).cpu().numpy() for key in ("mean", "std"))
        return cls(mean, std)

    def _like(self, x: np.ndarray | Tensor) -> tuple[T, T]:
        if not x.ndim or x.shape[-1] != len(self.mean):
            raise ArgumentError("values", f"have {len(self.mean)} channels on the last axis", tuple(x.shape))
        if isinstance(x, np.ndarray):
            return self.mean, self.std  # type: ignore[return-value]
        if not x.is_floating_point():
            raise ArgumentError("values", "be floating point", x.dtype, "cast them with .float()")
        state = self.state()
        return state["mean"].to(x), state["std"].to(x)  # type: ignore[return-value]
