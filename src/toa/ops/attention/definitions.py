"""What all backends share: the tables of activations and normalisers, and the arguments of one call.

To add an activation, add one entry to `ACTIVATIONS`: every backend, layer, benchmark, test and help text reads it. An
entry without `fused` has no kernel; its weights are formed all at once. To add a normaliser, add one entry to
`SCORE_NORMS` or `GATE_NORMS` and its name to the type beside it.

Alphabet: B batch, M queries, N keys, H heads, D query and key width, E value width, G gate width.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from toa.ops.operators import Operator

Activation = str
ScoreNorm = Literal["none", "l2", "mean", "rms"]
GateNorm = Literal["none", "l2", "rms"]

# added to a row's squared L2 norm: a row of zeros stays zero, and no gradient grows more than a thousandfold
L2_FLOOR = 1e-6

# the kernels and `blocked.py` multiply scores by it before they square them: scores up to 1e30 do not overflow in
# float32, and where they underflow, their squares are nothing beside the floor
ROW_UNIT = 2.0**-40

# above this, softplus(x) = x holds to float64's last bit (e^-40 = 4e-18)
SOFTPLUS_LINEAR = 40.0

# score of a masked pair before softmax and before `scale` (Qiu et al., 2025)
MASKED_SCORE = -math.log(1e10)


@dataclass(frozen=True, kw_only=True, slots=True)
class ActivationEntry:
    """One activation.

    Args:
        formula: The weights that multiply S2 V.
        weights: Computes them from the scores and the scores of the gate, both (B, H, M, N). Scores of masked keys are
            zero, for softmax -inf; their weights are set to zero afterwards.
        gated: Whether it takes gate_q, gate_k, gate_s1 and gate_norm.
        softmax: Whether its rows are normalised by a sum of exponentials.
        fused: Whether `blocked.py` and the Triton kernels compute it. Except for softmax, they require
            act(a x) = a act(x) for a > 0.
    """

    formula: str
    weights: Callable[[Tensor, Tensor], Tensor]
    gated: bool = False
    softmax: bool = False
    fused: bool = False


def _gated_relu(scores: Tensor, gate_scores: Tensor) -> Tensor:
    return scores.relu() * F.softplus(gate_scores, threshold=SOFTPLUS_LINEAR)


ACTIVATIONS: Mapping[str, ActivationEntry] = {
    "softmax": ActivationEntry(
        formula="softmax(Q Kᵀ S1)", weights=lambda scores, _: scores.softmax(-1), softmax=True, fused=True
    ),
    "relu": ActivationEntry(formula="ReLU(Q Kᵀ S1)", weights=lambda scores, _: scores.relu(), fused=True),
    "gated": ActivationEntry(
        formula="softplus(Qg Kgᵀ Sg) ⊙ ReLU(Q Kᵀ S1)", weights=_gated_relu, gated=True, fused=True
    ),
}


def row_size(scores: Tensor, floor: float, count: Tensor | float | int = 1) -> tuple[Tensor, Tensor]:
    """The size sqrt(‖row‖² / count + floor) of rows of scores, as a unit and the inverse of the size in that unit.

    The unit is the largest score of a row, or the root of the floor: neither squares nor gradients overflow.
    """
    unit = scores.detach().abs().amax(-1, keepdim=True).clamp(min=math.sqrt(floor))
    squares = (scores / unit).square().sum(-1, keepdim=True)
    return unit, (squares / count + floor / unit / unit).rsqrt()


# `row_size` of certain scores, from floor and count
RowSize = Callable[[float, Tensor | float | int], tuple[Tensor, Tensor]]


class RowNorm(NamedTuple):
    """A normaliser as numbers: a row of scores is multiplied by gain / sqrt(share ‖row‖² + floor)."""

    share: float
    floor: float
    gain: float

    def in_row_units(self) -> "RowNorm":
        """The normaliser of scores that were multiplied by `ROW_UNIT`: it gives the same normalised scores."""
        return self._replace(floor=self.floor * ROW_UNIT**2)

    def factor(self, scores: Tensor) -> Tensor:
        """Factor of each row, from its scores (or from its L2 norm alone)."""
        unit, inverse = row_size(scores, self.floor, 1.0 / self.share)
        return self.gain * inverse / unit


class RowNorms(NamedTuple):
    """Row norms of the scores and of the gate's scores; None where there is nothing to normalise."""

    scores: RowNorm | None = None
    gate: RowNorm | None = None

    def in_row_units(self) -> "RowNorms":
        """Those of scores that were multiplied by `ROW_UNIT`."""
        return RowNorms(*(None if norm is None else norm.in_row_units() for norm in self))


