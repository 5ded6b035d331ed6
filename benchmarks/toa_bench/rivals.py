"""Other ways to compute the same attention, measured beside the backends: FlexAttention, and the compiled folded form.

FlexAttention takes mixed keys S1ᵀ K and values S2 V. Softmax is its own formula. ReLU is a softmax of logarithms:
exp(log ReLU(x)) = ReLU(x), so its output times the sum of its exponentials is ReLU(Q K'ᵀ) V'.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from toa import ops

# PyTorch's FlexAttention
FLEX = "flex"
# the formula, compiled by PyTorch
COMPILED = "compiled"
RIVALS = (FLEX, COMPILED)


def rival_objection(system: str, activation: str, score_norm: str, device: torch.device) -> str | None:
    """Why a rival cannot run a problem; None if it can."""
    if device.type != "cuda":
        reasons = {
            FLEX: "FlexAttention has no backward pass off CUDA",
            COMPILED: "the compiled form is compared on CUDA: compiling takes longer than measuring elsewhere",
        }
        return f"skipped: {reasons[system]}"
    if system == FLEX and (activation not in ("softmax", "relu") or score_norm != "none"):
        return "skipped: FlexAttention has one score per pair and no norm of a row: softmax and relu without score_norm"
    return None


def attend(system: str, inputs: dict[str, Tensor], offsets: dict[str, Tensor], **options: Any) -> Tensor:
    """`operator_attention` of S = I + offset by a rival."""
    return _flex(inputs, offsets, **options) if system == FLEX else _compiled()(inputs, offsets, **options)


def folded(inputs: dict[str, Tensor], offsets: dict[str, Tensor], **options: Any) -> Tensor:
    """The folded backend, as a function of tensors."""
    options |= inputs | {name: ops.Dense(offset) for name, offset in offsets.items()}
    return ops.operator_attention(**options, backend="folded")


@cache
def _compiled() -> Callable[..., Tensor]:
    return torch.compile(folded, fullgraph=True)


@cache
def _flex_kernel() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


@cache
def _causal_blocks(queries: int, keys: int, device: torch.device) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(lambda b, h, m, n: m >= n, None, None, queries, keys, device=device)


def _log_relu(score: Tensor, b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
    positive = score > 0
    # the logarithm of one where the score is not positive: no infinite gradient
    return torch.where(positive, torch.where(positive, score, 1.0).log(), -float("inf"))


def _with_log_sum(attention: Callable[..., Any], *tokens: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """The output, and the logarithm of the sum of exponentials of each row; PyTorch renamed the argument for it."""
    from torch.nn.attention import flex_attention

    if hasattr(flex_attention, "AuxRequest"):
        out, more = attention(*tokens, **options, return_aux=flex_attention.AuxRequest(lse=True))
        return out, more.lse
    out, log_sum = attention(*tokens, **options, return_lse=True)
    return out, log_sum


def _flex(
    inputs: dict[str, Tensor],
    offsets: dict[str, Tensor],
    *,
    activation: str,
    scale: float,
    causal: bool = False,
    kernel: Callable[..., Any] | None = None,
    **norms: str,
) -> Tensor:
    q, k, v = (inputs[name] for name in ("q", "k", "v"))
    k = ops.Dense(offsets["s1"]).mix(k, transpose=True, causal=causal)
    v = ops.Dense(offsets["s2"]).mix(v, causal=causal)
    heads_first = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    options: dict[str, Any] = {"scale": scale}
    if causal:
        options["block_mask"] = _causal_blocks(q.shape[1], k.shape[1], q.device)
    attention = _flex_kernel() if kernel is None else kernel
    if activation != "relu":
        return attention(*heads_first, **options).transpose(1, 2)
    out, log_sum = _with_log_sum(attention, *heads_first, score_mod=_log_relu, **options)
    # a row without a positive score has no sum
    some = (log_sum > -float("inf")).unsqueeze(-1)
    return torch.where(some, out * log_sum.exp().unsqueeze(-1).to(out.dtype), 0.0).transpose(1, 2)
