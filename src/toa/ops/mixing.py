"""Mixing by dense operators on a GPU: aligned matrix products, and no N x N tensor kept for backward.

S x = x + (M ⊙ B / (1 - p)) x. The mask B follows from a seed, so backward computes the dropped operator again and
drops the gradient of M while summing it. Tokens are read in their own layout. Each of `mix_op` and `outer_op` is
the derivative of the other, so second derivatives work.

Alphabet: B batch, N tokens, H heads, D width.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from toa.ops._backend import kernel_op

# sizes of products must be multiples of this many bytes to use tensor cores fully
_ALIGNMENT = 32

# side of a tile of a matrix, and entries that are summed at a time
_BLOCK = 128
_BLOCK_K = 32
_BLOCK_K_MIX = 64

# longest sequences that `_fit_one_kernel` allows
MOST_TOKENS = 1024


class EntryDrop(NamedTuple):
    """Which entries of a matrix are set to zero; the others are multiplied by 1 / (1 - rate).

    Whether an entry is dropped depends only on the seed, its head, row and column. `seed` is int32, shape (1,); `rate`
    has shape () for one rate, or (H,) for one per head. Both are on the matrix's device.
    """

    seed: Tensor
    rate: Tensor


@kernel_op("drop_entries")
def drop_op(matrix: Tensor, seed: Tensor, rate: Tensor) -> Tensor:
    """The matrices (H, N, N) of all heads with entries dropped."""
    return _copied(matrix, matrix.new_empty(matrix.shape), seed, rate)


drop_op.register_fake(lambda matrix, seed, rate: matrix.new_empty(matrix.shape))
drop_op.register_autograd(
    lambda ctx, grad: (drop_op(grad, *ctx.saved_tensors), None, None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs[1:]),
)


def _copied(matrix: Tensor, out: Tensor, seed: Tensor | None, rate: Tensor | None) -> Tensor:
    """Write a matrix, with entries dropped, into a buffer that may be larger, with zeros beyond the matrix."""
    # importing the kernels imports Triton
    from toa.ops import kernels
    from toa.ops.triton_helpers import launch

    h, n, _ = matrix.shape
    if out.numel():
        rows = 16
        columns = 128
        size = out.shape[1]
        launch(
            kernels.drop_kernel,
            (-(-size // rows) * -(-size // columns), h),
            (matrix, out, seed, rate),
            (*matrix.stride(), *out.stride()[:2], rate_stride(rate), n, size),
            {"DROP": seed is not None, "BLOCK_M": rows, "BLOCK_N": columns},
            {},
        )
    return out


def rate_stride(rate: Tensor | None) -> int:
    """Distance of the rates of two heads, 0 if they share one."""
    return 0 if rate is None or rate.dim() == 0 else rate.stride(0)


@kernel_op("mix_tokens")
def mix_op(
    x: Tensor,
    weight: Tensor,
    seed: Tensor | None,
    rate: Tensor | None,
    transpose: bool,
    residual: bool,
    heads_first: bool,
) -> Tensor:
    """W x of tokens (B, N, H, D), or Wᵀ x with `transpose`, plus x if `residual`; entries of W are dropped first.

    The result lies in memory as (H, N, B, D), the layout that products write and read, or as (B, N, H, D).
    """
    b, n, h, d = x.shape
    size = _aligned(n, x)
    matrix = weight
    if seed is not None or size != n or weight.dtype != x.dtype or weight.stride(1) != _aligned(weight.stride(1), x):
        matrix = _copied(weight, x.new_empty(h, size, size), seed, rate)
    tokens = _by_head(x, size)
    product = torch.bmm(matrix.mT if transpose else matrix, tokens)
    if heads_first and residual:
        product.add_(tokens)
    mixed = product.view(h, size, b, d).permute(2, 1, 0, 3)
    mixed = mixed if size == n else mixed[:, :n]
    if heads_first:
        return mixed
    out = x.new_empty(x.shape)
    return torch.add(x, mixed, out=out) if residual else out.copy_(mixed)


def _aligned(n: int, like: Tensor) -> int:
    step = _ALIGNMENT // like.itemsize
    return -(-n // step) * step


def _by_head(x: Tensor, size: int) -> Tensor:
    """Tokens (B, N, H, D) as (H, size, B D), with zeros beyond them."""
    b, n, h, d = x.shape
    tokens = x.permute(2, 1, 0, 3)
    if size == n:
        return tokens.contiguous().view(h, n, b * d)
    found = x.new_empty(h, size, b, d)
    found[:, :n].copy_(tokens)
    found[:, n:].zero_()
    return found.view(h, size, b * d)


def empty_mixed(x: Tensor, heads_first: bool) -> Tensor:
    """A buffer in the layout of mixed tokens."""
    b, n, h, d = x.shape
    if not heads_first:
        return x.new_empty(x.shape)
    found = x.new_empty(h, _aligned(n, x), b, d)
    return (found if found.shape[1] == n else found[:, :n]).permute(2, 1, 0, 3)


mix_op.register_fake(lambda x, weight, seed, rate, transpose, residual, heads_first: empty_mixed(x, heads_first))


def _mix_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, seed, rate, ctx.transpose, ctx.residual, _ = inputs
    ctx.save_for_backward(x, weight, seed, rate)


def _mix_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, seed, rate = ctx.saved_tensors
    grad_x = grad_weight = None
    if ctx.needs_input_grad[0]:
        grad_x = mix_op(grad, weight, seed, rate, not ctx.transpose, ctx.residual, False)
    if ctx.needs_input_grad[1]:
        left, right = (x, grad) if ctx.transpose else (grad, x)
        grad_weight = outer_op(left, right, seed, rate, weight.dtype)
    return grad_x, grad_weight, None, None, None, None, None


mix_op.register_autograd(_mix_gradients, setup_context=_mix_context)


@kernel_op("outer_tokens")
def outer_op(left: Tensor, right: Tensor, seed: Tensor | None, rate: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The sum over the batch of left rightᵀ per head, with entries dropped, (H, N, N)."""
    n = left.shape[1]
    if seed is None and _aligned(n, left) == n and left.dtype == dtype:
        return torch.bmm(_by_head(left, n), _by_head(right, n).mT)
    from toa.ops.triton_helpers import unit_stride

    return _outer_together({}, [(unit_stride(left), unit_stride(right))], dtype, seed, rate)[0]


