"""Learnable sequence operators S = I + M, one matrix per head, in several structures with one interface.

Alphabet: B batch, N tokens, H heads, D head width, R rank.
"""

import inspect
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from toa import ops
from toa._checks import check_at_least, check_choice, check_shape, check_tokens
from toa._registry import Registry
from toa.nn.layers import Layer
from toa.nn.regularization import DropRates

Structure = Literal["dense", "dplr", "toeplitz", "banded"]

# initial operator, apart from small noise: the identity, or a filter of the paper's cases
OperatorInit = Literal["identity", "difference", "smoothing", "centering", "filters"]
_FILTERS = ("identity", "difference", "smoothing", "centering")


def initial_taps(init: str, num_heads: int, num_tokens: int) -> Tensor:
    """Return the offset M of a filter, as taps (H, 2 N - 1) by lag i - j from -(N - 1) to N - 1.

    "difference" is x[t] - x[t-1], "smoothing" is the mean of three neighbours, "centering" subtracts the mean over all
    tokens; "filters" assigns the identity and these three to the heads in turn.
    """
    check_choice("operator_init", init, (*_FILTERS, "filters"))
    kinds = [_FILTERS[head % len(_FILTERS)] if init == "filters" else init for head in range(num_heads)]
    taps = torch.zeros(num_heads, 2 * num_tokens - 1)
    zero = num_tokens - 1
    for row, kind in zip(taps, kinds, strict=True):
        if kind == "centering":
            row.fill_(-1.0 / num_tokens)
        elif num_tokens > 1 and kind == "difference":
            row[zero + 1] = -1.0
        elif num_tokens > 1 and kind == "smoothing":
            row[zero - 1 : zero + 2] = torch.tensor([1.0, -2.0, 1.0]) / 3.0
    return taps


