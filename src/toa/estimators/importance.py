"""What a network looked at: the parts of lags and columns in its result, by integrated gradients.

    share[i] = (x[i] - base[i]) * integral over t from 0 to 1 of df(base + t (x - base)) / dx[i]

The shares sum to f(x) - f(base).

Alphabet: L rows of a window or steps of a case, C columns, K outputs, G groups of features, M places on the path.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import narwhals as nw
import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64
from torch import Tensor, nn

from toa.data.frequency import Frequency, describe_steps
from toa.nn.layers import ReversibleInstanceNorm
from toa.training.base import check_sample

# places on the path: Gauss-Legendre points
_PLACES = 64
# windows times columns that are computed at once
_AT_ONCE = 1_024
# outputs that are explained
OUTPUTS = 8


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Importance:
    """Parts of each lag and column in the outputs of a network, for one window or case.

    Attributes:
        what: What the outputs are, and what the base is, in words.
        columns: Names of the C columns, covariates last.
        shares: Part of each row and column in each output (K, L, C); the last row is lag 1.
        ahead: Part of the values of each column that are known in advance, in each output (K, C).
        change: Output minus output of the base (K,): what all parts sum to, approximately.
    """

    what: str
    outputs: tuple[str, ...]
    columns: tuple[str, ...]
    shares: Float64[np.ndarray, "k l c"]
    ahead: Float64[np.ndarray, "k c"]
    change: Float64[np.ndarray, " k"]
    freq: Frequency | None = None

    def describe(self) -> str:
        """What the parts are, in words."""
        which = "" if len(self.outputs) == 1 and self.outputs[0] == "score" else f" ({', '.join(self.outputs)})"
        return (
            f"shares of lags and columns, without signs, in {self.what}{which}, by integrated gradients. Lag 1 is the "
            "last row."
        )

    def by_lag(self) -> Float64[np.ndarray, " l"]:
        """Share of each lag in all parts, without signs, lag 1 first."""
        return (np.abs(self.shares).sum((0, 2)) / self._total)[::-1]

    def by_column(self) -> dict[str, float]:
        """Share of each column in all parts, without signs, the largest first."""
        shares = (np.abs(self.shares).sum((0, 1)) + np.abs(self.ahead).sum(0)) / self._total
        return {self.columns[place]: float(shares[place]) for place in np.argsort(-shares, kind="stable")}

    def blocks(self, most: int) -> dict[str, float]:
        """`by_lag` in at most `most` blocks of neighbours, by their names, such as "lags 1 to 4 (4 hours)"."""
        lags = self.by_lag()
        shares = {}
        for low, high in blocks_of(len(lags), most):
            span = "" if self.freq is None else f", up to {describe_steps(self.freq, high)}"
            shares[f"{name_lags(low, high)}{span}"] = float(lags[low:high].sum())
        return shares

    def frame(self) -> pd.DataFrame:
        """One row per output, lag and column, with its part; lag 0 is what is known in advance."""
        parts = np.concatenate([self.ahead[:, None], self.shares[:, ::-1]], axis=1)  # (K, 1 + L, C)
        names = [self.outputs, range(parts.shape[1]), self.columns]
        index = pd.MultiIndex.from_product(names, names=["output", "lag", "column"])
        return pd.DataFrame({"share": parts.ravel()}, index=index).reset_index()

    @property
    def _total(self) -> float:
        return float(np.abs(self.shares).sum() + np.abs(self.ahead).sum()) or 1.0


def name_lags(low: int, high: int) -> str:
    """The name of a block of `blocks_of`."""
    return f"lag {high}" if high == low + 1 else f"lags {low + 1} to {high}"


def blocks_of(rows: int, most: int) -> list[tuple[int, int]]:
    """First row and end of up to `most` blocks of rows."""
    return list(pairwise(np.unique(np.linspace(0, rows, min(rows, most) + 1).astype(int)).tolist()))


def integrated_gradients(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], bases: Sequence[Tensor]
) -> tuple[list[np.ndarray], np.ndarray]:
    """Parts (K, ·, ·) of each entry of the inputs in each output, and the change (K,) that they sum to.

    Args:
        function: Maps inputs with a batch to outputs (B, K).
        inputs: Tensors (1, ·, ·) in float64.
        bases: Tensors like the inputs, with which they are compared.
    """
    places, weights = np.polynomial.legendre.leggauss(_PLACES)
    # from [-1, 1] to [0, 1]
    u = torch.from_numpy(places + 1.0).view(-1, 1, 1) / 2
    weight = torch.from_numpy(weights).view(-1, 1, 1) / 2
    # t = u^3: models that divide by the deviation of a window change quickly where the window is nearly flat
    t = u**3
    weight = 3 * u**2 * weight
    pieces = torch.arange(_PLACES).split(max(1, _AT_ONCE // inputs[0].shape[2]))
    with torch.no_grad():
        change = (function(*inputs) - function(*bases))[0]
    sums = [torch.zeros(len(change), *x.shape[1:], dtype=torch.float64) for x in inputs]
    for piece in pieces:
        points = [(b + t[piece] * (x - b)).requires_grad_() for x, b in zip(inputs, bases, strict=True)]
        outputs = function(*points)  # (B, K)
        for k in range(len(change)):
            gradients = torch.autograd.grad(outputs[:, k].sum(), points, retain_graph=True, materialize_grads=True)
            for total, gradient in zip(sums, gradients, strict=True):
                total[k] += (weight[piece] * gradient).sum(0)
    shares = [total * (x - b) for total, x, b in zip(sums, inputs, bases, strict=True)]
    return [share.numpy() for share in shares], change.numpy()


def sample_rows(data: Any, id: str | None, index: int, length: int) -> Any:
    """`length` rows of the first series of a frame or array, from row `index` on."""
    rows = nw.from_native(data, eager_only=True, pass_through=True)
    if id is not None:
        rows = rows.filter(nw.col(id) == rows[id][0])
    check_sample(index, max(0, len(rows) - length + 1))
    return nw.to_native(rows[index : index + length], pass_through=True)


def in_float64(model: nn.Module) -> nn.Module:
    """A copy of a model on the CPU in float64, with complete gradients: rounding would hide small parts."""
    exact = copy.deepcopy(model).cpu().double().eval().requires_grad_(False)
    for layer in exact.modules():
        if isinstance(layer, ReversibleInstanceNorm):
            layer.detach_mean = False
            layer.detach_std = False
    return exact
