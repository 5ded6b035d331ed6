"""ReLU and gated attention of any length by Triton kernels that hold scores in tiles, as one differentiable function.

Each direction is one custom operator, dense operators included: `torch.compile(fullgraph=True)` and `torch.export`
keep it, and an eager call costs the host little. Importing this file imports Triton.

Alphabet: B batch, M queries, N keys, H heads, D query and key width, E value width, G gate width.
"""

import functools
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from toa.ops._backend import kernel_op
from toa.ops.attention import tile_kernels
from toa.ops.attention.blocked import Factors
from toa.ops.attention.definitions import AttentionInputs, Band, RowNorm, RowNorms
from toa.ops.attention.folded import fold, normalise_queries
from toa.ops.dropout import draw_seeds
from toa.ops.mixing import empty_mixed, mix_op, outer_op
from toa.ops.operators import Dense, Operator
from toa.ops.triton_helpers import SMALLEST, launch, needs_exact_products, padded, strides_of, unit_stride

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


@functools.cache
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
_NO_BAND = Band()


class Offsets(NamedTuple):
    """S1, S2 and the gate's S1 as matrices (H, N, N), None for the identity, with seeds and rates of dropped entries.

    There are seeds and rates of all matrices or of none. `residual` tells whether the identity is added.
    """

    matrices: Sequence[Tensor | None] = (None, None, None)
    seeds: Sequence[Tensor] = ()
    rates: Sequence[Tensor] = ()
    residual: Sequence[bool] = (True, True, True)

    @classmethod
    def of(cls, x: AttentionInputs) -> "Offsets | None":
        """Those of a call; None unless each operator is dense, with a matrix per head of queries and keys."""
        operators: list[Operator | None] = [x.s1, x.s2, x.gate_s1]
        heads, n = x.q.shape[2], x.k.shape[1]
        # a last query sees all keys, but causal operators are triangles
        if any(s is not None and (x.causal or not isinstance(s, Dense) or s.num_heads != heads) for s in operators):
            return None
        if any(tokens is not None and tokens.shape[2] != heads for tokens in (x.k, x.v, x.gate_k)):
            return None
        dense = [s for s in operators if isinstance(s, Dense)]
        drops = [s.drop for s in dense if s.drop is not None]
        if len(drops) < len(dense):
            drops, found = [], iter([s.offset for s in dense])
        else:
            found = iter([s.weight for s in dense])
        # a block of all entries would be one more node of the autograd graph
        matrices = [None if s is None else next(found) for s in operators]
        matrices = [s if s is None or s.shape[1] == n else s[:, :n, :n] for s in matrices]
        residual = [s.residual if isinstance(s, Dense) else True for s in operators]
        return cls(matrices, [drop.seed for drop in drops], [drop.rate for drop in drops], residual)


_IDENTITIES = Offsets()


def tiled_attention(x: AttentionInputs) -> Float[Tensor, "b m h e"]:
    """O = act(Q (S1ᵀ K)ᵀ) (S2 V) for ReLU and gated attention; the kernels scale and normalise if nothing is masked."""
    if not x.unmasked:
        return attend_tiles(normalise_queries(x, fold(x, scale=x.scale)), band=x.band, dropout_p=x.dropout_p)
    offsets = Offsets.of(x)
    factors = fold(x) if offsets is None else Factors(x.q, x.k, x.v, x.gate_q, x.gate_k)
    return attend_tiles(factors, offsets or _IDENTITIES, scales=x.scales, norms=x.row_norms, dropout_p=x.dropout_p)


