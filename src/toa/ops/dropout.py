"""Dropout that draws few random numbers: on a CPU, one per entry takes longer than the layers around it."""

import torch
import torch.nn.functional as F
from torch import Tensor

# rates are rounded to multiples of 2**-16, and kept entries are scaled by the rounded rate, so the mean stays exact
_LEVELS = 2**16


def dropout(x: Tensor, p: float) -> Tensor:
    """Set entries to zero with probability p and multiply the others by 1 / (1 - p)."""
    if p == 0.0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, p)
    return x * keep_factors(draw_bits(x.shape), p, x.dtype)


def draw_seeds(like: Tensor, count: int) -> tuple[Tensor, ...]:
    """Seeds, int32 (1,) each, for masks that kernels draw; one call of the device's generator."""
    return torch.randint(2**31, (count,), device=like.device, dtype=torch.int32).split(1)


def draw_bits(shape: torch.Size) -> Tensor:
    """Uniform 16-bit integers on the CPU, four from each number of the default generator."""
    count = shape.numel()
    return _draw_words(-(-count // 4)).view(torch.int16)[:count].view(shape)


def _draw_words(count: int) -> Tensor:
    if torch.compiler.is_compiling():
        # the compiler does not support `random_` over all bits
        return torch.randint(-(2**63), 2**63 - 1, (count,))
    # a smaller range takes a division per number
    return torch.empty(count, dtype=torch.int64).random_(-(2**63), None)


def keep_factors(bits: Tensor, p: float, dtype: torch.dtype) -> Tensor:
    """Dropout factors of entries: 0 with probability p, else 1 / (1 - p)."""
    kept = max(1, round((1.0 - p) * _LEVELS))
    last = kept - 1 - _LEVELS // 2
    if torch.compiler.is_compiling():
        return (bits <= last).to(dtype) * (_LEVELS / kept)
    # as numbers: PyTorch multiplies by booleans ten times slower
    factors = torch.empty(bits.shape, dtype=dtype)
    torch.le(bits, last, out=factors)
    return factors.mul_(_LEVELS / kept)
