"""A split of the last axis whose backward copies nothing if the gradients are adjacent in memory.

The gain has to be measured: `benchmarks/row_kernels.py`, "split".
"""

from typing import Any

import torch
from torch import Tensor

from toa.ops._backend import runs_kernels


def split(x: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
    """Parts (..., size) of a tensor (..., W), as `torch.split` returns them.

    Where kernels run, no copy joins gradients that a kernel has written into one tensor. Changing a part in place then
    raises.
    """
    if torch.compiler.is_compiling() or not (torch.is_grad_enabled() and x.requires_grad and runs_kernels(x, "split")):
        return x.split(sizes, -1)
    parts: tuple[Tensor, ...] = _Split.apply(x, sizes)
    return parts


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
        return x.split(sizes, -1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        return

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        joined = _adjacent(grads)
        return torch.cat(grads, -1) if joined is None else joined, None


def _adjacent(parts: tuple[Tensor, ...]) -> Tensor | None:
    """The tensor whose last axis the parts cover in order and without gaps; None if there is none."""
    first = parts[0]
    strides, end = first.stride(), first.storage_offset()
    for part in parts:
        same = part.untyped_storage()._cdata == first.untyped_storage()._cdata and part.stride() == strides
        if not same or part.storage_offset() != end:
            return None
        end += part.shape[-1]
    width = end - first.storage_offset()
    # parts of the same rows, not matrices one after the other
    if strides[-1] != 1 or len(strides) < 2 or width > strides[-2]:
        return None
    return first.as_strided((*first.shape[:-1], width), strides)
