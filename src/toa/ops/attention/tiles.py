"""ReLU and gated attention of any length by Triton kernels that hold scores in tiles, as one differentiable function.

Each direction is one custom operator, dense operators included: `torch.compile(fullgraph=True)` and `torch.export`
keep it, and an eager call costs the host little. Importing this file imports Triton.

Alphabet: B batch, M queries, N keys, H heads, D query and key width, E value width, G gate width.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from triton.compiler.compiler import max_shared_mem

from toa.ops._backend import PLAIN, kernel_op
from toa.ops.attention import tile_kernels
from toa.ops.attention.blocked import Factors
from toa.ops.attention.definitions import AttentionInputs, Band, RowNorm, RowNorms
from toa.ops.attention.folded import fold
from toa.ops.dropout import draw_seeds
from toa.ops.mixing import Mixing, empty_mixed, mix_all, mix_all_backward
from toa.ops.operators import Dense
from toa.ops.triton_helpers import SMALLEST, Launch, needs_exact_products, padded, prepare, strides_of, unit_stride

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
        """Those of a call; None unless `dense_operators` has them."""
        operators = dense_operators(x)
        if operators is None:
            return None
        if len({s.drop is None for s in operators if s is not None}) > 1:
            operators = [None if s is None else Dense(s.offset(s.num_tokens), s.residual) for s in operators]
        return cls(*_split(operators, x.k.shape[1]), [s is None or s.residual for s in operators])


def _split(operators: Sequence[Any], n: int) -> tuple[list[Any], list[Tensor], list[Tensor]]:
    """Leading blocks of operators, each a tensor, `Dense` or None, and seeds and rates of dropped entries."""
    matrices: list[Any] = []
    seeds: list[Tensor] = []
    rates: list[Tensor] = []
    for s in operators:
        matrix = s if s is None or type(s) in PLAIN else s.weight
        # a block of all entries would be one more node of the autograd graph
        matrices.append(matrix if matrix is None or matrix.shape[1] == n else matrix[:, :n, :n])
        if matrix is not s and s.drop is not None:
            seeds.append(s.drop.seed)
            rates.append(s.drop.rate)
    return matrices, seeds, rates


def dense_operators(x: AttentionInputs) -> list[Any] | None:
    """S1, S2 and the gate's S1, each `Dense` or None; None unless each has a matrix per head of queries and keys."""
    operators = [x.s1, x.s2, x.gate_s1]
    heads = x.q.shape[2]
    # a last query sees all keys, but causal operators are triangles
    if any(s is not None and (x.causal or not isinstance(s, Dense) or s.num_heads != heads) for s in operators):
        return None
    shared = any(tokens is not None and tokens.shape[2] != heads for tokens in (x.k, x.v, x.gate_k))
    return None if shared else operators


_IDENTITIES = Offsets()


