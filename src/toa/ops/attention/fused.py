"""The Triton kernels as differentiable functions of tensors: launches, block sizes, and registration with PyTorch.

Registered as custom operators, they pass through `torch.compile(fullgraph=True)` and `torch.export` whole. Importing
this file imports Triton.

Alphabet: B batch, M queries, N keys, H heads, D query and key width, E value width, G gate width.
"""

from typing import Any, Literal, NamedTuple

import torch
import triton
from jaxtyping import Float
from torch import Tensor

from toa.ops.attention import kernels
from toa.ops.attention.definitions import RowNorm, RowNorms

# tensor cores multiply tiles of at least this size
SMALLEST = 16


# bytes of a chip's shared memory that tiles may fill; Hopper has 227 KiB, Ampere 163
_SHARED_MEMORY = 128 * 1024

Kernel = Literal["forward", "keys", "queries"]


class Blocks(NamedTuple):
    """Tile of a kernel, and how many warps and pipeline stages work on it."""

    queries: int
    keys: int
    warps: int
    stages: int


# fastest of those timed on an H200, 4,096 tokens in bfloat16 and 866 in TF32: (kernel, bytes of a number, width, gated)
_TUNED: dict[tuple[Kernel, int, int, bool], Blocks] = {
    ("forward", 2, 64, False): Blocks(128, 64, 4, 3),
    ("forward", 2, 64, True): Blocks(128, 64, 4, 3),
    ("keys", 2, 64, False): Blocks(32, 128, 4, 3),
    ("keys", 2, 64, True): Blocks(64, 64, 4, 3),
    ("queries", 2, 64, False): Blocks(128, 64, 4, 3),
    ("queries", 2, 64, True): Blocks(128, 64, 8, 3),
    ("forward", 4, 64, False): Blocks(128, 64, 8, 1),
    ("forward", 4, 64, True): Blocks(128, 64, 8, 3),
    ("keys", 4, 64, False): Blocks(64, 128, 8, 2),
    ("queries", 4, 64, False): Blocks(128, 32, 4, 2),
    ("keys", 4, 64, True): Blocks(32, 128, 8, 1),
    ("queries", 4, 64, True): Blocks(128, 32, 8, 1),
}