def attend_tiles(
    factors: Factors,
    offsets: Offsets = _IDENTITIES,
    *,
    scales: tuple[float, float] = (1.0, 1.0),
    norms: RowNorms = _PLAIN,
    band: Band = _NO_BAND,
    dropout_p: float = 0.0,
) -> Float[Tensor, "b m h e"]:
    """ReLU(Q Kᵀ) V, or softplus(Qg Kgᵀ) ⊙ ReLU(Q Kᵀ) V with a gate, of factors (B, tokens, H, width).

    `offsets` mix keys and values first. `scales` multiply the scores and the gate's scores; `norms` are applied after
    them, and must be empty if there is a band.
    """
    assert band == _NO_BAND or not any(norms)
    if min(scales) <= 0.0:
        # the kernels take a scale out of ReLU, which a negative one does not allow
        gate_q = None if factors.gate_q is None else factors.gate_q * scales[1]
        factors, scales = factors._replace(q=factors.q * scales[0], gate_q=gate_q), (1.0, 1.0)
    seed = draw_seeds(factors.q) if dropout_p else None
    settings, normalised = kernel_settings(scales, norms)
    matrices, seeds, rates, residual = offsets
    out: Tensor = _forward(
        *(*factors, *matrices, seed, seeds, rates),
        *([float(dropout_p), *settings], [*normalised, *residual], _bounds(band, factors.k.shape[1])),
    )[0]
    return out


def _bounds(band: Band, n: int) -> list[int]:
    """The band as the operators take it: number of bounds (the upper one, or both), lower and upper bound."""
    if band.lowest is not None:
        return [2, band.lowest, n if band.highest is None else band.highest]
    return [0, 0, 0] if band.highest is None else [1, 0, band.highest]


def kernel_settings(scales: tuple[float, float], norms: RowNorms) -> tuple[list[float], list[bool]]:
    """Scale, share, floor and gain of the scores, then those of the gate without its gain of 1; and which are used."""
    unused = RowNorm(share=1.0, floor=1.0, gain=1.0)
    scores, gate = norms.scores or unused, norms.gate or unused
    return [float(scales[0]), *scores, float(scales[1]), *gate[:2]], [norms.scores is not None, norms.gate is not None]


# arguments of an operator: tokens, operators, and seeds of dropout and of dropped entries, with their rates
ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? gate_q, Tensor? gate_k, Tensor? m1, Tensor? m2, Tensor? gate_m1, "
    "Tensor? seed, Tensor[] drop_seeds, Tensor[] drop_rates"
)
_SETTINGS = "float[] settings, bool[] flags, int[] band"