def tiled_attention(x: AttentionInputs) -> Float[Tensor, "b m h e"]:
    """O = act(Q (S1ᵀ K)ᵀ) (S2 V) for ReLU and gated attention; the kernels scale and normalise if nothing is masked."""
    if not x.unmasked:
        norms = x.row_norms
        return attend_tiles(fold(x, later=norms), norms=norms, band=x.band, dropout_p=x.dropout_p)
    offsets = Offsets.of(x)
    factors = fold(x, scaled=False) if offsets is None else Factors(x.q, x.k, x.v, x.gate_q, x.gate_k)
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
    them, to the scores inside the band.
    """
    if min(scales) <= 0.0:
        # the kernels take a scale out of ReLU, which a negative one does not allow
        gate_q = None if factors.gate_q is None else factors.gate_q * scales[1]
        factors = factors._replace(q=factors.q * scales[0], gate_q=gate_q)
        scales = (1.0, 1.0)
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


class Call(NamedTuple):
    """Arguments of an operator: tokens, matrices, the seed of dropout, seeds and rates of dropped entries, options."""

    q: Tensor
    k: Tensor
    v: Tensor
    gate_q: Tensor | None
    gate_k: Tensor | None
    m1: Tensor | None
    m2: Tensor | None
    gate_m1: Tensor | None
    seed: Tensor | None
    drop_seeds: Sequence[Tensor]
    drop_rates: Sequence[Tensor]
    options: Sequence[Any]

    @classmethod
    def of(cls, arguments: Sequence[Any]) -> "Call":
        """The arguments in the order of the schema."""
        q, k, v, gate_q, gate_k, m1, m2, gate_m1, seed, drop_seeds, drop_rates, *options = arguments
        return cls(q, k, v, gate_q, gate_k, m1, m2, gate_m1, seed, drop_seeds, drop_rates, options)

    @classmethod
    def unpack(cls, tensors: Sequence[Any], options: Sequence[Any]) -> "Call":
        """The arguments with all tensors in one sequence, seeds and rates of dropped entries at its end."""
        q, k, v, gate_q, gate_k, m1, m2, gate_m1, seed, *drops = tensors
        count = len(drops) // 2
        return cls(q, k, v, gate_q, gate_k, m1, m2, gate_m1, seed, drops[:count], drops[count:], options)

    @property
    def tensors(self) -> tuple[Any, ...]:
        """All tensors in one sequence, as `unpack` takes them."""
        # no properties: a call in Python is part of the cost of an eager layer
        return (
            self.q,
            self.k,
            self.v,
            self.gate_q,
            self.gate_k,
            self.m1,
            self.m2,
            self.gate_m1,
            self.seed,
            *self.drop_seeds,
            *self.drop_rates,
        )

    @property
    def arguments(self) -> tuple[Any, ...]:
        """In the order of the schema."""
        return (
            self.q,
            self.k,
            self.v,
            self.gate_q,
            self.gate_k,
            self.m1,
            self.m2,
            self.gate_m1,
            self.seed,
            self.drop_seeds,
            self.drop_rates,
            *self.options,
        )

    @property
    def tokens(self) -> tuple[Any, ...]:
        """Queries, keys and values, then the gate's queries and keys."""
        return (self.q, self.k, self.v, self.gate_q, self.gate_k)

    @property
    def matrices(self) -> tuple[Any, ...]:
        """Those that mix keys, values and the gate's keys."""
        return (self.m1, self.m2, self.gate_m1)


# tensors of a call besides the seeds and rates of dropped entries: tokens, matrices and the seed of dropout
_SINGLE_TENSORS = 9
# the schema of a call without its options
ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? gate_q, Tensor? gate_k, Tensor? m1, Tensor? m2, Tensor? gate_m1, "
    "Tensor? seed, Tensor[] drop_seeds, Tensor[] drop_rates"
)
_SETTINGS = "float[] settings, bool[] flags, int[] band"


@kernel_op("tiled_attention", f"({ARGUMENTS}, {_SETTINGS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)")
def _forward(*arguments: Any) -> tuple[Tensor, ...]:
    """As `_attend`; what is absent is empty, because None is not a result."""
    return _present(arguments[0], _attend({}, Call.of(arguments)))