class SequenceOperator(Layer, ABC):
    """A learnable S = I + M along the token axis.

    Calling it mixes `x` (B, N, H, D), N ≤ num_tokens: y = S x per head. `dense(n)` is S as a matrix.

    Args:
        num_tokens: Maximum sequence length; a shorter sequence uses the leading block.
        init_std: Initial standard deviation of the entries of M. 0 makes S the identity, or the filter of `init`.
        init: The filter that S starts as, see `initial_taps`; only for operators with one parameter.
    """

    shown: ClassVar[tuple[str, ...]] = ("num_heads", "num_tokens")

    def __init__(
        self, num_heads: int, num_tokens: int, *, init_std: float = 1e-3, init: OperatorInit = "identity"
    ) -> None:
        super().__init__()
        check_at_least("num_heads", num_heads, 1)
        check_at_least("num_tokens", num_tokens, 1)
        check_at_least("init_std", init_std, 0.0)
        self.num_heads = num_heads
        self.num_tokens = num_tokens
        self.init_std = init_std
        self.init = init

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw M ~ N(F, init_std²), F the filter of `init`, zero for the identity."""
        (values,) = self.parameters()
        nn.init.normal_(values, std=self.init_std)
        if self.init != "identity":
            values.add_(self._filter(initial_taps(self.init, self.num_heads, self.num_tokens)))

    def _filter(self, taps: Tensor) -> Tensor:
        """Return the parameter with M[i, j] = taps[i - j]."""
        raise NotImplementedError

    @abstractmethod
    def operator(self, rates: DropRates | None = None) -> ops.Operator:
        """Return S as an operator of `toa.ops`; its offset is regularized if `rates` are given."""

    @abstractmethod
    def _resized_parameters(self, num_tokens: int) -> dict[str, Tensor]:
        """Return every parameter, interpolated to another number of tokens."""

    def forward(self, x: Tensor) -> Tensor:
        """Return S x."""
        check_shape("x", x, "(B, N, H, D)", (None, None, self.num_heads, None))
        check_tokens(type(self).__name__, self.num_tokens, x.shape[1])
        return self.operator().mix(x)

    def dense(self, num_tokens: int | None = None) -> Tensor:
        """Return S, or its leading block, as one matrix per head: (H, N, N)."""
        n = self.num_tokens if num_tokens is None else num_tokens
        check_tokens(type(self).__name__, self.num_tokens, n)
        return self.operator().dense(n)

    @torch.no_grad()
    def resize(self, num_tokens: int) -> "SequenceOperator":
        """Change the maximum length in place: interpolate M, keep the identity.

        M is treated as samples of a kernel over [0, 1]²: entries are scaled by the ratio of the lengths, so that row
        sums (the response to a constant) are kept. The parameters are replaced: create the optimizer afterwards.
        """
        check_at_least("num_tokens", num_tokens, 1)
        if num_tokens != self.num_tokens:
            for name, value in self._resized_parameters(num_tokens).items():
                old = getattr(self, name)
                setattr(self, name, nn.Parameter(value, requires_grad=old.requires_grad))
            self.num_tokens = num_tokens
        return self


OPERATORS: Registry[type[SequenceOperator]] = Registry("structure")


@OPERATORS.register("dense")
class DenseOperator(SequenceOperator):
    """M is a full N x N matrix, as in the paper: H N² parameters. For `init` see `initial_taps`."""

    def __init__(
        self, num_heads: int, num_tokens: int, *, init_std: float = 1e-3, init: OperatorInit = "identity"
    ) -> None:
        super().__init__(num_heads, num_tokens, init_std=init_std, init=init)
        self.offset = nn.Parameter(torch.empty(num_heads, num_tokens, num_tokens))
        self.reset_parameters()

    def _filter(self, taps: Tensor) -> Tensor:
        steps = torch.arange(self.num_tokens)
        return taps[:, steps[:, None] - steps + self.num_tokens - 1]

    def operator(self, rates: DropRates | None = None) -> ops.Dense:
        """Return S = I + M; SOR drops single entries of M."""
        if rates is not None and ops.runs_kernels(self.offset):
            return ops.Dense(self.offset, drop=rates.drop(self.offset))
        return ops.Dense(self.offset if rates is None else rates(self.offset)[0])

    def _resized_parameters(self, num_tokens: int) -> dict[str, Tensor]:
        offset = _resample(self.offset, (num_tokens, num_tokens))
        return {"offset": offset * (self.num_tokens / num_tokens)}


@OPERATORS.register("dplr")
class DiagonalLowRankOperator(SequenceOperator):
    """M = diag(d) + L Rᵀ, L and R with `rank` columns: H N (2 rank + 1) parameters.

    `init_std` applies to d and to L Rᵀ. SOR drops entries of d and of L, not of R, so that L Rᵀ keeps its mean.
    """

    shown = (*SequenceOperator.shown, "rank")

    def __init__(self, num_heads: int, num_tokens: int, *, rank: int = 16, init_std: float = 1e-3) -> None:
        super().__init__(num_heads, num_tokens, init_std=init_std)
        check_at_least("rank", rank, 1)
        self.rank = rank
        self.diagonal = nn.Parameter(torch.empty(num_heads, num_tokens))
        self.left, self.right = (nn.Parameter(torch.empty(num_heads, num_tokens, rank)) for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw d and L Rᵀ, both with entries of standard deviation `init_std`."""
        nn.init.normal_(self.diagonal, std=self.init_std)
        nn.init.normal_(self.left, std=self.init_std)
        nn.init.normal_(self.right, std=self.rank**-0.5)

    def operator(self, rates: DropRates | None = None) -> ops.DiagonalLowRank:
        """Return S = I + diag(d) + L Rᵀ."""
        diagonal, left = (self.diagonal, self.left) if rates is None else rates(self.diagonal, self.left)
        return ops.DiagonalLowRank(diagonal, left, self.right)

    def _resized_parameters(self, num_tokens: int) -> dict[str, Tensor]:
        left, right = (_resample(x.mT, (num_tokens,)).mT for x in (self.left, self.right))
        return {
            "diagonal": _resample(self.diagonal, (num_tokens,)),
            "left": left.contiguous(),
            "right": (right * (self.num_tokens / num_tokens)).contiguous(),
        }


