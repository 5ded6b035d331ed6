"""A split of the last axis whose backward copies nothing where gradients lie side by side already."""

from typing import Any

import torch
from torch import Tensor

from toa.ops._backend import runs_kernels


def split(x: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
    """Parts (..., size) of a tensor (..., W), as `torch.split` gives them.

    Where kernels run, those that write the gradients of all parts into one tensor spare the copy that joins them; and
    PyTorch refuses to change the parts in place.
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
        joined = _side_by_side(grads)
        return torch.cat(grads, -1) if joined is None else joined, None


def _side_by_side(parts: tuple[Tensor, ...]) -> Tensor | None:
    """The tensor that parts of the last axis are of; None if they are not of one, in this order, without gaps."""
    first = parts[0]
    strides, end = first.stride(), first.storage_offset()
    for part in parts:
        same = part.untyped_storage()._cdata == first.untyped_storage()._cdata and part.stride() == strides
        if not same or part.storage_offset() != end:
            return None
        end += part.shape[-1]
    width = end - first.storage_offset()
    # parts of rows of a matrix, not whole matrices one after another
    if strides[-1] != 1 or len(strides) < 2 or width > strides[-2]:
        return None
    return first.as_strided((*first.shape[:-1], width), strides)