def _present(q: Tensor, results: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    return tuple([q.new_empty(0) if x is None else x for x in results])


def _attend(launches: dict[Any, Any], call: Call) -> tuple[Any, ...]:
    """The output, the factors of normalised rows, (1 or 2, B, H, M), and mixed keys, values and keys of the gate.

    Factors are those of the scores, of the gate's or of both. What is absent is None. `launches` are those of earlier
    calls with the same shapes, strides, dtypes, device and options.
    """
    _, flags, _ = call.options
    out, row_factors = _empty_results(call.q, call.v, flags)
    mixed: list[Any] = [None, None, None]
    indices, mixings = _mixings(call)
    for index, x in zip(indices, mix_all(launches, mixings), strict=True):
        mixed[index] = x
    if out.numel():
        inputs = _inputs(call, mixed)
        tensors = (*inputs, out, *_by_branch(flags, row_factors), call.seed)
        if "forward" not in launches:
            launches["forward"], _ = _prepared("forward", tensors, (*inputs, out), call)
        launches["forward"](*tensors)
    return out, row_factors, *mixed


def _mixings(call: Call) -> tuple[list[int], list[Mixing]]:
    """Which of keys, values and keys of the gate are mixed, and how."""
    _, flags, _ = call.options
    tokens: Any = (call.k, call.v, call.gate_k)
    matrices: Any = (call.m1, call.m2, call.gate_m1)
    residual = flags[2:]
    nothing = (None, None, None)
    indices = [index for index in range(3) if matrices[index] is not None]
    drops = zip(indices, call.drop_seeds or nothing, call.drop_rates or nothing, strict=False)
    return indices, [Mixing(tokens[i], matrices[i], seed, rate, i != 1, residual[i]) for i, seed, rate in drops]


def _inputs(call: Call, mixed: Sequence[Tensor | None]) -> list[Any]:
    """Queries, keys and values as the kernels read them: mixed where an operator mixes them."""
    k, v, gate_k = (x if y is None else y for x, y in zip((call.k, call.v, call.gate_k), mixed, strict=True))
    return [unit_stride(x) for x in (call.q, k, v, call.gate_q, gate_k)]


def _empty_results(q: Tensor, v: Tensor, flags: list[bool]) -> tuple[Tensor, Tensor | None]:
    b, m, h, _ = q.shape
    norms = flags[0] + flags[1]
    return v.new_empty(b, m, h, v.shape[3]), q.new_empty((norms, b, h, m), dtype=torch.float32) if norms else None


@_forward.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    call = Call.of(arguments)
    _, flags, _ = call.options
    tokens: tuple[Any, ...] = (call.k, call.v, call.gate_k)
    pairs = zip(tokens, call.matrices, strict=True)
    mixed = (None if matrix is None else empty_mixed(x, True) for x, matrix in pairs)
    return _present(call.q, (*_empty_results(call.q, call.v, flags), *mixed))


def _by_branch(flags: list[bool], *rows: Tensor | None) -> list[Tensor | None]:
    """Of each, one number per row for the scores and for the gate's scores; None for one that is not normalised."""
    numbers: list[Tensor | None] = []
    for x in rows:
        numbers += (None, None) if x is None else (x[0] if flags[0] else None, x[-1] if flags[1] else None)
    return numbers


def _prepared(
    kernel: tile_kernels.Kernel, tensors: Sequence[Any], strided: Sequence[Any], call: Call
) -> tuple[Launch, bool]:
    """The launch of a kernel on tensors, which takes the strides of some, and whether one tile holds all pairs."""
    q, (settings, flags, band) = call.q, call.options
    (b, m, h, d), n, e = q.shape, call.k.shape[1], call.v.shape[3]
    g = 0 if call.gate_q is None else call.gate_q.shape[3]
    gated = call.gate_q is not None
    exact = needs_exact_products(q.dtype)
    shared = max_shared_mem(q.get_device()) if q.is_cuda else tile_kernels.HOPPER
    blocks = tile_kernels.choose_blocks(kernel, m, n, max(d, e, g), q.dtype, gated=gated, exact=exact, shared=shared)
    constants = {
        "D": padded(d),
        "E": padded(e),
        "G": padded(g) if gated else SMALLEST,
        "GATED": gated,
        "BAND": band[0],
        "DROPOUT": call.seed is not None,
        "NORM": flags[0],
        "GATE_NORM": flags[1],
        "PRECISION": "ieee" if exact else "tf32",
        "BLOCK_M": blocks.queries,
        "BLOCK_N": blocks.keys,
    }
    # a window may hide all keys: then no tile stores the gradient of the queries
    one_tile = m <= blocks.queries and n <= blocks.keys and not any(flags[:2]) and band[0] < 2
    function = tile_kernels.forward_kernel
    programs = -(-m // blocks.queries)
    if kernel == "keys":
        function = tile_kernels.backward_keys_kernel
        programs = -(-n // blocks.keys)
        constants["ONE_TILE"] = one_tile
    elif kernel == "queries":
        function = tile_kernels.backward_queries_kernel
    numbers = (*strides_of(3, *strided), h, m, n, d, e, g, *band[1:], *settings)
    options = {"num_warps": blocks.warps, "num_stages": blocks.stages}
    return prepare(function, (b * h, programs), tensors, numbers, constants, options), one_tile


@kernel_op(
    "tiled_attention_backward",
    f"(Tensor grad, Tensor[] mixed, Tensor out, Tensor row_factors, {ARGUMENTS}, {_SETTINGS}) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _backward(
    grad: Tensor, mixed: list[Tensor], out: Tensor, row_factors: Tensor, *arguments: Any
) -> tuple[Tensor, ...]:
    """As `_differentiate`; what is absent is empty, because None is not a result."""
    *tokens, factors = (None if x.numel() == 0 else x for x in (*mixed, row_factors))
    mixed.clear()
    return _present(grad, _differentiate({}, grad, tokens, out, factors, Call.of(arguments)))


def _differentiate(
    launches: dict[Any, Any], grad: Tensor, mixed: list[Any], out: Tensor, row_factors: Tensor | None, call: Call
) -> Sequence[Tensor | None]:
    """Gradients of queries, keys, values, gate and operators, None for absent ones.

    Mixed tokens are dropped from the list `mixed` as soon as they are not needed: backward then needs less memory.
    """
    _, flags, _ = call.options
    if grad.numel() == 0:
        return [None if x is None else x.zero_() for x in _empty_gradients(call)]
    tokens = _inputs(call, mixed)
    inputs = (*tokens, unit_stride(grad))
    grads: list[Any] = [None if x is None else _empty_like(x) for x in tokens]
    grad_q, _, _, grad_gate_q, _ = grads
    result = unit_stride(out)
    sums = None if row_factors is None else torch.empty_like(row_factors)
    # the sums of normalised rows are written by one kernel and read by the other
    rows = (*_by_branch(flags, row_factors, sums), call.seed)
    for_queries = (*inputs, result, *rows, grad_q, grad_gate_q)
    for_keys = (*inputs, *rows, *grads)
    key = inputs[-1].stride()
    if key not in launches:
        of_keys, one_tile = _prepared("keys", for_keys, (*inputs, *grads), call)
        of_queries = None
        if not one_tile:
            of_queries, _ = _prepared("queries", for_queries, (*inputs, result, grad_q, grad_gate_q), call)
        launches[key] = of_queries, of_keys
    of_queries, of_keys = launches[key]
    if of_queries is not None:
        of_queries(*for_queries)
    of_keys(*for_keys)
    del tokens, inputs, result, for_queries, for_keys
    mixed.clear()
    indices, mixings = _mixings(call)
    # places of keys, values and the gate's keys among the tokens
    places = [(1, 2, 4)[index] for index in indices]
    of_mixed = [grads[place] for place in places]
    # the list has the only references
    of_tokens = [None if place in places else x for place, x in enumerate(grads)]
    del grads, grad_q, grad_gate_q
    of_matrices: list[Any] = [None, None, None]
    of_all = mix_all_backward(launches, mixings, of_mixed)
    for index, place, (of_unmixed, of_matrix) in zip(indices, places, of_all, strict=True):
        of_tokens[place] = of_unmixed
        of_matrices[index] = of_matrix
    return [*of_tokens, *of_matrices]


def _empty_like(x: Tensor) -> Tensor:
    return torch.empty_like(x) if x.stride(-1) == 1 else x.new_empty(x.shape)


def _empty_gradients(call: Call) -> list[Any]:
    """A buffer like the gradient of each token and matrix, None for absent ones."""
    n = call.k.shape[1]
    mixed = (None, call.m1, call.m2, None, call.gate_m1)
    buffers: list[Any] = []
    for x, matrix in zip(call.tokens, mixed, strict=True):
        if x is None:
            buffers.append(None)
        else:
            buffers.append(_empty_like(x) if matrix is None else x.new_empty(x.shape))
    return [*buffers, *(None if s is None else s.new_empty(len(s), n, n) for s in call.matrices)]


@_backward.register_fake
def _(grad: Tensor, mixed: list[Tensor], out: Tensor, row_factors: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    return _present(grad, _empty_gradients(Call.of(arguments)))


def keep_call(ctx: Any, results: Sequence[Any], call: Call, launches: Any = None) -> None:
    """Save the results and the arguments of a call for its gradients."""
    # no zeros in place of gradients that are None
    ctx.set_materialize_grads(False)
    tokens = (call.q, call.k, call.v, call.gate_q, call.gate_k)
    matrices = (call.m1, call.m2, call.gate_m1)
    ctx.save_for_backward(*tokens, *matrices, call.seed, *call.drop_seeds, *call.drop_rates, *results)
    ctx.launches = launches
    ctx.drops = len(call.drop_seeds)
    ctx.options = call.options


def kept_call(ctx: Any) -> tuple[Sequence[Any], Call]:
    """The results and the arguments that `keep_call` has saved."""
    tensors = ctx.saved_tensors
    end = _SINGLE_TENSORS + 2 * ctx.drops
    return tensors[end:], Call.unpack(tensors[:end], ctx.options)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.mark_non_differentiable(*output[1:])
    keep_call(ctx, output, Call.of(inputs))


def _gradients(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Any, ...]:
    nothing = [None] * ctx.drops
    if grad is None:
        return (*[None] * _SINGLE_TENSORS, nothing, nothing, None, None, None)
    (out, factors, *mixed), call = kept_call(ctx)
    # unless the graph is kept: the only references are then those of this function
    ctx.maybe_clear_saved_tensors()
    if ctx.launches is not None and not torch.is_grad_enabled():
        grads = _differentiate(ctx.launches, grad, mixed, out, factors, call)
    else:
        *mixed, factors = _present(grad, (*mixed, factors))
        results = _backward(grad, mixed, out, factors, *call.arguments)
        grads = [x if like is not None else None for x, like in zip(results, call, strict=False)]
    return (*grads, None, nothing, nothing, None, None, None)


_forward.register_autograd(_gradients, setup_context=_setup_context)


class TilePlan:
    """Attention of plain eager tensors like those of an earlier call: nothing is checked or prepared again."""

    __slots__ = ("_dropout_p", "launches", "options")

    def __init__(self, x: AttentionInputs, residual: Sequence[bool]) -> None:
        numbers, normalised = kernel_settings(x.scales, x.row_norms)
        self.options = ([float(x.dropout_p), *numbers], [*normalised, *residual], [0, 0, 0])
        self.launches: dict[Any, Any] = {}
        self._dropout_p = x.dropout_p

    @classmethod
    def of(cls, x: AttentionInputs) -> "TilePlan | None":
        """The plan of a call; None if it is masked, or needs more than products with dense operators."""
        operators = dense_operators(x)
        if operators is None or not x.unmasked or x.softmax or min(x.scales) <= 0.0:
            return None
        # entries are dropped from all matrices or from none
        if len({s.drop is None for s in operators if s is not None}) > 1:
            return None
        return cls(x, [s is None or s.residual for s in operators])

    def attend(self, tokens: Sequence[Tensor | None], operators: Sequence[Any]) -> Tensor:
        """Attention of queries, keys, values and gate, and of S1, S2 and the gate's S1 as the caller gave them."""
        q, n = tokens[0], tokens[1].shape[1]  # type: ignore[union-attr]
        assert q is not None
        matrices, seeds, rates = _split(operators, n)
        tensors = (*tokens, *matrices, draw_seeds(q) if self._dropout_p else None, *seeds, *rates)
        if torch.is_grad_enabled():
            return _apply(self, *tensors)
        return _attend(self.launches, Call.unpack(tensors, self.options))[0]


class _PlannedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: TilePlan, *tensors: Any) -> Tensor:
        call = Call.unpack(tensors, plan.options)
        results = _attend(plan.launches, call)
        keep_call(ctx, results, call, plan.launches)
        out, *_ = results
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        return (None, *_gradients(ctx, grad)[:_SINGLE_TENSORS], *[None] * (2 * ctx.drops))


# without the part of PyTorch's own `apply` that serves transforms: a plan never runs inside one
_apply: Any = super(torch.autograd.Function, _PlannedAttention).apply
