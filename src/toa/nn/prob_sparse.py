"""ProbSparse attention: softmax for the few queries whose scores stand out, an average for the rest.

After Zhou et al. (2021). Alphabet: B batch, M queries, N keys, H heads, D head width, U sampled keys, T top queries.
"""

import math

import torch
from torch import Tensor, nn

from toa import ops
from toa._checks import check_at_least
from toa.nn.attention import Attention, Mixing, ScoreFactors

# shifts and factors that scatter the bits of a 32-bit number (the finaliser of MurmurHash3)
_SCATTER = ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1))


def sparse_count(length: int, factor: int) -> int:
    """How many of `length` queries or keys take part: factor · ceil(ln length), within 1..length."""
    check_at_least("length", length, 1)
    check_at_least("factor", factor, 1)
    return min(length, max(1, factor * math.ceil(math.log(length))))


def draw_keys(num_queries: int, num_keys: int, count: int, device: torch.device | None = None) -> Tensor:
    """For each query, `count` keys drawn with replacement by the device's generator: indices (M, U)."""
    return torch.randint(num_keys, (num_queries, count), device=device)


def fixed_keys(num_queries: int, num_keys: int, count: int, device: torch.device | None = None) -> Tensor:
    """For each query, `count` keys that look drawn with replacement and are always the same: indices (M, U).

    They are hashes of their places, worked out on the device: no state to keep, and none of a generator to touch.
    """
    bits = torch.arange(1, num_queries * count + 1, device=device)
    for shift, factor in _SCATTER:
        bits = (bits ^ bits >> shift) * factor & 0xFFFFFFFF
    return (bits * num_keys >> 32).view(num_queries, count)


def top_queries(q: Tensor, k: Tensor, sample: Tensor, count: int) -> Tensor:
    """The queries of each head whose scores against sampled keys are farthest from uniform: indices (B, H, T).

    A query's measure is max_s q·k_s - (1 / N) Σ_s q·k_s over its sampled keys s. The divisor is N, as in the authors'
    code, and not U. No gradient flows through the choice.

    Args:
        q: (B, M, H, D).
        k: (B, N, H, D).
        sample: Keys that each query is measured by, (M, U).
        count: Number T of queries to choose.
    """
    q, k = (x.detach().transpose(1, 2) for x in (q, k))  # (B, H, M or N, D)
    num_keys = k.shape[2]
    # forming all scores and picking from them takes less memory until N exceeds U·D
    if num_keys <= sample.shape[1] * k.shape[3]:
        scores = (q @ k.mT).gather(3, sample.expand(*q.shape[:2], -1, -1))  # (B, H, M, U)
    else:
        scores = torch.einsum("bhmd,bhmud->bhmu", q, k[:, :, sample])  # (B, H, M, U)
    measure = scores.amax(-1) - scores.sum(-1) / num_keys
    return measure.topk(count, sorted=False).indices


def prob_sparse_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    top: Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
    dropout_p: float = 0.0,
) -> Tensor:
    """softmax(scale q Kᵀ) V for the top queries; the mean of V for any other, its running sum if causal.

    With every query at the top it is softmax attention, whatever keys were sampled. Causal, no output takes a value
    from later steps; but later keys may have a say in which queries are at the top.

    Args:
        q: (B, M, H, D).
        k: (B, N, H, D).
        v: (B, N, H, width).
        top: The top queries of each head, (B, H, T); see `top_queries`.
        scale: Multiplies the scores; 1 / sqrt(D) if None.
        causal: Whether query m sees keys up to m only; M = N.
        dropout_p: Dropout on the softmax.
    """
    num_queries, num_keys = q.shape[1], k.shape[1]
    if causal and num_queries != num_keys:
        raise ValueError(
            f"causal goes with as many queries as keys, got {num_queries} and {num_keys}; pass causal=False."
        )
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # (B, H, M or N, D)
    rows = top.unsqueeze(-1)  # (B, H, T, 1)
    scale = q.shape[3] ** -0.5 if scale is None else scale
    scores = q.gather(2, rows.expand(-1, -1, -1, q.shape[3])) @ k.mT * scale  # (B, H, T, N)
    if causal:
        scores = scores.masked_fill(torch.arange(num_keys, device=q.device) > rows, -torch.inf)
        rest = v.cumsum(2)  # (B, H, M, D)
    else:
        rest = v.mean(2, keepdim=True).expand(-1, -1, num_queries, -1)  # (B, H, M, D)
    mixed = nn.functional.dropout(scores.softmax(-1), dropout_p) @ v  # (B, H, T, D)
    return rest.scatter(2, rows.expand_as(mixed), mixed.to(rest.dtype)).transpose(1, 2)  # (B, M, H, D)