@kernel_op("tiled_attention", f"({ARGUMENTS}, {_SETTINGS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)")
def _forward(*arguments: Any) -> tuple[Tensor, ...]:
    """The output, the factors of normalised rows, (0 to 2, B, H, M), and mixed keys, values and keys of the gate.

    Factors are those of the scores, of the gate's or of both. Tokens that are not mixed are empty.
    """
    q, k, v, gate_q, gate_k = tokens = arguments[:5]
    seed, drop_seeds, drop_rates, settings, flags, band = arguments[8:]
    out, row_factors = _empty_results(q, v, flags)
    operators = _operators(arguments[5:8], drop_seeds, drop_rates, flags)
    mixed = [
        q.new_empty(0) if s is None else mix_op.run(x, *s.mixing, s.transposed, s.residual, True)
        for x, s in zip((k, v, gate_k), operators, strict=True)
    ]
    if out.numel():
        inputs = _inputs(tokens, mixed)
        constants, options = _constants("forward", q, k, v, gate_q, seed, flags, band)
        launch(
            tile_kernels.forward_kernel,
            (q.shape[0] * q.shape[2], -(-q.shape[1] // constants["BLOCK_M"])),
            (*inputs, out, *_by_branch(row_factors, flags), seed),
            (*strides_of(3, *inputs, out), *_sizes(q, k, v, gate_q), *band[1:]),
            *(settings, constants, options),
        )
    return out, row_factors, *mixed


class _Mixing(NamedTuple):
    """An operator of a call: matrix, seed and rate, whether it is transposed, and whether the identity is added."""

    mixing: tuple[Tensor, Tensor | None, Tensor | None]
    transposed: bool
    residual: bool


def _operators(
    matrices: Sequence[Tensor | None], seeds: Sequence[Tensor], rates: Sequence[Tensor], flags: Sequence[bool]
) -> list[_Mixing | None]:
    """The operators of keys, values and keys of the gate."""
    drops = iter(zip(seeds, rates, strict=True))
    return [
        None if matrix is None else _Mixing((matrix, *(next(drops) if seeds else (None, None))), index != 1, residual)
        for index, (matrix, residual) in enumerate(zip(matrices, flags[2:], strict=True))
    ]


def _inputs(tokens: Sequence[Any], mixed: Sequence[Tensor]) -> tuple[Any, ...]:
    """Queries, keys and values as the kernels read them: mixed where an operator mixes them."""
    q, k, v, gate_q, gate_k = tokens
    k, v, gate_k = (x if y.dim() == 1 else y for x, y in zip((k, v, gate_k), mixed, strict=True))
    return tuple([unit_stride(x) for x in (q, k, v, gate_q, gate_k)])


def _empty_results(q: Tensor, v: Tensor, flags: list[bool]) -> tuple[Tensor, Tensor]:
    b, m, h, _ = q.shape
    row_factors = q.new_empty((sum(flags[:2]), b, h, m), dtype=torch.float32)
    return v.new_empty(b, m, h, v.shape[3]), row_factors


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, gate_q: Any, gate_k: Any, *rest: Any) -> tuple[Tensor, ...]:
    pairs = zip((k, v, gate_k), rest[:3], strict=True)
    mixed = (q.new_empty(0) if matrix is None else empty_mixed(x, True) for x, matrix in pairs)
    return *_empty_results(q, v, rest[-2]), *mixed


def _by_branch(rows: Tensor, flags: list[bool]) -> tuple[Tensor | None, Tensor | None]:
    """One number per row for the scores and for the gate's scores; None for one that is not normalised."""
    return rows[0] if flags[0] else None, rows[-1] if flags[1] else None


def _sizes(q: Tensor, k: Tensor, v: Tensor, gate_q: Tensor | None) -> tuple[int, ...]:
    _, m, h, d = q.shape
    return h, m, k.shape[1], d, v.shape[3], 0 if gate_q is None else gate_q.shape[3]


def _constants(
    kernel: Kernel,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate_q: Tensor | None,
    seed: Tensor | None,
    flags: list[bool],
    band: list[int],
) -> tuple[dict[str, Any], dict[str, int]]:
    """Compile-time constants of a kernel, in the order of its arguments, and its numbers of warps and stages."""
    _, m, n, d, e, g = _sizes(q, k, v, gate_q)
    exact, gated = needs_exact_products(q.dtype), gate_q is not None
    blocks = choose_blocks(kernel, m, n, max(d, e, g), q.dtype, gated=gated, exact=exact)
    constants = {
        "D": padded(d),
        "E": padded(e),
        "G": padded(g) if gated else SMALLEST,
        "GATED": gated,
        "BAND": band[0],
        "DROPOUT": seed is not None,
        "NORM": flags[0],
        "GATE_NORM": flags[1],
        "PRECISION": "ieee" if exact else "tf32",
        "BLOCK_M": blocks.queries,
        "BLOCK_N": blocks.keys,
    }
    return constants, {"num_warps": blocks.warps, "num_stages": blocks.stages}


@kernel_op(
    "tiled_attention_backward",
    f"(Tensor grad, Tensor[] mixed, Tensor out, Tensor row_factors, {ARGUMENTS}, {_SETTINGS}) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _backward(
    grad: Tensor, mixed: list[Tensor], out: Tensor, row_factors: Tensor, *arguments: Any
) -> tuple[Tensor, ...]:
    """Gradients of queries, keys, values, gate and operators; absent ones are empty, because None is not a result.

    Mixed tokens are dropped from the list `mixed` as soon as they are not needed: backward then needs less memory.
    """
    q, k, v, gate_q, gate_k = arguments[:5]
    seed, drop_seeds, drop_rates, settings, flags, band = arguments[8:]
    if grad.numel() == 0:
        return tuple(x.zero_() for x in _empty_gradients(*arguments[:8]))
    inputs = (*_inputs(arguments[:5], mixed), unit_stride(grad))
    grads: list[Any] = [None if x is None else _empty_like(x) for x in inputs[:5]]
    _launch_backward(inputs, grads, (q, k, v, gate_q), out, row_factors, seed, settings, flags, band)
    del inputs
    mixed.clear()
    of_matrices: list[Tensor | None] = []
    operators = _operators(arguments[5:8], drop_seeds, drop_rates, flags)
    for index, x, s in zip((1, 2, 4), (k, v, gate_k), operators, strict=True):
        if s is None or x is None:
            of_matrices.append(None)
            continue
        found = grads[index]
        grads[index] = mix_op.run(found, *s.mixing, not s.transposed, s.residual, False)
        left, right = (x, found) if s.transposed else (found, x)
        of_matrices.append(outer_op.run(left, right, *s.mixing[1:], s.mixing[0].dtype))
    return tuple([q.new_empty(0) if x is None else x for x in (*grads, *of_matrices)])


def _launch_backward(
    inputs: Sequence[Any],
    grads: Sequence[Any],
    tokens: tuple[Tensor, Tensor, Tensor, Tensor | None],
    out: Tensor,
    row_factors: Tensor,
    seed: Tensor | None,
    settings: list[float],
    flags: list[bool],
    band: list[int],
) -> None:
    """Write the gradients of queries, mixed keys and mixed values; `inputs` ends with the gradient of the output."""
    (b, m, h, _), n = tokens[0].shape, tokens[1].shape[1]
    out = unit_stride(out)
    (of_keys, keys_options), (of_queries, options) = (
        _constants(kernel, *tokens, seed, flags, band) for kernel in ("keys", "queries")
    )
    # the sums of normalised rows are written by one kernel and read by the other
    one_tile = m <= of_keys["BLOCK_M"] and n <= of_keys["BLOCK_N"] and not any(flags[:2])
    rows = (*_by_branch(row_factors, flags), *_by_branch(torch.empty_like(row_factors), flags))
    sizes = (*_sizes(*tokens), *band[1:])
    if not one_tile:
        launch(
            tile_kernels.backward_queries_kernel,
            (b * h, -(-m // of_queries["BLOCK_M"])),
            (*inputs, out, *rows, seed, grads[0], grads[3]),
            (*strides_of(3, *inputs, out, grads[0], grads[3]), *sizes),
            *(settings, of_queries, options),
        )
    launch(
        tile_kernels.backward_keys_kernel,
        (b * h, -(-n // of_keys["BLOCK_N"])),
        (*inputs, *rows, seed, *grads),
        (*strides_of(3, *inputs, *grads), *sizes),
        *(settings, of_keys | {"ONE_TILE": one_tile}, keys_options),
    )


def _empty_like(x: Tensor) -> Tensor:
    return torch.empty_like(x) if x.stride(-1) == 1 else x.new_empty(x.shape)


def _empty_gradients(*inputs: Tensor | None) -> tuple[Tensor, ...]:
    """A buffer like the gradient of each of the first eight inputs."""
    q, n = inputs[0], inputs[1].shape[1]  # type: ignore[union-attr]
    mixed = (None, inputs[5], inputs[6], None, inputs[7])
    assert q is not None
    tokens = (
        q.new_empty(0) if x is None else _empty_like(x) if s is None else x.new_empty(x.shape)
        for x, s in zip(inputs[:5], mixed, strict=True)
    )
    return *tokens, *(q.new_empty(0) if s is None else s.new_empty(len(s), n, n) for s in inputs[5:8])


_backward.register_fake(lambda *inputs: _empty_gradients(*inputs[4:12]))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    tensors, (seeds, rates) = inputs[:9], inputs[9:11]
    ctx.mark_non_differentiable(*output[1:])
    # no zeros in place of their gradients
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output, *tensors, *seeds, *rates)
    ctx.settings, ctx.drops = inputs[11:], len(seeds)


def _gradients(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Any, ...]:
    nothing = [None] * ctx.drops
    if grad is None:
        return (*(None,) * 9, nothing, nothing, None, None, None)
    tensors = list(ctx.saved_tensors)
    # unless the graph is kept: the only references are then those of this function
    ctx.maybe_clear_saved_tensors()
    mixed = tensors[2:5]
    del tensors[2:5]
    seeds, rates = tensors[11 : 11 + ctx.drops], tensors[11 + ctx.drops :]
    grads = _backward(grad, mixed, *tensors[:11], seeds, rates, *ctx.settings)
    given = (x if like is not None else None for x, like in zip(grads, tensors[2:10], strict=True))
    return (*given, None, nothing, nothing, None, None, None)


_forward.register_autograd(_gradients, setup_context=_setup_context)