@OPERATORS.register("toeplitz")
class ToeplitzOperator(SequenceOperator):
    """M[i, j] depends only on i - j: one filter per head, applied by FFT. H (2 N - 1) parameters.

    SOR drops taps, that is, whole diagonals.
    """

    def __init__(
        self, num_heads: int, num_tokens: int, *, init_std: float = 1e-3, init: OperatorInit = "identity"
    ) -> None:
        super().__init__(num_heads, num_tokens, init_std=init_std, init=init)
        self.taps = nn.Parameter(torch.empty(num_heads, 2 * num_tokens - 1))
        self.reset_parameters()

    def _filter(self, taps: Tensor) -> Tensor:
        return taps

    def operator(self, rates: DropRates | None = None) -> ops.Toeplitz:
        """Return S = I + T."""
        return ops.Toeplitz(self.taps if rates is None else rates(self.taps)[0])

    def _resized_parameters(self, num_tokens: int) -> dict[str, Tensor]:
        taps = _resample(self.taps, (2 * num_tokens - 1,))
        return {"taps": taps * (self.num_tokens / num_tokens)}


@OPERATORS.register("banded")
class BandedOperator(SequenceOperator):
    """M[i, j] is learned if |i - j| ≤ bandwidth, and zero otherwise: H N (2 bandwidth + 1) parameters.

    SOR drops single entries. `resize` keeps the bandwidth: a row takes the filter at its relative place.
    """

    shown = (*SequenceOperator.shown, "bandwidth")

    def __init__(
        self,
        num_heads: int,
        num_tokens: int,
        *,
        bandwidth: int = 4,
        init_std: float = 1e-3,
        init: OperatorInit = "identity",
    ) -> None:
        super().__init__(num_heads, num_tokens, init_std=init_std, init=init)
        check_at_least("bandwidth", bandwidth, 0)
        self.bandwidth = bandwidth
        # diagonals[h, l, i] is M[i, i + l - bandwidth]; places outside of the matrix are not used
        self.diagonals = nn.Parameter(torch.empty(num_heads, 2 * bandwidth + 1, num_tokens))
        self.reset_parameters()

    def _filter(self, taps: Tensor) -> Tensor:
        taps = F.pad(taps, (self.bandwidth, self.bandwidth))
        return taps[:, self.num_tokens - 1 : self.num_tokens + 2 * self.bandwidth].flip(1)[:, :, None]

    def operator(self, rates: DropRates | None = None) -> ops.Banded:
        """Return S = I + M, with M zero outside the band."""
        return ops.Banded(self.diagonals if rates is None else rates(self.diagonals)[0])

    def _resized_parameters(self, num_tokens: int) -> dict[str, Tensor]:
        return {"diagonals": _resample(self.diagonals, (num_tokens,))}

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # files of older versions have M as a full matrix
        offset = state_dict.pop(f"{prefix}offset", None)
        if offset is not None:
            rows = F.pad(offset, (self.bandwidth, self.bandwidth)).unfold(2, 2 * self.bandwidth + 1, 1)
            state_dict[f"{prefix}diagonals"] = rows.diagonal(dim1=1, dim2=2)
        super()._load_from_state_dict(state_dict, prefix, *args)


def make_operator(
    structure: str,
    num_heads: int,
    num_tokens: int,
    *,
    init_std: float = 1e-3,
    init: OperatorInit = "identity",
    rank: int | None = None,
    bandwidth: int | None = None,
) -> SequenceOperator:
    """Build an operator by the name of its structure in `OPERATORS`; None is the default of that structure."""
    kind = OPERATORS[structure]
    given = {"init": None if init == "identity" else init, "rank": rank, "bandwidth": bandwidth}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    for name, value in options.items():
        if name not in inspect.signature(kind).parameters:
            owners = " or ".join(s for s in OPERATORS if name in inspect.signature(OPERATORS[s]).parameters)
            raise ValueError(
                f"{name} requires structure {owners}, got structure={structure!r}; leave out {name}={value!r}."
            )
    return kind(num_heads, num_tokens, init_std=init_std, **options)


def _resample(x: Tensor, size: tuple[int, ...]) -> Tensor:
    """Interpolate the last one or two axes linearly, with averaging when they shrink; heads come first."""
    if len(size) == 1:
        return _resample(x.unsqueeze(-2), (1, *size)).squeeze(-2)
    exact = x.to(torch.promote_types(x.dtype, torch.float32))
    images = exact if x.dim() == 4 else exact.unsqueeze(0)
    return F.interpolate(images, size, mode="bilinear", antialias=True).view(*x.shape[:-2], *size).to(x.dtype)
