"""Diagnostics of what the operators of a trained model contribute.

Three cheap measurements after training: the distance of each operator from the identity, the size of the attention
branch relative to its input, and the rise of the validation error if the operators are set to the identity or the
attention branch is replaced by its mean.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from toa.nn import Attended, Attention, SequenceOperator, intercepted
from toa.ops.dropout import kept_random_state
from toa.training.metrics import evaluating

# below this relative change of the validation error, operators contribute nothing
NEGLIGIBLE = 1e-3


def operator_norms(model: nn.Module) -> dict[str, float]:
    """Return ‖M‖ / ‖I‖ (Frobenius norm) per operator, by module name."""
    norms = {}
    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, SequenceOperator):
                dense = module.dense()  # (H, N, N)
                eye = torch.eye(dense.shape[-1], dtype=dense.dtype, device=dense.device)
                norms[name] = float((dense - eye).norm() / (eye.norm() * dense.shape[0] ** 0.5))
    return norms


def branch_sizes(model: nn.Module, run: Callable[[], object]) -> dict[str, float]:
    """Return rms(output) / rms(query) per attention layer, by module name; `run` must call the model."""
    sizes: dict[str, float] = {}

    def measure(name: str, query: Tensor, attended: Attended) -> Attended:
        rms = [x.float().square().mean().sqrt() for x in (attended.output, query)]
        sizes[name] = float(rms[0] / rms[1].clamp_min(1e-12))
        return attended

    # random numbers drawn here must not change the run
    with kept_random_state(next(model.parameters()).device), evaluating(model), intercepted(model, measure):
        run()
    return sizes


def contributions(model: nn.Module, validate: Callable[[], float]) -> dict[str, float | None]:
    """Return the relative change of the validation error with M = 0, and with the attention averaged.

    0.03 means that the error is 3 % higher without it. An averaged attention layer returns the mean of its output over
    batch and tokens. An entry is None if the model has no such part, or if the error is zero, so that a relative change
    is undefined.
    """
    shares: dict[str, float | None] = {"operators": None, "attention": None}
    modules = list(model.modules())
    full = validate() if any(isinstance(module, Attention) for module in modules) else 0.0
    if full == 0.0:
        return shares
    offsets = [p.data for module in modules if isinstance(module, SequenceOperator) for p in module.parameters()]
    if offsets:
        before = [offset.clone() for offset in offsets]
        try:
            for offset in offsets:
                offset.zero_()
            shares["operators"] = validate() / full - 1.0
        finally:
            for offset, value in zip(offsets, before, strict=True):
                offset.copy_(value)

    def average(name: str, query: Tensor, attended: Attended) -> Attended:
        mean = attended.output.mean((0, 1), keepdim=True)
        return attended._replace(output=mean.expand_as(attended.output).contiguous())

    with intercepted(model, average):
        shares["attention"] = validate() / full - 1.0
    return shares


def describe_operators(record: Mapping[str, Any]) -> list[str]:
    """One sentence about what the operators of a run contribute; a warning if it is nothing."""
    rise = record.get("operators", {}).get("contributions", {}).get("operators")
    if rise is None:
        return []
    part = "test" if record.get("evaluation", {}).get("validation") == "TEST" else "validation"
    if rise < NEGLIGIBLE:
        return [
            f"warning: the operators contribute nothing (with M = 0 the {part} error changes by {100 * rise:+.2f} %); "
            "raise training.operator_rate, or use softmax."
        ]
    return [f"without the operators (M = 0) the {part} error is {100 * rise:.1f} % higher."]