def choose_blocks(
    kernel: Kernel, m: int, n: int, width: int, dtype: torch.dtype, *, gated: bool, exact: bool = False
) -> Blocks:
    """The tile for a problem; small ones are covered by a single one.

    Args:
        kernel: "forward", or that of the gradients of keys and values, or that of queries.
        m: Queries.
        n: Keys.
        width: The largest of the heads' widths.
        dtype: Of the inputs.
        gated: Whether there is a gate.
        exact: Whether float32 products may not be rounded, so that tensor cores stand idle.
    """
    tuned = None if exact else _TUNED.get((kernel, dtype.itemsize, padded(width), gated))
    if tuned is not None and m >= tuned.queries and n >= tuned.keys:
        return tuned
    side = 128 if dtype.itemsize == 2 and width <= 64 and kernel == "forward" else 64
    stages = 2
    row = padded(width) * dtype.itemsize
    while side > SMALLEST:
        # of the tokens it owns a program holds queries or keys and values, of those it walks over, both
        own = (1 if kernel == "forward" else 2) + gated
        if row * (own * side + (2 + gated) * stages * min(side, 64)) <= _SHARED_MEMORY:
            break
        side, stages = (side, 1) if stages > 1 else (side // 2, 2)
    queries = min(side, padded(m))
    keys = min(64, side, padded(n))
    warps = {16: 1, 32: 2, 64: 4, 128: 8}[max(queries, keys)]
    return Blocks(queries, keys, warps, stages)


_AS_THEY_ARE = RowNorms()


def kernel_attention(
    q: Float[Tensor, "b m h d"],
    k: Float[Tensor, "b n h d"],
    v: Float[Tensor, "b n h e"],
    gate_q: Float[Tensor, "b m h g"] | None,
    gate_k: Float[Tensor, "b n h g"] | None,
    *,
    scales: tuple[float, float] = (1.0, 1.0),
    rows: RowNorms = _AS_THEY_ARE,
    causal: bool,
    dropout_p: float,
) -> Float[Tensor, "b m h e"]:
    """ReLU(Q Kᵀ) V, or softplus(Qg Kgᵀ) ⊙ ReLU(Q Kᵀ) V with a gate; float32 products round as PyTorch's may.

    Scores and the gate's are scaled, and their rows normalised, before the activation; see `KernelAttention`.
    """
    assert not (causal and (rows.left or rows.right))
    if min(scales) <= 0.0:
        # a kernel takes a scale out of ReLU
        q, gate_q = q * scales[0], None if gate_q is None else gate_q * scales[1]
        scales = (1.0, 1.0)
    seed = torch.randint(2**31, (1,), device=q.device, dtype=torch.int32) if dropout_p else None
    plain = RowNorm(0.0, 1.0, 1.0)
    # the gate's gain is one
    settings = [scales[0], *(rows.left or plain), scales[1], *(rows.right or plain)[:2]]
    norms = [rows.left is not None, rows.right is not None]
    out: Tensor
    out, _ = _forward(q, k, v, gate_q, gate_k, seed, settings, norms, causal, dropout_p)
    return out


def needs_exact_products(dtype: torch.dtype) -> bool:
    """Whether products of float32 may not be rounded to TF32, as PyTorch is set.

    To be asked inside custom operators: PyTorch 2.11 cannot trace the question.
    """
    return dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"


@torch.library.custom_op("toa::kernel_attention", mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate_q: Tensor | None,
    gate_k: Tensor | None,
    seed: Tensor | None,
    settings: list[float],
    norms: list[bool],
    causal: bool,
    dropout_p: float,
) -> tuple[Tensor, Tensor]:
    """The output, and the factors of normalised rows, of the scores, of the gate's or of both: (0 to 2, B, H, M)."""
    (b, m, h, d), (n, e) = q.shape, (v.shape[1], v.shape[3])
    out, factors = _empty_results(q, v, norms)
    if out.numel() == 0:
        return out, factors
    q, k, v, gate_q, gate_k = (rows_by_one(x) for x in (q, k, v, gate_q, gate_k))
    g = 0 if gate_q is None else gate_q.shape[3]
    exact = needs_exact_products(q.dtype)
    blocks = choose_blocks("forward", m, n, max(d, e, g), q.dtype, gated=gate_q is not None, exact=exact)
    # Triton launches on the current device, wherever the tensors are
    with torch.cuda.device_of(q):
        kernels.forward_kernel[(b * h, triton.cdiv(m, blocks.queries))](
            *(q, k, v, gate_q, gate_k, out, *_of_branches(factors, norms), seed),
            *strides_of(3, q, k, v, gate_q, gate_k, out),
            *(h, m, n, d, e, g, dropout_p, *settings),
            **_constants(d, e, g, gate_q is not None, norms, causal, dropout_p, exact, blocks),
        )
    return out, factors


@_forward.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, gate_q: Any, gate_k: Any, seed: Any, settings: Any, norms: list[bool], *rest: Any
) -> tuple[Tensor, Tensor]:
    return _empty_results(q, v, norms)


def _empty_results(q: Tensor, v: Tensor, norms: list[bool]) -> tuple[Tensor, Tensor]:
    b, m, h, _ = q.shape
    factors = q.new_empty((sum(norms), b, h, m), dtype=torch.float32)
    return v.new_empty(b, m, h, v.shape[3]), factors


def _of_branches(rows: Tensor, norms: list[bool]) -> tuple[Tensor | None, Tensor | None]:
    """A number a row for the scores and the gate's, where they are normalised."""
    left, right = norms
    return rows[0] if left else None, rows[-1] if right else None