def _outer_together(
    launches: dict[Any, Any],
    pairs: Sequence[tuple[Tensor, Tensor]],
    dtype: torch.dtype,
    seed: Tensor | None = None,
    rate: Tensor | None = None,
) -> list[Tensor]:
    """`outer_op` of up to three pairs by one kernel."""
    left, right = zip(*pairs, strict=True)
    b, n, h, _ = left[0].shape
    out = [left[0].new_empty(h, n, n, dtype=dtype) for _ in pairs]
    tensors = (*three(left), *three(right), *three(out), seed, rate)
    if "outer" not in launches:
        # importing the kernels imports Triton
        from toa.ops import kernels
        from toa.ops.triton_helpers import needs_exact_products, padded, prepare, strides_of

        side = min(_BLOCK, padded(n))
        widths = [x.shape[3] for x in left]
        exact = needs_exact_products(left[0].dtype)
        share = min(_BLOCK_K if left[0].itemsize > 2 or seed is not None else _BLOCK_K_MIX, padded(max(widths)))
        launches["outer"] = prepare(
            kernels.outer_kernel,
            ((-(-n // side)) ** 2, h, len(left)),
            tensors,
            (*strides_of(3, *three(left), *three(right)), rate_stride(rate), b, n, *three(widths)),
            {"DROP": seed is not None, "PRECISION": "ieee" if exact else "tf32", "BLOCK": side, "BLOCK_K": share},
            {"num_warps": 8 if side == _BLOCK else 4, "num_stages": 3},
        )
    launches["outer"](*tensors)
    return out


def _outer_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    left, right, seed, rate = ctx.saved_tensors
    grad_left = mix_op(right, grad, seed, rate, False, False, False) if ctx.needs_input_grad[0] else None
    grad_right = mix_op(left, grad, seed, rate, True, False, False) if ctx.needs_input_grad[1] else None
    return grad_left, grad_right, None, None, None


outer_op.register_fake(
    lambda left, right, seed, rate, dtype: left.new_empty(left.shape[2], left.shape[1], left.shape[1], dtype=dtype)
)


def _outer_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    left, right, seed, rate, _ = inputs
    ctx.save_for_backward(left, right, seed, rate)


outer_op.register_autograd(_outer_gradients, setup_context=_outer_context)


def three(operators: Sequence[Any]) -> Sequence[Any]:
    """Pads to three operators by repeating the first, for kernels of up to three."""
    return operators if len(operators) == 3 else (*operators, *[operators[0]] * (3 - len(operators)))


class Mixing(NamedTuple):
    """Tokens (B, N, H, D), the matrices that mix them, and how: the arguments of `mix_op`."""

    x: Tensor
    weight: Tensor
    seed: Tensor | None
    rate: Tensor | None
    transpose: bool
    residual: bool


def mix_all(launches: dict[Any, Any], mixings: Sequence[Mixing]) -> list[Tensor]:
    """Mixed tokens of up to three operators; `launches` are those of earlier calls with tensors like these."""
    if _fit_one_kernel(launches, mixings):
        return _mix_together(launches, mixings, True)
    return [mix_op.run(*mixing, True) for mixing in mixings]


def mix_all_backward(
    launches: dict[Any, Any], mixings: Sequence[Mixing], grads: list[Any]
) -> list[tuple[Tensor, Tensor]]:
    """Gradients of tokens and matrix of each operator, from those of mixed tokens, which are dropped from the list."""
    if _fit_one_kernel(launches, mixings):
        pairs = [(mixing.x, y) if mixing.transpose else (y, mixing.x) for mixing, y in zip(mixings, grads, strict=True)]
        of_weights = _outer_together(launches, pairs, mixings[0].weight.dtype)
        turned = zip(grads, mixings, strict=True)
        back = [Mixing(y, mixing.weight, None, None, not mixing.transpose, mixing.residual) for y, mixing in turned]
        return list(zip(_mix_together(launches, back, False), of_weights, strict=True))
    gradients = []
    for x, weight, seed, rate, transpose, residual in mixings:
        y = grads.pop(0)
        of_x = mix_op.run(y, weight, seed, rate, not transpose, residual, False)
        gradients.append((of_x, outer_op.run(*((x, y) if transpose else (y, x)), seed, rate, weight.dtype)))
    return gradients


def _fit_one_kernel(launches: dict[Any, Any], mixings: Sequence[Mixing]) -> bool:
    """Whether one kernel mixes all tokens: it launches faster than products of PyTorch, which are faster if large."""
    if "together" not in launches:
        launches["together"] = bool(
            mixings
            and mixings[0].seed is None
            and mixings[0].x.shape[1] <= MOST_TOKENS
            and mixings[0].x.dtype in (torch.float16, torch.bfloat16)
            and len({mixing.weight.dtype for mixing in mixings}) == 1
            and all(mixing.x.stride(3) == 1 and mixing.x.shape[3] <= _BLOCK and mixing.x.numel() for mixing in mixings)
            and all(mixing.weight.stride(2) == 1 for mixing in mixings)
        )
    return launches["together"]


def _mix_together(launches: dict[Any, Any], mixings: Sequence[Mixing], heads_first: bool) -> list[Tensor]:
    """Mixed tokens, rounded once with the identity added."""
    x, weights, _, _, transpose, residual = zip(*mixings, strict=True)
    out = [empty_mixed(item, heads_first) for item in x]
    name = "mix" if heads_first else "mix back"
    tensors = (*three(x), *three(weights), *three(out))
    if name not in launches:
        from toa.ops import kernels
        from toa.ops.triton_helpers import padded, prepare, strides_of

        b, n, h, _ = x[0].shape
        widths = [item.shape[3] for item in x]
        width = padded(max(widths))
        rows = min(_BLOCK, padded(n))
        columns = max(width, min(_BLOCK, width * padded(b)))
        strides = strides_of(3, *three(x)) + strides_of(2, *three(weights)) + strides_of(3, *three(out))
        flags = [int(item) for item in (*three(residual), *(not item for item in three(transpose)))]
        launches[name] = prepare(
            kernels.mix_kernel,
            (-(-n // rows) * -(-b * width // columns), h, len(x)),
            tensors,
            (*strides, b, n, *three(widths), *flags),
            {"WIDTH": width, "BLOCK_M": rows, "BLOCK_N": columns, "BLOCK_K": min(_BLOCK_K_MIX, padded(n))},
            {"num_warps": 8 if rows * columns == _BLOCK**2 else 4, "num_stages": 3},
        )
    launches[name](*tensors)
    return out
