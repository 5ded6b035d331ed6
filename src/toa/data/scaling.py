"""Standardisation by the statistics of the train rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

Values = TypeVar("Values", np.ndarray, Tensor)


@dataclass(frozen=True, slots=True, eq=False)
class StandardScaler:
    """z = (x - mean) / std with one mean and one population std per channel, on arrays and tensors (..., C)."""

    mean: Float64[np.ndarray, " c"]
    std: Float64[np.ndarray, " c"]

    def __post_init__(self) -> None:
        if self.mean.ndim != 1 or self.mean.shape != self.std.shape:
            raise ValueError(f"mean and std must have one shape (C,), got {self.mean.shape} and {self.std.shape}.")
        if not (np.isfinite(self.mean).all() and np.isfinite(self.std).all() and (self.std > 0).all()):
            raise ValueError(f"mean must be finite and std positive, got mean {self.mean} and std {self.std}.")

    @classmethod
    def fit(
        cls,
        train: Float64[np.ndarray, "t c"],
        *,
        columns: Sequence[str] | None = None,
        allow_constant: bool = False,
        name: str = "the series",
    ) -> "StandardScaler":
        """Fit to the train rows.

        A constant channel raises ValueError, or is divided by 1 with `allow_constant`.
        """
        if train.ndim != 2 or not len(train):
            raise ValueError(f"train rows must have shape (T, C) with T >= 1, got {train.shape}.")
        mean, std = train.mean(0), train.std(0)
        # rounding may give a constant column a std of about the last digit
        constant = (np.ptp(train, axis=0) == 0) | (std <= np.finfo(np.float64).eps * np.abs(mean))
        if constant.any() and not allow_constant:
            indices = np.flatnonzero(constant).tolist()
            names = [repr(str(i) if columns is None else columns[i]) for i in indices]
            raise ValueError(
                f"{name} must have columns that change in the {len(train)} train rows, got {len(names)} constant: "
                f"{', '.join(names[:8])}{' ...' if len(names) > 8 else ''}; drop them, or give allow_constant=True "
                "to leave them unscaled."
            )
        return cls(mean, np.where(constant, 1.0, std))

    def transform(self, x: Values) -> Values:
        """Standardise (..., C)."""
        mean, std = self._like(x)
        return (x - mean) / std

    def inverse(self, z: Values) -> Values:
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
            raise ValueError(f"state must have the entries mean and std, got {', '.join(state) or 'none'}.")
        mean, std = (torch.as_tensor(state[key], dtype=torch.float64).cpu().numpy() for key in ("mean", "std"))
        return cls(mean, std)

    def _like(self, x: np.ndarray | Tensor) -> tuple[Values, Values]:
        if not x.ndim or x.shape[-1] != len(self.mean):
            raise ValueError(f"values must have {len(self.mean)} channels on the last axis, got {tuple(x.shape)}.")
        if isinstance(x, np.ndarray):
            return self.mean, self.std  # type: ignore[return-value]
        if not x.is_floating_point():
            raise ValueError(f"values must be floating point, got {x.dtype}; cast them with .float().")
        state = self.state()
        return state["mean"].to(x), state["std"].to(x)  # type: ignore[return-value]
