"""Standardisation of columns by the rows of training.

    scaler = StandardScaler.fit(values)                   # values (T, C)
    check_standardised(scaler.transform(new), columns, "data")

Alphabet: T rows, C columns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from toa._checks import Argument, ArgumentError, Name, Phrase

T = TypeVar("T", np.ndarray, Tensor)

# a model squares its inputs in float32, whose largest number is 3e38
_LARGEST = 1e18


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