@torch.library.custom_op("toa::kernel_attention_backward", mutates_args=())
def _backward(
    grad: Tensor,
    out: Tensor,
    factors: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate_q: Tensor | None,
    gate_k: Tensor | None,
    seed: Tensor | None,
    settings: list[float],
    norms: list[bool],
    causal: bool,
    dropout_p: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    (b, m, h, d), (n, e) = q.shape, (v.shape[1], v.shape[3])
    gated = gate_q is not None
    grads = _empty_gradients(q, k, v, gate_q, gate_k)
    if grad.numel() == 0:
        return tuple(x.zero_() for x in grads)  # type: ignore[return-value]
    grad_q, grad_k, grad_v, grad_gate_q, grad_gate_k = (x if x.numel() else None for x in grads)
    grad, out, q, k, v, gate_q, gate_k = (rows_by_one(x) for x in (grad, out, q, k, v, gate_q, gate_k))
    g = gate_q.shape[3] if gate_q is not None else 0
    exact = needs_exact_products(q.dtype)
    blocks, others = (
        choose_blocks(kernel, m, n, max(d, e, g), q.dtype, gated=gated, exact=exact) for kernel in ("keys", "queries")
    )
    # rows that are normalised have sums that the one kernel takes and the other reads
    whole = m <= blocks.queries and n <= blocks.keys and not any(norms)
    inputs = (q, k, v, gate_q, gate_k, grad)
    rows = (*_of_branches(factors, norms), *_of_branches(torch.empty_like(factors), norms))
    sizes = (h, m, n, d, e, g, dropout_p, *settings)
    outputs = (grad_q, grad_k, grad_v, grad_gate_q, grad_gate_k)
    with torch.cuda.device_of(q):
        if not whole:
            kernels.backward_queries_kernel[(b * h, triton.cdiv(m, others.queries))](
                *(*inputs, out, *rows, seed, grad_q, grad_gate_q),
                *(*strides_of(3, *inputs, out, grad_q, grad_gate_q), *sizes),
                **_constants(d, e, g, gated, norms, causal, dropout_p, exact, others),
            )
        kernels.backward_keys_kernel[(b * h, triton.cdiv(n, blocks.keys))](
            *(*inputs, *rows, seed, *outputs, *strides_of(3, *inputs, *outputs), *sizes),
            **_constants(d, e, g, gated, norms, causal, dropout_p, exact, blocks),
            WHOLE=whole,
        )
    return grads


@_backward.register_fake
def _(
    grad: Tensor,
    out: Tensor,
    factors: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate_q: Tensor | None,
    gate_k: Tensor | None,
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _empty_gradients(q, k, v, gate_q, gate_k)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*output, *inputs[:6])
    ctx.settings = inputs[6:]
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, grad: Tensor | None, grad_factors: None) -> tuple[Tensor | None, ...]:
    tensors = ctx.saved_tensors
    nothing = (None,) * len(ctx.settings)
    if grad is None:
        return (*(None,) * 6, *nothing)
    grads = _backward(grad, *tensors, *ctx.settings)
    kept = [x if given is not None else None for x, given in zip(grads, tensors[2:7], strict=True)]
    return (*kept, None, *nothing)


_forward.register_autograd(_gradients, setup_context=_setup_context)


def _empty_gradients(
    q: Tensor, k: Tensor, v: Tensor, gate_q: Tensor | None, gate_k: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Room for every gradient, laid out as what it is of; an operator leaves none out, so that of no gate is empty."""
    return tuple(  # type: ignore[return-value]
        q.new_empty(0) if x is None else torch.empty_like(x) if x.stride(-1) == 1 else x.new_empty(x.shape)
        for x in (q, k, v, gate_q, gate_k)
    )


def rows_by_one(x: Tensor | None) -> Any:
    """The kernels step along the last axis by one."""
    return x if x is None or x.stride(-1) == 1 else x.contiguous()


def strides_of(axes: int, *tensors: Tensor | None) -> list[int]:
    """Strides of the leading axes of each tensor; zeros for one that is not there."""
    return [stride for x in tensors for stride in ((0,) * axes if x is None else x.stride()[:axes])]


def padded(size: int) -> int:
    """A width or length as the kernels hold it."""
    return max(SMALLEST, triton.next_power_of_2(size))


def _constants(
    d: int,
    e: int,
    g: int,
    gated: bool,
    norms: list[bool],
    causal: bool,
    dropout_p: float,
    exact: bool,
    blocks: Blocks,
) -> dict[str, Any]:
    return {
        "D": padded(d),
        "E": padded(e),
        "G": padded(g) if gated else SMALLEST,
        "GATED": gated,
        "CAUSAL": causal,
        "DROPOUT": dropout_p > 0.0,
        "NORM": norms[0],
        "GATE_NORM": norms[1],
        "PRECISION": "ieee" if exact else "tf32",
        "BLOCK_M": blocks.queries,
        "BLOCK_N": blocks.keys,
        "num_warps": blocks.warps,
        "num_stages": blocks.stages,
    }
