"""The scores of a block of queries, forward and backward, in few passes over them.

Tensors are (heads, width, tokens): products of matrices that lie so take a BLAS half the time and less where heads are
narrow. Whatever is computed where gradients are tracked can be differentiated again; elsewhere results take the place
of what they are made from.

Alphabet: M queries, N keys.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from toa.ops.attention.definitions import SOFTPLUS_LINEAR, RowNorm, RowNorms


def form_scores(q: Tensor, k: Tensor, first_row: int | None) -> Tensor:
    """Scores of a block of queries; `first_row` is the block's place in a causal mask, None without one."""
    scores = q.mT @ k
    return scores if first_row is None else scores.tril(first_row)


def times(x: Tensor, factor: Tensor) -> Tensor:
    """A product that takes the place of x, where no gradient needs x any more."""
    return x * factor if torch.is_grad_enabled() else x.mul_(factor)


def _minus(x: Tensor, y: Tensor, factor: Tensor) -> Tensor:
    """The difference x - factor y, in the place of x likewise."""
    if torch.is_grad_enabled():
        return torch.addcmul(x, y, factor, value=-1.0)
    return x.addcmul_(y, factor, value=-1.0)


class ScoreBlock(NamedTuple):
    """What a block of queries has N numbers each of; its kernel is left ⊙ slope before rows are normalised.

    `slope` is the gate, 1 without one, times what dropout does, where the left score is positive, else 0. `right` are
    the gate's normalised scores. Of a row, `left_factor` is what the kernel is multiplied by, and `right_factor` what
    the gradient of `right` is, which leaves out by how much dropout raises what it keeps.
    """

    left: Tensor
    slope: Tensor
    left_factor: Tensor | None
    right: Tensor | None
    right_factor: Tensor | None

    @classmethod
    def form(
        cls,
        q: Tensor,
        k: Tensor,
        gate_q: Tensor | None,
        gate_k: Tensor | None,
        keep: Tensor | None,
        raised: Tensor | None,
        first_row: int | None,
        rows: RowNorms,
    ) -> "ScoreBlock":
        """Form the scores of a block of queries."""
        left = form_scores(q, k, first_row)
        right = right_factor = None
        slope = keep
        if gate_q is not None and gate_k is not None:
            right = form_scores(gate_q, gate_k, None)
            if rows.right is not None:
                right_factor = _row_factor(rows.right, right)
                right = times(right, right_factor)
            slope = F.softplus(right, threshold=SOFTPLUS_LINEAR)
            if keep is not None and raised is not None:
                slope = times(slope, keep)
                right_factor = raised if right_factor is None else right_factor * raised
        slope = left.relu().sign() if slope is None else _where_positive(slope, left)
        return cls(left, slope, None if rows.left is None else _row_factor(rows.left, left), right, right_factor)

    def attend(self, v: Tensor) -> Tensor:
        """Kernel times values."""
        out = v @ (self.left * self.slope).mT
        return out if self.left_factor is None else times(out, self.left_factor.mT)

    def gradients(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        gate_q: Tensor | None,
        gate_k: Tensor | None,
        out: Tensor,
        grad: Tensor,
        rows: RowNorms,
    ) -> tuple[Tensor | None, ...]:
        """Gradients of all factors."""
        along = None
        if rows.left is not None and self.left_factor is not None:
            # of a row's norm all that counts is how the gradient lies to the output
            along = self.left_factor.square() * (grad * out).sum(1).unsqueeze(-1)
            along = along * (rows.left.share / rows.left.gain**2)
            grad = grad * self.left_factor.mT
        grad_v = grad @ (self.left * self.slope)
        grad_kernel = grad.mT @ v
        grad_gate_q = grad_gate_k = None
        if gate_q is not None and gate_k is not None and self.right is not None:
            grad_gate = _where_positive(grad_kernel * self.left, self.slope)
            grad_right = torch.ops.aten.softplus_backward(grad_gate, self.right, 1.0, SOFTPLUS_LINEAR)
            if rows.right is not None:
                beside = (grad_right * self.right).sum(-1, keepdim=True)
                grad_right = _minus(grad_right, self.right, beside * (rows.right.share / rows.right.gain**2))
            grad_gate_q = gate_k @ grad_right.mT
            if self.right_factor is not None:
                grad_gate_q, gate_q = times(grad_gate_q, self.right_factor.mT), gate_q * self.right_factor.mT
            grad_gate_k = gate_q @ grad_right
        grad_left = times(grad_kernel, self.slope)
        if along is not None:
            grad_left = _minus(grad_left, self.left, along)
        return k @ grad_left.mT, q @ grad_left, grad_v, grad_gate_q, grad_gate_k


def _row_factor(norm: RowNorm, scores: Tensor) -> Tensor:
    """`norm.factor`, in one pass over the scores where no gradient is to go through it."""
    return norm.factor(scores if torch.is_grad_enabled() else torch.linalg.vector_norm(scores, dim=-1, keepdim=True))


def _where_positive(x: Tensor, sign: Tensor) -> Tensor:
    """Keep x where the other is above zero, else 0: one pass, where `torch.where` takes ten times as long."""
    positive: Tensor = torch.ops.aten.threshold_backward(x, sign, 0.0)
    return positive
