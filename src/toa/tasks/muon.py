"""Muon for the offsets of operators: orthogonalised momentum, one matrix per head (Jordan et al., 2024).

`torch.optim.Muon` accepts only single matrices and no CUDA graphs; operators are stacks of matrices (H, N, N).
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

# the authors' coefficients of the quintic Newton-Schulz iteration
_A, _B, _C = 3.4445, -4.7750, 2.0315
_STEPS = 5
_MOMENTUM = 0.95


def orthogonalise(matrices: Tensor) -> Tensor:
    """Return nearly orthogonal matrices: the singular values of (..., N, N) move to between 0.7 and 1.2."""
    x = matrices / (matrices.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(_STEPS):
        gram = x @ x.mT
        x = _A * x + (_B * gram + _C * gram @ gram) @ x
    return x


class Muon(torch.optim.Optimizer):
    """Orthogonalised Nesterov momentum with decoupled weight decay.

    The update has root mean square 0.2, about that of AdamW, so that both can use the same learning rates.
    """

    def __init__(self, params: Iterable[Any]) -> None:
        super().__init__(params, {"lr": 1e-3, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update all parameters that have a gradient."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                momentum = state["momentum"].lerp_(p.grad, 1.0 - _MOMENTUM)
                update = orthogonalise(p.grad.lerp(momentum, _MOMENTUM)) * (0.2 * p.shape[-1] ** 0.5)
                p.mul_(1.0 - group["lr"] * group["weight_decay"]).sub_(update * group["lr"])


class WithMuon(torch.optim.Optimizer):
    """Two optimizers as one: Muon for operators, another for all other weights."""

    def __init__(self, other: torch.optim.Optimizer, operators: list[dict[str, Any]]) -> None:
        self.other, self.muon = other, Muon(operators)
        super().__init__([*other.param_groups, *self.muon.param_groups], {})
        self._count = sum(len(group["params"]) for group in other.param_groups)
        self.param_groups = [*other.param_groups, *self.muon.param_groups]

    def step(self, closure: Any = None) -> Any:
        """Take a step with both optimizers."""
        self.other.step()
        self.muon.step()

    def state_dict(self) -> dict[str, Any]:
        """Return both states as one; parameters are numbered in the order of the groups."""
        first, second = self.other.state_dict(), self.muon.state_dict()
        moved = {self._count + index: value for index, value in second["state"].items()}
        return {"state": first["state"] | moved, "param_groups": first["param_groups"] + second["param_groups"]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        split, groups, states = len(self.other.param_groups), state_dict["param_groups"], state_dict["state"]
        first = {index: value for index, value in states.items() if index < self._count}
        second = {index - self._count: value for index, value in states.items() if index >= self._count}
        self.other.load_state_dict({"param_groups": groups[:split], "state": first})
        self.muon.load_state_dict({"param_groups": groups[split:], "state": second})
        self.param_groups = [*self.other.param_groups, *self.muon.param_groups]
