"""Sequence operators as tensors: what `S` may be in `operator_attention`.

Every operator acts along the token axis of `x` (B, N, H, D), with one matrix per head. `mix` applies it fast; `dense`
defines it. A sequence shorter than the operator uses its leading block.

Alphabet: B batch, N tokens, H heads, D head width, R rank.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from toa._checks import ArgumentError
from toa.ops._backend import runs_kernels
from toa.ops.mixing import EntryDrop, drop_op, mix_op

Tokens = Float[Tensor, "b n h d"]


class Operator(ABC):
    """One N x N matrix per head; sizes and device are those of its first tensor, (H, ..., N)."""

    __slots__ = ()
    _first: ClassVar[str]
    # most tokens that the matrix mixes faster than the structure, in training on two CPU cores
    _dense_up_to: ClassVar[int] = 0

    @property
    def num_heads(self) -> int:
        """Number of heads H."""
        return getattr(self, self._first).shape[0]

    @property
    def num_tokens(self) -> int:
        """Longest sequence that it can mix."""
        return getattr(self, self._first).shape[-1]

    @property
    def device(self) -> torch.device:
        """Device of its tensors."""
        return getattr(self, self._first).device

    @abstractmethod
    def mix(self, x: Tensor, *, transpose: bool = False, causal: bool = False) -> Tensor:
        """S x, or Sᵀ x with `transpose`; `causal` keeps the lower triangle of the matrix that is applied."""

    @abstractmethod
    def offset(self, n: int) -> Tensor:
        """The leading n x n block of M in S = I + M, shape (H, n, n); of S for a `Dense` without `residual`."""

    def dense(self, n: int) -> Tensor:
        """The leading n x n block of S, shape (H, n, n)."""
        offset = self.offset(n)
        return offset + torch.eye(n, dtype=offset.dtype, device=offset.device)

    def for_length(self, n: int) -> "Operator":
        """The operator for sequences of n tokens: this one, or its matrix if that mixes them faster."""
        return Dense(self.offset(n)) if n <= self._dense_up_to else self


@dataclass(frozen=True, slots=True)
class Dense(Operator):
    """S = I + weight, or S = weight without `residual`.

    As an offset, the weight stays exact in low precision: bfloat16 cannot tell 1 + 1e-3 from 1.

    Args:
        weight: The offset.
        residual: Whether the identity is added.
        drop: Entries of the weight that are dropped; only where kernels run (`toa.ops.runs_kernels`).
    """

    _first: ClassVar[str] = "weight"
    weight: Float[Tensor, "h n n"]
    residual: bool = True
    drop: EntryDrop | None = None

    def offset(self, n: int) -> Float[Tensor, "h {n} {n}"]:
        """The leading n x n block of the weight, with entries dropped."""
        return (self.weight if self.drop is None else drop_op(self.weight, *self.drop))[:, :n, :n]

    def mix(self, x: Tokens, *, transpose: bool = False, causal: bool = False) -> Tokens:
        """S x, by one matrix product per head over all batch entries and features."""
        n = x.shape[1]
        if not causal and runs_kernels(x):
            drop = self.drop or (None, None)
            return mix_op(x, self.weight[:, :n, :n], *drop, transpose, self.residual, True)
        weight = self.offset(n)
        weight = weight.mT if transpose else weight
        weight = weight.tril() if causal else weight
        mixed = torch.einsum("hmn,bnhd->bmhd", weight.to(x.dtype), x)
        return x + mixed if self.residual else mixed

    def dense(self, n: int) -> Float[Tensor, "h {n} {n}"]:
        """The leading n x n block of S."""
        return Operator.dense(self, n) if self.residual else self.offset(n)


@dataclass(frozen=True, slots=True)
class DiagonalLowRank(Operator):
    """S = I + diag(diagonal) + left rightᵀ: O(N R) parameters and time, or O(N²) time if causal."""

    _first: ClassVar[str] = "diagonal"
    diagonal: Float[Tensor, "h n"]
    left: Float[Tensor, "h n r"]
    right: Float[Tensor, "h n r"]

    def mix(self, x: Tokens, *, transpose: bool = False, causal: bool = False) -> Tokens:
        """S x, through the rank-R bottleneck."""
        n = x.shape[1]
        if causal:
            # a triangle of a low-rank matrix does not have low rank
            return Dense(self.offset(n)).mix(x, transpose=transpose, causal=True)
        left, right = (self.right, self.left) if transpose else (self.left, self.right)
        diagonal = self.diagonal[:, :n].mT.unsqueeze(-1).to(x.dtype)  # (N, H, 1)
        inner = torch.einsum("hnr,bnhd->brhd", right[:, :n].to(x.dtype), x)  # (B, R, H, D)
        return x + diagonal * x + torch.einsum("hnr,brhd->bnhd", left[:, :n].to(x.dtype), inner)

    def offset(self, n: int) -> Float[Tensor, "h {n} {n}"]:
        """The leading n x n block of diag(diagonal) + left rightᵀ."""
        return self.left[:, :n] @ self.right[:, :n].mT + torch.diag_embed(self.diagonal[:, :n])


@dataclass(frozen=True, slots=True)
class Toeplitz(Operator):
    """S = I + T with T[i, j] = taps[N - 1 + i - j]: one filter per head, applied by FFT in O(N log N)."""

    _first: ClassVar[str] = "taps"
    _dense_up_to: ClassVar[int] = 256
    taps: Float[Tensor, "h lags"]

    @property
    def num_tokens(self) -> int:
        """Longest sequence that it can mix."""
        return (self.taps.shape[-1] + 1) // 2

    def _lags(self, n: int) -> Float[Tensor, "h lags"]:
        """Taps of the lags -(n-1) to n-1."""
        middle = self.num_tokens - 1
        return self.taps[:, middle - n + 1 : middle + n]

    def mix(self, x: Tokens, *, transpose: bool = False, causal: bool = False) -> Tokens:
        """S x as one circular convolution of length at least 2 N - 1."""
        n = x.shape[1]
        if x.numel() == 0:
            # PyTorch has no transform of nothing; the taps keep a gradient
            return x + 0.0 * self.taps.sum().to(x.dtype)
        taps = self._lags(n).to(torch.promote_types(x.dtype, torch.float32))
        taps = taps.flip(-1) if transpose else taps
        if causal:
            future = torch.arange(2 * n - 1, device=x.device) < n - 1
            taps = taps.masked_fill(future, 0.0)
        size = _fast_length(2 * n - 1)
        # lag 0 comes first; negative lags wrap around to the end
        kernel = torch.cat((taps[:, n - 1 :], taps.new_zeros(taps.shape[0], size - 2 * n + 1), taps[:, : n - 1]), -1)
        # axes are moved before the transform: exporters move the axes of real tensors only
        spectrum = torch.fft.rfft(kernel.mT.unsqueeze(-1), dim=0)  # (F, H, 1)
        moved = torch.fft.rfft(x.to(taps.dtype), n=size, dim=1) * spectrum  # (B, F, H, D)
        return x + torch.fft.irfft(moved, n=size, dim=1)[:, :n].to(x.dtype)

    def offset(self, n: int) -> Float[Tensor, "h {n} {n}"]:
        """The leading n x n block of T."""
        # row i holds lags i to i - n + 1; unlike an index, a window has a gradient without sorting
        return self._lags(n).unfold(1, n, 1).flip(-1)


@dataclass(frozen=True, slots=True)
class Banded(Operator):
    """S = I + M with M[i, i + l - w] = diagonals[l, i], l from 0 to 2 w: O(N w) parameters, memory and time."""

    _first: ClassVar[str] = "diagonals"
    _dense_up_to: ClassVar[int] = 128
    diagonals: Float[Tensor, "h lags n"]

    def __post_init__(self) -> None:
        lags = self.diagonals.shape[1]
        if lags % 2 == 0:
            raise ArgumentError("diagonals", "have an odd number 2 w + 1 of lags (H, 2 w + 1, N)", lags, "pad them")

    def mix(self, x: Tokens, *, transpose: bool = False, causal: bool = False) -> Tokens:
        """S x, by a product per block of tokens with the tokens around it."""
        n = x.shape[1]
        side = self.diagonals.shape[1] // 2
        rows = self.diagonals[:, :, :n].mT.to(x.dtype)  # (H, N, 2 w + 1)
        if transpose:
            around = F.pad(rows.flip(-1), (0, 0, side, side)).unfold(1, 2 * side + 1, 1)
            rows = around.diagonal(dim1=-2, dim2=-1)
        if causal:
            rows = torch.cat((rows[..., : side + 1], torch.zeros_like(rows[..., side + 1 :])), -1)
        block = min(n, max(_LEAST_BLOCK, 2 * side))
        rest = -n % block
        matrices = _skewed(F.pad(rows, (0, 0, 0, rest)).unflatten(1, (-1, block)))  # (H, blocks, block, block + 2 w)
        tokens = F.pad(x, (0, 0, 0, 0, side, side + rest)).unfold(1, block + 2 * side, block)  # (B, blocks, H, D, …)
        return x + torch.einsum("hkrs,bkhds->bkrhd", matrices, tokens).flatten(1, 2)[:, :n]

    def offset(self, n: int) -> Float[Tensor, "h {n} {n}"]:
        """The leading n x n block of M."""
        side = self.diagonals.shape[1] // 2
        return _skewed(self.diagonals[:, :, :n].mT)[..., side : side + n]


# smallest block of a banded operator: tensor cores multiply such tiles
_LEAST_BLOCK = 64


def _skewed(rows: Float[Tensor, "*b r lags"]) -> Float[Tensor, "*b r columns"]:
    """Matrices whose row i holds the given row i from column i on, and zeros elsewhere; R + lags - 1 columns."""
    count, lags = rows.shape[-2:]
    columns = count + lags - 1
    flat = F.pad(rows, (0, columns + 1 - lags)).flatten(-2)
    return flat[..., : count * columns].unflatten(-1, (count, columns))


def causal_rows(s: Operator, start: int, stop: int, *, transpose: bool) -> Float[Tensor, "h rows {stop}"]:
    """Rows `start` to `stop` of the lower triangle of S, or of Sᵀ: causal mixing of these tokens applies no others."""
    if isinstance(s, Dense):
        offset = s.offset(stop)
        rows = offset[..., start:].mT if transpose else offset[:, start:]
        if s.residual:
            rows = rows + torch.eye(stop, dtype=rows.dtype, device=rows.device)[start:]
    elif isinstance(s, Toeplitz):
        place = torch.arange(stop, device=s.device)
        lag = place[start:, None] - place[None, :]
        rows = s.taps[:, s.num_tokens - 1 + (-lag if transpose else lag)] + (lag == 0).to(s.taps.dtype)
    else:
        rows = (s.dense(stop).mT if transpose else s.dense(stop))[:, start:]
    return rows.tril(start)


def _fast_length(least: int) -> int:
    """The smallest 2^a 3^b 5^c of at least `least`: lengths that every FFT library transforms fast."""
    best = 1 << (least - 1).bit_length()
    five = 1
    while five < best:
        three = five
        while three < best:
            best = min(best, three << max(0, (-(-least // three) - 1).bit_length()))
            three *= 3
        five *= 5
    return best
