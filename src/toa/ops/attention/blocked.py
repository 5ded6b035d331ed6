"""ReLU and gated attention, one block of weights at a time, with its own backward.

Tensors are (heads of all batch entries, width, tokens): matrix products in this layout take a BLAS library half the
time or less where heads are narrow. Weights are formed again in backward, and kept only where they are few. Whatever
runs while gradients are tracked is differentiable; elsewhere results overwrite the tensors they are made from.

Alphabet: B batch, M queries, N keys, H heads, D query and key width, E value width.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from toa.ops.attention.definitions import SOFTPLUS_LINEAR, Band, RowNorm, RowNorms
from toa.ops.dropout import draw_bits, keep_factors

# scores held at a time, in elements: about one core's cache on a CPU, enough to fill the chip on an accelerator
_BLOCK_ELEMENTS = {"cpu": 1 << 19}
_BLOCK_ELEMENTS_DEFAULT = 1 << 27

# with at most this many keys, scores are kept for backward: they take no more memory per token than the tokens do
_KEPT_KEYS = 64


class Factors(NamedTuple):
    """The factors of an ordinary attention act(Q Kᵀ) V; gate_q and gate_k are None without a gate."""

    q: Tensor
    k: Tensor
    v: Tensor
    gate_q: Tensor | None = None
    gate_k: Tensor | None = None

    def map(self, function: Callable[[Tensor], Tensor]) -> "Factors":
        """Apply a function to every tensor."""
        return Factors(*(None if x is None else function(x) for x in self))  # type: ignore[arg-type]

    def block(self, heads: slice, queries: slice, keys: slice) -> "Factors":
        """The part of (heads, width, tokens) that a block of scores is made from."""
        tokens = (queries, keys, keys, queries, keys)
        return Factors(*(None if x is None else x[heads, :, part] for x, part in zip(self, tokens, strict=True)))  # type: ignore[arg-type]


def attention_weights(factors: Factors, norms: RowNorms, band: Band) -> Float[Tensor, "*heads m n"]:
    """All weights act(Q Kᵀ) at once, from factors (..., width, tokens), by differentiable functions."""
    q, k, _, gate_q, gate_k = factors
    scores = band.cut(q.mT @ k)
    weights = scores.relu()
    if norms.scores is not None:
        weights = _times(weights, norms.scores.factor(scores))
    if gate_q is not None and gate_k is not None:
        # where scores are masked the product is zero, whatever the gate is; the size of a row of the gate is not
        gate_scores = gate_q.mT @ gate_k
        if norms.gate is not None:
            gate_scores = band.cut(gate_scores)
            gate_scores = _times(gate_scores, norms.gate.factor(gate_scores))
        weights = _times(weights, F.softplus(gate_scores, threshold=SOFTPLUS_LINEAR))
    return weights


def attend_in_blocks(factors: Factors, norms: RowNorms, band: Band, *, dropout_p: float) -> Float[Tensor, "b m h e"]:
    """act(Q Kᵀ) V of factors (B, tokens, H, width); dropout on a CPU only."""
    (b, m, h, _), n = factors.q.shape, factors.k.shape[1]
    flat = factors.map(lambda x: x.permute(2, 0, 3, 1).contiguous().flatten(0, 1))  # (H*B, width, tokens)
    bits = None
    if dropout_p:
        # drawn as (B, H, M, N), as the other backends draw them
        bits = draw_bits(torch.Size((b, h, m, n))).transpose(0, 1).flatten(0, 1)
    kept = torch.is_grad_enabled() and n <= _KEPT_KEYS
    out, *_ = _BlockedAttention.apply(*flat, bits, band, dropout_p, norms, kept)
    return out.unflatten(0, (h, b)).permute(1, 3, 0, 2)


class _BlockedAttention(torch.autograd.Function):
    """act(Q Kᵀ) V, some heads or queries at a time.

    The outputs after the first are the score blocks that `kept` saves for backward, which forms them again otherwise.
    Dropout keeps 16 bits per score. Backward consists of differentiable functions of the inputs if it is to be
    differentiated itself, so second derivatives work.
    """

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor | None, ...]:
        *tensors, bits, band, dropout_p, norms, kept = inputs
        q, k, v, _, _ = factors = Factors(*tensors)
        shape = (q.shape[0], v.shape[1], q.shape[2])
        out: Tensor | None = None
        blocks: list[Tensor | None] = []
        for heads, queries, keys in _blocks(q, k, band):
            block = ScoreBlock.form(factors, bits, (heads, queries, keys), band, dropout_p, norms)
            part = block.attend(v[heads, :, keys])
            if part.shape == shape:
                # one block: nothing to join
                out = part
            else:
                out = v.new_empty(shape) if out is None else out
                out[heads, :, queries] = part
            if kept:
                blocks += block
        return v.new_empty(shape) if out is None else out, *blocks

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
        *tensors, bits, band, dropout_p, norms, _ = inputs
        _, *blocks = output
        ctx.save_for_backward(*tensors, bits, *output)
        ctx.mark_non_differentiable(*(x for x in blocks if x is not None))
        ctx.set_materialize_grads(False)
        ctx.settings = (band, dropout_p, norms)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        # read once: activation checkpointing recomputes them on each access
        q, k, v, gate_q, gate_k, bits, out, *kept = ctx.saved_tensors
        band, dropout_p, norms = ctx.settings
        if grad_out is None:
            return (None,) * 10
        factors = Factors(q, k, v, gate_q, gate_k)
        grads: Factors | None = None
        size = len(ScoreBlock._fields)
        for index, (heads, queries, keys) in enumerate(_blocks(q, k, band)):
            if kept and not torch.is_grad_enabled():
                block = ScoreBlock(*kept[index * size : (index + 1) * size])
            else:
                block = ScoreBlock.form(factors, bits, (heads, queries, keys), band, dropout_p, norms)
            part = factors.block(heads, queries, keys)
            of_part = block.gradients(part, out[heads, :, queries], grad_out[heads, :, queries], norms)
            # whether no other block of these heads follows
            whole = part.q.shape[2] == factors.q.shape[2] and part.k.shape[2] == factors.k.shape[2]
            if whole and len(part.q) == len(factors.q):
                return (*of_part, *(None,) * 5)
            if grads is None:
                grads = factors.map(torch.empty_like if whole else torch.zeros_like)
            for total, new in zip(grads.block(heads, queries, keys), of_part, strict=True):
                if total is not None and new is not None:
                    total.copy_(new) if whole else total.add_(new)
        # without a block there is no query, so nothing depends on keys and values
        return (*(factors.map(torch.zeros_like) if grads is None else grads), *(None,) * 5)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        """The batch of `torch.vmap` as more heads, which are independent of each other."""
        size = info.batch_size

        def more_heads(x: Tensor | None, dim: int | None) -> Tensor | None:
            if x is None:
                return None
            return (x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)).flatten(0, 1)

        *tensors, bits, band, dropout_p, norms, _ = inputs
        flat = [more_heads(x, dim) for x, dim in zip((*tensors, bits), in_dims, strict=False)]
        out, *_ = _BlockedAttention.apply(*flat, band, dropout_p, norms, False)
        return (out.unflatten(0, (size, -1)),), (0,)


def _blocks(q: Tensor, k: Tensor, band: Band) -> Iterator[tuple[slice, slice, slice]]:
    """Slices of heads, queries and the keys they see: several heads if all queries fit the budget, else some of one."""
    heads, _, m = q.shape
    n = k.shape[2]
    budget = _BLOCK_ELEMENTS.get(q.device.type, _BLOCK_ELEMENTS_DEFAULT)
    if band.lowest is not None and band.highest is not None and m * n > budget:
        for head in range(heads):
            yield from ((slice(head, head + 1), queries, keys) for queries, keys in band.chunks(m, n))
        return
    head_step = max(1, budget // max(1, m * n))
    if heads:
        # blocks of about the same size: no small one at the end
        head_step = -(-heads // -(-heads // head_step))
    query_step = max(1, m if head_step > 1 else budget // n)
    for head in range(0, heads, head_step):
        for query in range(0, m, query_step):
            queries = slice(query, min(query + query_step, m))
            yield slice(head, min(head + head_step, heads)), queries, band.seen_keys(queries, n)


class ScoreBlock(NamedTuple):
    """The scores of a block of queries, in few passes over them; its weights are scores ⊙ slope, times `factor`.

    `slope` is the gate, or 1 without one, times the dropout factor where the score is positive, and 0 elsewhere.
    `gate_scores` are normalised. For each row, `factor` multiplies the weights, and `gate_factor` multiplies the
    gradient of `gate_scores`; it includes the factor of scores that dropout keeps.
    """

    scores: Tensor
    slope: Tensor
    factor: Tensor | None
    gate_scores: Tensor | None
    gate_factor: Tensor | None

    @classmethod
    def form(
        cls,
        factors: Factors,
        bits: Tensor | None,
        place: tuple[slice, slice, slice],
        band: Band,
        dropout_p: float,
        norms: RowNorms,
    ) -> "ScoreBlock":
        """Form the scores of a block: the heads, queries and keys of `place`; `bits` are those of dropout, if any."""
        keep = kept_factor = None
        if bits is not None:
            keep = keep_factors(bits[place], dropout_p, factors.q.dtype)
            # the factor of a kept score: the smallest number is always kept
            kept_factor = keep_factors(bits.new_full((1, 1, 1), -(2**15)), dropout_p, factors.q.dtype)
        factors = factors.block(*place)
        band = band.block(place[1].start, place[2].start)
        scores = band.cut(factors.q.mT @ factors.k)
        gate_scores = gate_factor = None
        slope = keep
        if factors.gate_q is not None and factors.gate_k is not None:
            gate_scores = factors.gate_q.mT @ factors.gate_k
            if norms.gate is not None:
                gate_scores = band.cut(gate_scores)
                gate_factor = _row_factor(norms.gate, gate_scores)
                gate_scores = _times(gate_scores, gate_factor)
            slope = F.softplus(gate_scores, threshold=SOFTPLUS_LINEAR)
            if keep is not None and kept_factor is not None:
                slope = _times(slope, keep)
                gate_factor = kept_factor if gate_factor is None else gate_factor * kept_factor
        slope = scores.relu().sign() if slope is None else _where_positive(slope, scores)
        factor = None if norms.scores is None else _row_factor(norms.scores, scores)
        return cls(scores, slope, factor, gate_scores, gate_factor)

    def attend(self, v: Tensor) -> Tensor:
        """Weights times values."""
        out = v @ (self.scores * self.slope).mT
        return out if self.factor is None else _times(out, self.factor.mT)

    def gradients(self, factors: Factors, out: Tensor, grad: Tensor, norms: RowNorms) -> Factors:
        """Gradients of the block's factors."""
        q, k, v, gate_q, gate_k = factors
        along = None
        if norms.scores is not None and self.factor is not None:
            # the gradient of a row's factor is the product of the output and its gradient
            along = self.factor.square() * (grad * out).sum(1).unsqueeze(-1)
            along = along * (norms.scores.share / norms.scores.gain**2)
            grad = grad * self.factor.mT
        grad_v = grad @ (self.scores * self.slope)
        grad_weights = grad.mT @ v
        grad_gate_q = grad_gate_k = None
        if gate_q is not None and gate_k is not None and self.gate_scores is not None:
            grad_gate = _where_positive(grad_weights * self.scores, self.slope)
            grad_gate = torch.ops.aten.softplus_backward(grad_gate, self.gate_scores, 1.0, SOFTPLUS_LINEAR)
            if norms.gate is not None:
                total = (grad_gate * self.gate_scores).sum(-1, keepdim=True)
                grad_gate = _minus(grad_gate, self.gate_scores, total * (norms.gate.share / norms.gate.gain**2))
            grad_gate_q = gate_k @ grad_gate.mT
            if self.gate_factor is not None:
                grad_gate_q = _times(grad_gate_q, self.gate_factor.mT)
                gate_q = gate_q * self.gate_factor.mT
            grad_gate_k = gate_q @ grad_gate
        grad_scores = _times(grad_weights, self.slope)
        if along is not None:
            grad_scores = _minus(grad_scores, self.scores, along)
        return Factors(k @ grad_scores.mT, q @ grad_scores, grad_v, grad_gate_q, grad_gate_k)


def _times(x: Tensor, factor: Tensor) -> Tensor:
    """Multiply, in place of x where no gradient needs x."""
    return x * factor if torch.is_grad_enabled() else x.mul_(factor)


def _minus(x: Tensor, y: Tensor, factor: Tensor) -> Tensor:
    """Subtract factor * y, in place of x where no gradient needs x."""
    if torch.is_grad_enabled():
        return torch.addcmul(x, y, factor, value=-1.0)
    return x.addcmul_(y, factor, value=-1.0)


def _row_factor(norm: RowNorm, scores: Tensor) -> Tensor:
    """`norm.factor`, in one pass over the scores where no gradient is tracked."""
    return norm.factor(scores if torch.is_grad_enabled() else torch.linalg.vector_norm(scores, dim=-1, keepdim=True))


def _where_positive(x: Tensor, sign: Tensor) -> Tensor:
    """Keep x where `sign` is positive, else 0; ten times as fast as `torch.where`."""
    positive: Tensor = torch.ops.aten.threshold_backward(x, sign, 0.0)
    return positive
