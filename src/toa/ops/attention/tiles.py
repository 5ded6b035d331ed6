"""ReLU and gated attention of any length by Triton kernels that hold scores in tiles, as differentiable functions.

The kernels are custom operators, so `torch.compile(fullgraph=True)` and `torch.export` keep them. Importing this file
imports Triton.

Alphabet: B batch, M queries, N keys, H heads, D query and key width, E value width, G gate width.
"""

from typing import Any, Literal, NamedTuple

import torch
import triton
from jaxtyping import Float
from torch import Tensor

from toa.ops.attention import tile_kernels
from toa.ops.attention.blocked import Factors
from toa.ops.attention.definitions import AttentionInputs, RowNorm, RowNorms
from toa.ops.attention.folded import fold, normalise_queries
from toa.ops.dropout import draw_seeds
from toa.ops.triton_helpers import SMALLEST, needs_exact_products, padded, strides_of, unit_stride

# bytes of shared memory that tiles may fill; Hopper has 227 KiB, Ampere 163
_SHARED_MEMORY = 128 * 1024

Kernel = Literal["forward", "keys", "queries"]


class Blocks(NamedTuple):
    """Tile of a kernel, and its numbers of warps and pipeline stages."""

    queries: int
    keys: int
    warps: int
    stages: int


# fastest of the tiles timed on an H200 with 4,096 tokens in bfloat16 and 866 in TF32; `benchmarks/tiles.py` times them
# keys: kernel, bytes per number, width, whether gated
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
    """The tile for a problem with m queries, n keys and heads of at most `width`.

    `exact` means that float32 products may not be rounded, so tensor cores cannot be used.
    """
    tuned = None if exact else _TUNED.get((kernel, dtype.itemsize, padded(width), gated))
    if tuned is not None and m >= tuned.queries and n >= tuned.keys:
        return tuned
    side = 128 if dtype.itemsize == 2 and width <= 64 and kernel == "forward" else 64
    stages = 2
    row = padded(width) * dtype.itemsize
    while side > SMALLEST:
        # a program holds queries, or keys and values, of its own block, and both of the blocks it loops over
        own = (1 if kernel == "forward" else 2) + gated
        if row * (own * side + (2 + gated) * stages * min(side, 64)) <= _SHARED_MEMORY:
            break
        side, stages = (side, 1) if stages > 1 else (side // 2, 2)
    queries = min(side, padded(m))
    keys = min(64, side, padded(n))
    warps = {16: 1, 32: 2, 64: 4, 128: 8}[max(queries, keys)]
    return Blocks(queries, keys, warps, stages)


_PLAIN = RowNorms()


def tiled_attention(x: AttentionInputs) -> Float[Tensor, "b m h e"]:
    """O = act(Q (S1ᵀ K)ᵀ) (S2 V) for ReLU and gated attention; the kernels scale and normalise if nothing is masked."""
    if x.unmasked:
        return attend_tiles(fold(x), scales=x.scales, norms=x.row_norms, dropout_p=x.dropout_p)
    factors = normalise_queries(x, fold(x, scale=x.scale))
    return attend_tiles(factors, causal=x.band.highest is not None, dropout_p=x.dropout_p)


def attend_tiles(
    factors: Factors,
    *,
    scales: tuple[float, float] = (1.0, 1.0),
    norms: RowNorms = _PLAIN,
    causal: bool = False,
    dropout_p: float = 0.0,
) -> Float[Tensor, "b m h e"]:
    """ReLU(Q Kᵀ) V, or softplus(Qg Kgᵀ) ⊙ ReLU(Q Kᵀ) V with a gate, of factors (B, tokens, H, width).

    `scales` multiply the scores and the gate's scores; `norms` are applied after them, and must be empty if causal.
    """
    assert not (causal and any(norms))
    if min(scales) <= 0.0:
        # the kernels take a scale out of ReLU, which a negative one does not allow
        gate_q = None if factors.gate_q is None else factors.gate_q * scales[1]
        factors, scales = factors._replace(q=factors.q * scales[0], gate_q=gate_q), (1.0, 1.0)
    (seed,) = draw_seeds(factors.q, 1) if dropout_p else (None,)
    settings, normalised = kernel_settings(scales, norms)
    out: Tensor
    out, _ = _forward(*factors, seed, [dropout_p, *settings], [*normalised, causal])
    return out


def kernel_settings(scales: tuple[float, float], norms: RowNorms) -> tuple[list[float], list[bool]]:
    """Scale, share, floor and gain of the scores, then those of the gate without its gain of 1; and which are used."""
    unused = RowNorm(share=1.0, floor=1.0, gain=1.0)
    scores, gate = norms.scores or unused, norms.gate or unused
    return [scales[0], *scores, scales[1], *gate[:2]], [norms.scores is not None, norms.gate is not None]


@torch.library.custom_op("toa::tiled_attention", mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate_q: Tensor | None,
    gate_k: Tensor | None,
    seed: Tensor | None,
    settings: list[float],
    flags: list[bool],
) -> tuple[Tensor, Tensor]:
    """The output, and the factors of normalised rows of the scores, of the gate's or of both, (0 to 2, B, H, M)."""
    out, row_factors = _empty_results(q, v, flags)
    if out.numel() == 0:
        return out, row_factors
    inputs = tuple(unit_stride(x) for x in (q, k, v, gate_q, gate_k))
    constants = _constants("forward", q, k, v, gate_q, seed, flags)
    # Triton launches on the current device, wherever the tensors are
    with torch.cuda.device_of(q):
        tile_kernels.forward_kernel[(q.shape[0] * q.shape[2], triton.cdiv(q.shape[1], constants["BLOCK_M"]))](
            *(*inputs, out, *_by_branch(row_factors, flags), seed),
            *strides_of(3, *inputs, out),
            *_sizes(q, k, v, gate_q),
            *settings,
            **constants,
        )
    return out, row_factors


def _empty_results(q: Tensor, v: Tensor, flags: list[bool]) -> tuple[Tensor, Tensor]:
    b, m, h, _ = q.shape
    row_factors = q.new_empty((sum(flags[:2]), b, h, m), dtype=torch.float32)
    return v.new_empty(b, m, h, v.shape[3]), row_factors


_forward.register_fake(lambda q, k, v, gate_q, gate_k, seed, settings, flags: _empty_results(q, v, flags))


def _by_branch(rows: Tensor, flags: list[bool]) -> tuple[Tensor | None, Tensor | None]:
    """One number per row for the scores and for the gate's scores; None for one that is not normalised."""
    return rows[0] if flags[0] else None, rows[-1] if flags[1] else None


def _sizes(q: Tensor, k: Tensor, v: Tensor, gate_q: Tensor | None) -> tuple[int, ...]:
    _, m, h, d = q.shape
    return h, m, k.shape[1], d, v.shape[3], 0 if gate_q is None else gate_q.shape[3]


def _constants(
    kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, gate_q: Tensor | None, seed: Tensor | None, flags: list[bool]
) -> dict[str, Any]:
    """Compile-time constants of a kernel."""
    _, m, n, d, e, g = _sizes(q, k, v, gate_q)
    exact, gated = needs_exact_products(q.dtype), gate_q is not None
    blocks = choose_blocks(kernel, m, n, max(d, e, g), q.dtype, gated=gated, exact=exact)
    return {
        "D": padded(d),
        "E": padded(e),
        "G": padded(g) if gated else SMALLEST,
        "GATED": gated,
        "CAUSAL": flags[2],
        "DROPOUT": seed is not None,
        "NORM": flags[0],
        "GATE_NORM": flags[1],
        "PRECISION": "ieee" if exact else "tf32",
        "BLOCK_M": blocks.queries,
        "BLOCK_N": blocks.keys,
        "num_warps": blocks.warps,
        "num_stages": blocks.stages,
    }


@torch.library.custom_op("toa::tiled_attention_backward", mutates_args=())
def _backward(
    grad: Tensor,
    out: Tensor,
    row_factors: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate_q: Tensor | None,
    gate_k: Tensor | None,
    seed: Tensor | None,
    settings: list[float],
    flags: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    (b, m, h, _), n = q.shape, k.shape[1]
    grads = _empty_gradients(q, k, v, gate_q, gate_k)
    if grad.numel() == 0:
        return tuple(x.zero_() for x in grads)  # type: ignore[return-value]
    outputs = tuple(x if x.numel() else None for x in grads)
    inputs = tuple(unit_stride(x) for x in (q, k, v, gate_q, gate_k, grad))
    out = unit_stride(out)
    of_keys, of_queries = (_constants(kernel, q, k, v, gate_q, seed, flags) for kernel in ("keys", "queries"))
    # the sums of normalised rows are written by one kernel and read by the other
    one_tile = m <= of_keys["BLOCK_M"] and n <= of_keys["BLOCK_N"] and not any(flags[:2])
    rows = (*_by_branch(row_factors, flags), *_by_branch(torch.empty_like(row_factors), flags))
    sizes = (*_sizes(q, k, v, gate_q), *settings)
    with torch.cuda.device_of(q):
        if not one_tile:
            tile_kernels.backward_queries_kernel[(b * h, triton.cdiv(m, of_queries["BLOCK_M"]))](
                *(*inputs, out, *rows, seed, outputs[0], outputs[3]),
                *(*strides_of(3, *inputs, out, outputs[0], outputs[3]), *sizes),
                **of_queries,
            )
        tile_kernels.backward_keys_kernel[(b * h, triton.cdiv(n, of_keys["BLOCK_N"]))](
            *(*inputs, *rows, seed, *outputs, *strides_of(3, *inputs, *outputs), *sizes),
            **of_keys,
            ONE_TILE=one_tile,
        )
    return grads


def _empty_gradients(*tensors: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """A buffer like each tensor; operators cannot return None, so the gradient of an absent gate is empty."""
    assert tensors[0] is not None
    return tuple(  # type: ignore[return-value]
        tensors[0].new_empty(0) if x is None else torch.empty_like(x) if x.stride(-1) == 1 else x.new_empty(x.shape)
        for x in tensors
    )


_backward.register_fake(lambda grad, out, row_factors, *rest: _empty_gradients(*rest[:5]))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*output, *inputs[:6])
    ctx.settings = inputs[6:]
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, grad: Tensor | None, grad_factors: None) -> tuple[Tensor | None, ...]:
    tensors = ctx.saved_tensors
    if grad is None:
        return (None,) * 8
    grads = _backward(grad, *tensors, *ctx.settings)
    return (*(x if given is not None else None for x, given in zip(grads, tensors[2:7], strict=True)), *(None,) * 3)


_forward.register_autograd(_gradients, setup_context=_setup_context)
