"""Fused optimizers that spread small models evenly over a GPU.

PyTorch's fused kernels give 2¹⁶ numbers to each block of threads, so a model of a million weights uses a tenth of a
large GPU. Cut into pieces, its weights are updated by as many blocks as there are processors. Results, state and file
format are those of PyTorch.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# numbers per block in PyTorch's kernels, fewest numbers worth a block, and blocks per one or two launches
_BLOCK = 2**16
_LEAST = 2**14
_PIECES = 64

# alignment of pieces, for vectorised reads
_ALIGNMENT = 1024


class _Piecewise(torch.optim.Optimizer):
    """A step of Adam or AdamW with tensors cut into pieces."""

    _update: Callable[..., None]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        total = sum(p.numel() for group in self.param_groups for p in group["params"])
        size = max(_LEAST, -(-total // (_PIECES * _ALIGNMENT)) * _ALIGNMENT)
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            states = [self._state(p) for p in params]
            steps = [state["step"] for state in states]
            if not params:
                continue
            torch._foreach_add_(steps, 1)
            rows = [
                piece
                for p, state in zip(params, states, strict=True)
                for piece in _pieces((p, p.grad, state["exp_avg"], state["exp_avg_sq"]), state["step"], size)
            ]
            values, grads, firsts, seconds, counts = map(list, zip(*rows, strict=True))
            type(self)._update(
                *(values, grads, firsts, seconds, [], counts),
                lr=group["lr"],
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
            )
        return loss

    def _state(self, p: Tensor) -> dict[str, Tensor]:
        """Initial state, as in PyTorch."""
        state: dict[str, Tensor] = self.state[p]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=p.device)
            state["exp_avg"] = torch.zeros_like(p, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(p, memory_format=torch.preserve_format)
        return state


class PiecewiseAdam(_Piecewise, torch.optim.Adam):
    """`torch.optim.Adam`, fused."""

    _update = torch._fused_adam_


class PiecewiseAdamW(_Piecewise, torch.optim.AdamW):
    """`torch.optim.AdamW`, fused."""

    _update = torch._fused_adamw_


def _pieces(tensors: tuple[Tensor, ...], step: Tensor, size: int) -> list[tuple[Tensor, ...]]:
    """Cut tensors of one shape into equal pieces, each with the step count."""
    if size >= _BLOCK or tensors[0].numel() <= size or not all(x.is_contiguous() for x in tensors):
        return [(*tensors, step)]
    cut = (x.view(-1).split(size) for x in tensors)
    return [(*pieces, step) for pieces in zip(*cut, strict=True)]
