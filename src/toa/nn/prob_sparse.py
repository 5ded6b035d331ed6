"""ProbSparse attention: softmax for the few queries with uneven scores, an average for the rest (Zhou et al., 2021).

Alphabet: B batch, M queries, N keys, H heads, D head width, U sampled keys, T top queries.
"""

import math

import torch
from torch import Tensor

from toa._checks import check_at_least
from toa.nn.attention import Attention, Masks, Mixing, ScoreFactors
from toa.ops.dropout import plain_dropout, thread_generator

# shifts and factors of the 32-bit finaliser of MurmurHash3
_HASH = ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1))


def sparse_count(length: int, factor: int) -> int:
    """Return the number of top queries or sampled keys: factor · ceil(ln length), clipped to 1..length."""
    check_at_least("length", length, 1)
    check_at_least("factor", factor, 1)
    return min(length, max(1, factor * math.ceil(math.log(length))))


def draw_keys(num_queries: int, num_keys: int, count: int, device: torch.device | None = None) -> Tensor:
    """Draw `count` keys per query with replacement, from the generator of this thread or device: indices (M, U)."""
    generator = thread_generator(torch.device("cpu") if device is None else device)
    return torch.randint(num_keys, (num_queries, count), device=device, generator=generator)


def fixed_keys(num_queries: int, num_keys: int, count: int, device: torch.device | None = None) -> Tensor:
    """Return `count` pseudo-random keys per query that never change: indices (M, U).

    They are hashes of their positions, computed on the device, so no generator state is used.
    """
    bits = torch.arange(1, num_queries * count + 1, device=device)
    for shift, factor in _HASH:
        bits = (bits ^ bits >> shift) * factor & 0xFFFFFFFF
    return (bits * num_keys >> 32).view(num_queries, count)


def top_queries(q: Tensor, k: Tensor, sample: Tensor, count: int) -> Tensor:
    """Return the T = `count` queries per head whose scores on sampled keys are farthest from uniform: (B, H, T).

    The measure of a query in q (B, M, H, D) is max_s q·k_s - (1 / N) Σ_s q·k_s over its keys s in `sample` (M, U). The
    divisor is N, as in the authors' code, not U. No gradient flows through the choice.
    """
    q, k = (x.detach().transpose(1, 2) for x in (q, k))  # (B, H, M or N, D)
    num_keys = k.shape[2]
    # computing all scores and selecting from them needs less memory up to N = U·D
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
    """Return softmax(scale q Kᵀ) V for the top queries, and the mean of V (its running sum if causal) for the others.

    q is (B, M, H, D), k and v are (B, N, H, ·), top is (B, H, T) from `top_queries`; `scale` is 1 / sqrt(D) if None. If
    `causal`, query m sees only keys up to m, which requires M = N. The output then contains no value of a later step,
    but later keys can change which queries are top queries. If all queries are top queries, it is softmax attention.
    """
    num_queries, num_keys = q.shape[1], k.shape[1]
    if causal and num_queries != num_keys:
        raise ValueError(
            f"causal requires as many queries as keys, got {num_queries} and {num_keys}; pass causal=False."
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
    mixed = plain_dropout(scores.softmax(-1), dropout_p) @ v  # (B, H, T, D)
    return rest.scatter(2, rows.expand_as(mixed), mixed.to(rest.dtype)).transpose(1, 2)  # (B, M, H, D)


class ProbSparseAttention(Attention):
    """`prob_sparse_attention` as a layer: heads are concatenated and projected.

    sparse_count(M, factor) of M queries are top queries, chosen by sparse_count(N, factor) sampled keys each. Training
    draws these keys in every pass; evaluation uses `fixed_keys`, so that predictions are deterministic. The authors'
    code draws in both.

    Args:
        factor: Controls the number of top queries and sampled keys; see `sparse_count`.
        mix_heads: Whether to reshape the heads (B, H, M, D) to (B, M, E) without a transpose, as Time-Series-Library
            does: an output token then contains values of several steps, even of later ones if causal.

    The other arguments are those of `Attention`.
    """

    shown = (*Attention.shown, "factor", "mix_heads")

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

    def chosen_backend(self) -> str:
        """Return "none": the layer uses no backend of `toa.ops`."""
        return "none"

    def _mixing(self, query: Tensor, factors: ScoreFactors, masks: Masks) -> Mixing:
        for name, mask in (("key_padding_mask", masks.padding), ("pair_mask", masks.pair)):
            if mask is not None:
                raise ValueError(
                    f"{name} must be None for {type(self).__name__}, got shape {tuple(mask.shape)}; "
                    "leave it out or use another attention."
                )
        q, k = factors.q, factors.k
        sample_keys = draw_keys if self.training else fixed_keys
        sample = sample_keys(q.shape[1], k.shape[1], sparse_count(k.shape[1], self.factor), q.device)
        top = top_queries(q, k, sample, sparse_count(q.shape[1], self.factor))

        def mix(values: Tensor, dropout_p: float) -> Tensor:
            scale = self.qk_dim**-0.5
            return prob_sparse_attention(q, k, values, top, scale=scale, causal=masks.causal, dropout_p=dropout_p)

        return mix

    def _output(self, query: Tensor, mixed: Tensor) -> Tensor:
        if self.mix_heads:
            mixed = self._heads(mixed).transpose(1, 2).reshape(mixed.shape)  # (B, H, M, D) reshaped to (B, M, E)
        return self.out_proj(mixed)
