"""Rotary positions: scores that depend on the distance of query and key (Su et al., 2021).

Pairs of features (x[i], x[i + D/2]) turn by the angle p base^(-2i/D), with p the position. A product of two vectors
that turn keeps only the difference of their positions: (R(p) q) · (R(s) k) = q · (R(s - p) k).

Alphabet: B batch, M queries, N keys or tokens, H heads, D width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from toa._checks import ArgumentError, check_shape

# longest wavelength in units of 2π positions, as in the source above
BASE = 10_000.0


@dataclass(frozen=True, slots=True)
class Rotary:
    """Positions of the queries (M,) and of the keys (N,) of one call, the same for all heads and batch entries.

    Positions need not be integers, and may be negative: only differences matter.

    Args:
        base: The slowest pair of features turns by 1 / base per position, or a little faster.
    """

    queries: Tensor
    keys: Tensor
    base: float = BASE

    def __post_init__(self) -> None:
        for name, positions in (("rotary.queries", self.queries), ("rotary.keys", self.keys)):
            if positions.dim() != 1:
                raise ArgumentError(
                    name,
                    "have one position per token, shape (N,)",
                    tuple(positions.shape),
                    "all sequences of a batch share them",
                )
        if not self.base > 1.0:
            raise ArgumentError("rotary.base", "be above 1", self.base, f"{BASE:g} is customary")

    def turn(
        self, q: Tensor, k: Tensor, gate_q: Tensor | None = None, gate_k: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Queries and keys, and those of a gate, turned by their positions."""
        turned_gate_q = None if gate_q is None else turn("gate_q", gate_q, self.queries, self.base)
        turned_gate_k = None if gate_k is None else turn("gate_k", gate_k, self.keys, self.base)
        turned_q = turn("q", q, self.queries, self.base)
        turned_k = turn("k", k, self.keys, self.base)
        return turned_q, turned_k, turned_gate_q, turned_gate_k


def turn(name: str, x: Tensor, positions: Tensor, base: float = BASE) -> Tensor:
    """Tokens (B, N, H, D) turned by positions (N,), computed in at least float32, in the dtype of `x`."""
    check_shape(name, x, "(B, N, H, D)", (None, len(positions), None, None))
    half = x.shape[3] // 2
    if x.shape[3] % 2:
        raise ArgumentError(name, "have an even width to turn pairs of features", x.shape[3], "pad it")
    exact = torch.promote_types(x.dtype, torch.float32)
    rates = torch.pow(base, -torch.arange(half, device=x.device, dtype=exact) / half)
    angles = positions.to(x.device, exact)[:, None, None] * rates  # (N, 1, D/2)
    cos = angles.cos()
    sin = angles.sin()
    first, second = x.to(exact).chunk(2, -1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), -1).to(x.dtype)