@dataclass(frozen=True, kw_only=True, slots=True)
class Normaliser:
    """What a row of scores over n visible keys is divided by before the activation.

    Args:
        formula: The divisor, for help texts.
        floor: The divisor has the factor sqrt(‖row‖² + floor); None if it does not depend on the scores.
        mean_square: Whether ‖row‖² / n takes the place of ‖row‖² in that factor.
        per_key: Whether the divisor has the factor n.
    """

    formula: str
    floor: float | None = None
    mean_square: bool = False
    per_key: bool = False

    def divide(self, x: Tensor, size: RowSize, n: Tensor | int) -> Tensor:
        """Divide rows of scores, or the queries that they are linear in, by the size of these rows."""
        if self.floor is not None:
            unit, inverse = size(self.floor, n if self.mean_square else 1)
            # the unit first: gradients stay in range too
            x = (x / unit * inverse).to(x.dtype)
        return x / n if self.per_key else x

    def row_norm(self, n: int) -> RowNorm | None:
        """The normaliser as numbers, where all n keys are visible; None if it does not depend on the scores."""
        if self.floor is None:
            return None
        share = 1.0 / n if self.mean_square else 1.0
        return RowNorm(share=share, floor=self.floor, gain=1.0 / n if self.per_key else 1.0)


_NONE = Normaliser(formula="1")
_L2 = Normaliser(formula="‖row‖", floor=L2_FLOOR)
_RMS = Normaliser(formula="sqrt(1 + ‖row‖² / n)", floor=1.0, mean_square=True)
SCORE_NORMS: Mapping[str, Normaliser] = {
    "none": _NONE,
    "l2": _L2,
    "mean": Normaliser(formula="n", per_key=True),
    "rms": replace(_RMS, formula="n sqrt(1 + ‖row‖² / n)", per_key=True),
}
GATE_NORMS: Mapping[str, Normaliser] = {"none": _NONE, "l2": _L2, "rms": _RMS}


# queries of a chunk, if the window is shorter
_CHUNK = 256