class ProbSparseAttention(Attention):
    """ProbSparse attention of `prob_sparse_attention`, heads joined and projected.

    Of M queries sparse_count(M, factor) are at the top, measured by sparse_count(N, factor) keys each. In training
    these keys are drawn anew in every pass, from PyTorch's generator; in evaluation they are those of `fixed_keys`, so
    that a prediction does not change from call to call. The authors' code draws in both.

    Args:
        embed_dim: Width E of queries and outputs.
        num_heads: Number of heads H.
        num_tokens: Longest sequence of keys.
        factor: How many queries and keys take part; see `sparse_count`.
        mix_heads: Whether the heads (B, H, M, D) are read as (B, M, E) in that order, as Time-Series-Library does: an
            output token then has values of several steps, and even in causal attention of later ones. False joins the
            heads of each step.
        bias: Whether the projections have one.
        dropout: Dropout on the softmax.
        causal: Whether a token sees only itself and what is before it.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_tokens: int,
        *,
        factor: int = 5,
        mix_heads: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
        causal: bool = False,
    ) -> None:
        check_at_least("factor", factor, 1)
        super().__init__(embed_dim, num_heads, num_tokens, bias=bias, dropout=dropout, causal=causal)
        self.factor = factor
        self.mix_heads = mix_heads

    @property
    def activation(self) -> ops.Activation:
        """Softmax."""
        return "softmax"

    def chosen_backend(self) -> str:
        """No backend of `toa.ops` takes part."""
        return "none"

    def sample_keys(self, num_queries: int, num_keys: int, device: torch.device) -> Tensor:
        """The keys that each query is measured by, (M, U): drawn in training, fixed in evaluation."""
        sample = draw_keys if self.training else fixed_keys
        return sample(num_queries, num_keys, sparse_count(num_keys, self.factor), device)

    def _mixing(
        self,
        query: Tensor,
        factors: ScoreFactors,
        key_padding_mask: Tensor | None,
        pair_mask: Tensor | None,
        causal: bool,
    ) -> Mixing:
        for name, mask in (("key_padding_mask", key_padding_mask), ("pair_mask", pair_mask)):
            if mask is not None:
                raise ValueError(
                    f"{name} must be None for {type(self).__name__}, got shape {tuple(mask.shape)}; "
                    "leave it out, or use another attention."
                )
        q, k = factors.q, factors.k
        sample = self.sample_keys(q.shape[1], k.shape[1], q.device)
        top = top_queries(q, k, sample, sparse_count(q.shape[1], self.factor))

        def mix(values: Tensor, dropout_p: float) -> Tensor:
            return prob_sparse_attention(q, k, values, top, scale=self.qk_dim**-0.5, causal=causal, dropout_p=dropout_p)

        return mix

    def _output(self, query: Tensor, mixed: Tensor) -> Tensor:
        if self.mix_heads:
            mixed = self._heads(mixed).transpose(1, 2).reshape(mixed.shape)  # (B, H, M, D) read as (B, M, E)
        return self.out_proj(mixed)

    def extra_repr(self) -> str:
        """What the module's repr shows."""
        return f"{super().extra_repr()}, factor={self.factor}, mix_heads={self.mix_heads}"
