"""Attention of short sequences in one Triton kernel per direction, with operators and normalisers inside.

Importing this file imports Triton.

Alphabet: B batch, M queries, N keys, H heads, D query and key width, E value width, G gate width.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from toa.ops._backend import kernel_op
from toa.ops.attention import short_sequence_kernels
from toa.ops.attention.definitions import AttentionInputs
from toa.ops.attention.tiles import ARGUMENTS, Call, Offsets, dense_operators, keep_call, kept_call, kernel_settings
from toa.ops.dropout import draw_seeds
from toa.ops.mixing import rate_stride, three
from toa.ops.triton_helpers import SMALLEST, launch, needs_exact_products, padded, strides_of, unit_stride

# one program holds a tile of scores, and the queries, keys and values of a head
MAX_TOKENS = 64
MAX_ELEMENTS = 64 * 64

# enough programs to fill the largest chips, each with several batch entries to sum over
_PROGRAMS = 528

# with eight warps, Triton 3.6 compiles products that read past shared memory
_OPTIONS = {"num_warps": 4, "num_stages": 1}

# columns of an operator that are read at a time
_CHUNK = 32

# entries of an operator, and parts of a sum of operators, that one program takes at a time
_ENTRIES = 64
_PARTS = 32


def fits(x: AttentionInputs) -> bool:
    """Whether one program holds all tokens of a head, nothing is masked, and operators are offsets from the identity.

    On a GPU, exact float32 products cannot use tensor cores and are left to smaller tiles. So is all float32 under a
    compiler, which cannot trace `needs_exact_products`.
    """
    single_on_gpu = x.q.device.type == "cuda" and x.q.dtype == torch.float32
    if not x.unmasked or (single_on_gpu and (torch.compiler.is_compiling() or needs_exact_products(x.q.dtype))):
        return False
    width = max(tokens.shape[3] for tokens in (x.q, x.v, x.gate_q) if tokens is not None)
    tokens = max(x.q.shape[1], x.k.shape[1])
    if tokens > MAX_TOKENS or padded(tokens) * padded(width) > MAX_ELEMENTS:
        return False
    operators = dense_operators(x)
    return operators is not None and all(s is None or s.residual for s in operators)


def short_sequence_attention(x: AttentionInputs) -> Tensor:
    """act(Q Kᵀ S1) S2 V of inputs that `fits` allows."""
    offsets = Offsets.of(x)
    assert offsets is not None
    seed = draw_seeds(x.q) if x.dropout_p else None
    settings, normalised = kernel_settings(x.scales, x.row_norms)
    out: Tensor = _forward(
        *(x.q, x.k, x.v, x.gate_q, x.gate_k, *offsets.matrices, seed, offsets.seeds, offsets.rates),
        *(x.activation, [*settings, float(x.dropout_p)], normalised),
    )[0]
    return out


_SETTINGS = "str activation, float[] settings, bool[] norms"


@kernel_op("short_sequence_attention", f"({ARGUMENTS}, {_SETTINGS}) -> (Tensor, Tensor)")
def _forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    """The output, and the operators with entries dropped, (operators, H, N, N), if any are."""
    call = Call.of(arguments)
    out, dropped = _empty_results(call.q, call.v, call.drop_seeds)
    if out.numel() == 0:
        return out, dropped
    inputs, matrices = (tuple(map(unit_stride, some)) for some in (call.tokens, call.matrices))
    if call.drop_seeds:
        _drop_sum([x[None] for x in matrices if x is not None], dropped, call)
        matrices = _replace_present(matrices, dropped)
    tensors = (*inputs, *matrices, out, call.seed)
    _launch(short_sequence_kernels.forward_kernel, tensors, (*inputs, out), matrices, call)
    return out, dropped


def _empty_results(q: Tensor, v: Tensor, drop_seeds: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    b, m, h, _ = q.shape
    _, n, _, e = v.shape
    return v.new_empty(b, m, h, e), q.new_empty((len(drop_seeds), h, n, n), dtype=torch.float32)


@_forward.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor]:
    call = Call.of(arguments)
    return _empty_results(call.q, call.v, call.drop_seeds)


def _replace_present(matrices: Sequence[Any], replacements: Tensor) -> tuple[Any, ...]:
    """Replacements in their order, in place of the matrices that are not None."""
    others = iter(replacements)
    return tuple(None if x is None else next(others) for x in matrices)


def _launch(kernel: Any, tensors: Sequence[Any], strided: Sequence[Any], matrices: Sequence[Any], call: Call) -> None:
    """Launch one of both kernels on tensors; it takes the strides of some, and those of the matrices."""
    activation, settings, norms = call.options
    b, m, h, d = call.q.shape
    n, e = (call.k.shape[1], call.v.shape[3])
    g = 0 if call.gate_q is None else call.gate_q.shape[3]
    constants = {
        "D": padded(d),
        "E": padded(e),
        "G": padded(g) if g else SMALLEST,
        "ACTIVATION": activation,
        "NORM": norms[0],
        "GATE_NORM": norms[1],
        "HAS_M1": matrices[0] is not None,
        "HAS_M2": matrices[1] is not None,
        "HAS_GATE_M1": matrices[2] is not None,
        "DROPOUT": call.seed is not None,
        "PRECISION": _precision(call.q),
        "BLOCK_M": padded(m),
        "BLOCK_N": padded(n),
        "CHUNK": min(_CHUNK, padded(n)),
    }
    numbers = (*strides_of(3, *strided), *strides_of(2, *matrices), h, m, n, d, e, g, *settings)
    launch(kernel, (b * h,), tensors, numbers, constants, _OPTIONS)


def _precision(x: Tensor) -> str:
    return "ieee" if needs_exact_products(x.dtype) else "tf32"


def _drop_sum(parts: list[Tensor], out: Tensor, call: Call) -> None:
    """Write up to three operators, each a sum of parts (P, H, N, N), with entries dropped if the call has seeds."""
    count, h, n, _ = out.shape
    seeds, rates = (tuple(x) or (None,) * count for x in (call.drop_seeds, call.drop_rates))
    entries = min(_ENTRIES, padded(n * n))
    summed = min(_PARTS, padded(len(parts[0]))) if len(parts[0]) > 1 else 1
    launch(
        short_sequence_kernels.drop_sum_kernel,
        (-(-n * n // entries), h, count),
        (*three(parts), out, *three(seeds), *three(rates)),
        (*strides_of(3, *three(parts)), *map(rate_stride, three(rates)), h, n, len(parts[0])),
        {"DROP": seeds[0] is not None, "PARTS": summed, "ENTRIES": entries},
        {"num_warps": _OPTIONS["num_warps"]},
    )


@kernel_op("short_sequence_attention_backward", f"(Tensor grad, Tensor dropped, {ARGUMENTS}, {_SETTINGS}) -> Tensor[]")
def _backward(grad: Tensor, dropped: Tensor, *arguments: Any) -> list[Tensor]:
    """Gradients of queries, keys and values, empty for absent ones, and of operators, (operators, H, N, N)."""
    call = Call.of(arguments)
    results = _empty_gradients(call)
    if grad.numel() == 0:
        return [x.zero_() for x in results]
    *of_tokens, of_operators = results
    grads = _present(call.tokens, of_tokens)
    inputs, matrices = (tuple(map(unit_stride, some)) for some in (call.tokens, call.matrices))
    grad = unit_stride(grad)
    if call.drop_seeds:
        matrices = _replace_present(matrices, dropped)
    # gradients of mixed keys and values are in float32, and go through their operator afterwards
    mixed = {index: x for index, x in zip((1, 2, 4), matrices, strict=True) if x is not None}
    outputs = [
        x if x is None or index not in mixed else x.new_empty(x.shape, dtype=torch.float32)
        for index, x in enumerate(grads)
    ]
    tensors = (*inputs, *matrices, grad, call.seed, *outputs)
    _launch(short_sequence_kernels.backward_kernel, tensors, (*inputs, grad, *outputs), matrices, call)
    if mixed:
        parts = _through_operators(mixed, inputs, outputs, grads)
        _drop_sum(list(parts.unbind(1)), of_operators, call)
    return results


def _through_operators(
    mixed: dict[int, Any], inputs: Sequence[Any], outputs: Sequence[Any], grads: Sequence[Any]
) -> Tensor:
    """Write the gradients of tokens (B, N, H, D); return partial sums (parts, operators, H, N, N) of the operators'.

    K' = S1ᵀ K and V' = S2 V, so dK = S1 dK', dV = S2ᵀ dV', dS1 = K dK'ᵀ and dS2 = dV' Vᵀ. `mixed` has the operators by
    the index of their tokens among the inputs; `outputs` are the gradients of mixed tokens, `grads` those of tokens.
    """
    tokens, of_mixed, of_plain = ([each[index] for index in mixed] for each in (inputs, outputs, grads))
    matrices = list(mixed.values())
    values = list(mixed).index(2) if 2 in mixed else -1
    b, n, h, _ = tokens[0].shape
    count = len(tokens)
    parts = min(b, max(1, _PROGRAMS // (h * count)))
    sums: Tensor = tokens[0].new_empty((parts, count, h, n, n), dtype=torch.float32)
    strides = strides_of(3, *three(tokens), *three(of_plain)) + strides_of(2, *three(matrices))
    launch(
        short_sequence_kernels.operators_backward_kernel,
        (parts, h, count),
        (*three(tokens), *three(of_mixed), *three(matrices), *three(of_plain), sums),
        (*strides, b, h, n, *(x.shape[3] for x in three(tokens)), parts, values),
        {"D": max(padded(x.shape[3]) for x in tokens), "PRECISION": _precision(tokens[0]), "BLOCK_N": padded(n)},
        _OPTIONS,
    )
    return sums


def _empty_gradients(call: Call) -> list[Tensor]:
    """Buffers for the gradients of tokens, empty for absent ones, and for those of operators."""
    _, n, h, _ = call.k.shape
    operators = [x for x in call.matrices if x is not None]
    of_operators = (operators[0] if operators else call.q).new_empty((len(operators), h, n, n))
    return [*(call.q.new_empty(0) if x is None else x.new_empty(x.shape) for x in call.tokens), of_operators]


_backward.register_fake(lambda grad, dropped, *arguments: _empty_gradients(Call.of(arguments)))


def _present(tokens: Sequence[Any], grads: Sequence[Tensor]) -> list[Tensor | None]:
    """The gradients of tokens, None for absent ones."""
    return [None if x is None else grad for x, grad in zip(tokens, grads, strict=True)]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(output[1])
    keep_call(ctx, output[1:], Call.of(inputs))


def _gradients(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    (dropped,), call = kept_call(ctx)
    *grads, of_operators = _backward(grad, dropped, *call.arguments)
    nothing = [None] * ctx.drops
    matrices = _replace_present(call.matrices, of_operators)
    return (*_present(call.tokens, grads), *matrices, None, nothing, nothing, None, None, None)


_forward.register_autograd(_gradients, setup_context=_setup_context)