class Band(NamedTuple):
    """Query m sees key n if lowest ≤ n - m ≤ highest; None is no bound."""

    lowest: int | None = None
    highest: int | None = None

    def cut(self, scores: Tensor) -> Tensor:
        """Scores (..., M, N) with zeros outside the band."""
        scores = scores if self.highest is None else scores.tril(self.highest)
        return scores if self.lowest is None else scores.triu(self.lowest)

    def ends(self, query: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """First key that each query sees, and the one after its last, among n."""
        first = torch.zeros_like(query) if self.lowest is None else (query + self.lowest).clamp(0, n)
        last = torch.full_like(query, n) if self.highest is None else (query + self.highest + 1).clamp(0, n)
        return first, last

    def seen_keys(self, queries: slice, n: int) -> slice:
        """Keys among n that any of these queries sees, at least one."""
        first = 0 if self.lowest is None else min(max(0, queries.start + self.lowest), n - 1)
        last = n if self.highest is None else min(n, queries.stop + self.highest)
        return slice(first, max(first + 1, last))

    def chunks(self, m: int, n: int) -> list[tuple[slice, slice]]:
        """Slices of queries, at least one, and of the keys that they see: several where a window hides most keys."""
        step = max(1, m)
        # a compiler may not know the sizes
        if self.lowest is not None and self.highest is not None and not torch.compiler.is_compiling():
            step = max(_CHUNK, self.highest - self.lowest)
        queries = [slice(first, min(m, first + step)) for first in range(0, max(1, m), step)]
        return [(each, self.seen_keys(each, n)) for each in queries]

    def block(self, query: int, key: int) -> "Band":
        """The same band for the queries and keys from these indices on."""
        return Band(*(None if bound is None else bound + query - key for bound in self))


class Branch(NamedTuple):
    """One set of scores Q Kᵀ S and their normaliser: those of the attention itself, or those of its gate."""

    q: Tensor
    k: Tensor
    operator: Operator | None
    norm: Normaliser


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionInputs:
    """Checked arguments of `operator_attention`, which documents them; raw tensors are operators here."""

    q: Float[Tensor, "b m h d"]
    k: Float[Tensor, "b n kv d"]
    v: Float[Tensor, "b n _kv e"]
    s1: Operator | None = None
    s2: Operator | None = None
    activation: Activation = "softmax"
    gate_q: Float[Tensor, "b m h g"] | None = None
    gate_k: Float[Tensor, "b n _kv g"] | None = None
    gate_s1: Operator | None = None
    scale: float = 1.0
    score_norm: ScoreNorm = "none"
    gate_norm: GateNorm = "none"
    key_padding_mask: Bool[Tensor, "b n"] | None = None
    pair_mask: Float[Tensor, "_b m n"] | None = None
    causal: bool = False
    window: int | None = None
    query_start: int = 0
    dropout_p: float = 0.0

    @property
    def scores(self) -> Branch:
        """The scores that the activation is applied to."""
        return Branch(self.q, self.k, self.s1, SCORE_NORMS[self.score_norm])

    @property
    def gate(self) -> Branch | None:
        """The scores of the gate; None without one."""
        if not ACTIVATIONS[self.activation].gated:
            return None
        assert self.gate_q is not None
        assert self.gate_k is not None
        return Branch(self.gate_q, self.gate_k, self.gate_s1, GATE_NORMS[self.gate_norm])

    @property
    def softmax(self) -> bool:
        """Whether the activation is a softmax."""
        return ACTIVATIONS[self.activation].softmax

    @property
    def band(self) -> Band:
        """The keys that causality and the window leave to each query."""
        m = self.q.shape[1]
        n = self.k.shape[1]
        start = self.query_start
        lowest = None if self.window is None else start - self.window + 1
        highest = None if self.window is None else start + self.window - 1
        if self.causal:
            highest = start
        # a bound that masks no key is none
        return Band(
            None if lowest is None or lowest <= 1 - m else lowest,
            None if highest is None or highest >= n - 1 else highest,
        )

    @property
    def unmasked(self) -> bool:
        """Whether every query sees every key in full."""
        return self.key_padding_mask is None and self.pair_mask is None and self.band == Band()

    @property
    def scales(self) -> tuple[float, float]:
        """Scales of both branches, with a normaliser that does not depend on the scores; only if `unmasked`."""
        norm = self.scores.norm
        return (self.scale / self.k.shape[1] if norm.per_key and norm.floor is None else self.scale), self.scale

    @property
    def row_norms(self) -> RowNorms:
        """Normalisers that depend on the scores, as numbers.

        Under a mask only those that do not depend on the number of visible keys, which then differs between queries.
        """
        n = self.k.shape[1]
        norms = [branch.norm for branch in (self.scores, self.gate) if branch is not None]
        if not self.unmasked:
            norms = [_NONE if norm.mean_square or norm.per_key else norm for norm in norms]
        return RowNorms(*(norm.row_norm(n) for norm in norms))

    def visible_keys(self, queries: slice | None = None, keys: slice | None = None) -> Bool[Tensor, "_b 1 _m _n"]:
        """Which keys each query may use, (B or 1, 1, M, N), or a block of it."""
        queries = slice(0, self.q.shape[1]) if queries is None else queries
        keys = slice(0, self.k.shape[1]) if keys is None else keys
        size = (1, 1, queries.stop - queries.start, keys.stop - keys.start)
        visible = torch.ones(size, dtype=torch.bool, device=self.q.device)
        visible = self.band.block(queries.start, keys.start).cut(visible)
        if self.key_padding_mask is not None:
            visible = visible & ~self.key_padding_mask[:, None, None, keys]
        return visible

    def visible_count(self) -> Integer[Tensor, "_b m"]:
        """Number of keys that each query may use, (B or 1, M), without a matrix of pairs."""
        m, n = self.q.shape[1], self.k.shape[1]
        first, last = self.band.ends(torch.arange(m, device=self.q.device), n)
        if self.key_padding_mask is None:
            return (last - first).clamp(min=0).unsqueeze(0)
        before = F.pad((~self.key_padding_mask).cumsum(1), (1, 0))  # (B, N + 1)
        return (before[:, last] - before[:, first]).clamp(min=0)

    def without_padding(self, tokens: Float[Tensor, "b n h _d"]) -> Float[Tensor, "b n h _d"]:
        """Keys or values with zeros for padding."""
        if self.key_padding_mask is None:
            return tokens
        return tokens.masked_fill(self.key_padding_mask[:, :, None, None], 0.0)

    def per_query_head(self, x: Float[Tensor, "b n _kv _d"]) -> Float[Tensor, "b n h _d"]:
        """Keys or values with each head repeated for all query heads that share it."""
        return x if x.shape[2] == self.q.shape[2] else x.repeat_interleave(self.q.shape[2] // x.shape[2], 2)

    def weights(
        self, scores: Float[Tensor, "b h m n"], gate_scores: Tensor | None, visible: Bool[Tensor, "_b 1 m n"]
    ) -> Float[Tensor, "b h m n"]:
        """Activated scores, times the pair mask; a query that sees no key gets zeros, not NaN."""
        mask = None if self.pair_mask is None else self.pair_mask.unsqueeze(1)  # (B or 1, 1, M, N)
        if self.softmax and mask is not None:
            scores = scores * mask.to(scores.dtype) + (mask == 0).to(scores.dtype) * (self.scale * MASKED_SCORE)
        scores = scores.masked_fill(~visible, float("-inf") if self.softmax else 0.0)
        weights = ACTIVATIONS[self.activation].weights(scores, scores if gate_scores is None else gate_scores)
        weights = weights.masked_fill(~visible, 0.0)
        return weights if mask is None or self.softmax else weights * mask.to(weights.dtype)
