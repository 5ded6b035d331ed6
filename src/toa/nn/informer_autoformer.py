"""What Informer and Autoformer have in place of attention: ProbSparse attention and auto-correlation.

ProbSparse attention (Zhou et al., 2021) is softmax for the few queries with uneven scores, and an average for the rest.
Auto-correlation (Wu et al., 2021) is a weighted sum of shifted series.

Alphabet: B batch, M queries, N keys, E embedding, H heads, D head width, U sampled keys, T top queries.
"""

import math

import torch
from torch import Tensor, nn

from toa._checks import ArgumentError, check_at_least, check_shape
from toa.nn.attention import Attention, Masks, ScoreFactors, ValueMixing
from toa.nn.layers import Layer, Linear
from toa.ops.dropout import plain_dropout, thread_generator

# shifts and factors of the 32-bit finaliser of MurmurHash3
_HASH = ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1))


def sparse_count(length: int, factor: int) -> int:
    """Return the number of top queries or sampled keys: factor · ceil(ln length), clipped to 1..length."""
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

    def _mixing(self, query: Tensor, factors: ScoreFactors, masks: Masks) -> ValueMixing:
        for name, mask in (("key_padding_mask", masks.padding), ("pair_mask", masks.pair)):
            if mask is not None:
                raise ArgumentError(
                    name,
                    f"be None for {type(self).__name__}",
                    f"shape {tuple(mask.shape)}",
                    "leave it out or use another attention",
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
            heads = mixed.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # (B, H, M, D)
            mixed = heads.reshape(mixed.shape)  # (B, M, E)
        return self.out_proj(mixed)


def delay_count(length: int, factor: int) -> int:
    """Return the number of delays to keep: floor(factor · ln length), clipped to 1..length."""
    return min(length, max(1, math.floor(factor * math.log(length))))


def fit_length(x: Tensor, length: int) -> Tensor:
    """Cut or zero-pad (B, N, E) to `length` steps."""
    missing = length - x.shape[1]
    return nn.functional.pad(x, (0, 0, 0, missing)) if missing > 0 else x[:, :length]


def delay_correlation(q: Tensor, k: Tensor) -> Tensor:
    """Return the circular correlation of q and k (B, N, E) per delay: out[τ] = (1 / E) Σ_t q[t + τ]·k[t], modulo N.

    Computed by FFT in at least float32. Averaging the spectra over features needs only one inverse transform per
    sequence. For odd N the result has N delays; the authors' code loses one.
    """
    q_spectrum, k_spectrum = (torch.fft.rfft(_at_least_float32(x), dim=1) for x in (q, k))  # (B, N // 2 + 1, E)
    return torch.fft.irfft((q_spectrum * k_spectrum.conj()).mean(2), n=q.shape[1])


def delay_weights(correlation: Tensor, count: int, *, shared: bool) -> Tensor:
    """Return the softmax over the `count` largest of the correlations (B, N) per sample, zero at every other delay.

    If `shared`, all samples use the delays of the batch's mean correlation; their weights still differ.
    """
    ranked = correlation.mean(0, keepdim=True) if shared else correlation
    top = ranked.topk(count, sorted=False).indices.expand(correlation.shape[0], -1)  # (B, count)
    return torch.zeros_like(correlation).scatter(1, top, correlation.gather(1, top).softmax(-1))


def aggregate_delays(v: Tensor, weights: Tensor) -> Tensor:
    """Return the sum of shifted series v (B, N, E) with weights (B, N) per delay: out[t] = Σ_τ weights[τ] v[t + τ].

    Indices are modulo N. Computed by FFT: it needs no synchronisation to read the delays, and no shifted copies.
    """
    spectrum, shifts = (torch.fft.rfft(_at_least_float32(x), dim=1) for x in (v, weights.unsqueeze(-1)))
    return torch.fft.irfft(spectrum * shifts.conj(), n=v.shape[1], dim=1).to(v.dtype)


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


class AutoCorrelation(Layer):
    """Averages values over the delays with the largest correlation of queries and keys: (B, M, E) to (B, M, E).

    c = delay_correlation(Q, K), w = softmax of the delay_count(M, factor) largest of c, O[t] = Σ_τ w[τ] V[t + τ], then
    a projection. Keys and values are cut or zero-padded to the M steps of the queries. Training uses the delays of the
    batch's mean correlation for all samples; evaluation uses each sample's own delays.

    In the authors' code the correlation is a mean over all heads, so the number of heads has no effect and is not an
    argument here. There is no mask: a step sees later steps.

    Args:
        factor: Controls the number of delays; see `delay_count`.
    """

    shown = ("embed_dim", "factor")

    def __init__(self, embed_dim: int, *, factor: int = 1) -> None:
        super().__init__()
        check_at_least("embed_dim", embed_dim, 1)
        check_at_least("factor", factor, 1)
        self.embed_dim = embed_dim
        self.factor = factor
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (Linear(embed_dim, embed_dim) for _ in range(4))

    def forward(self, query: Tensor, source: Tensor) -> Tensor:
        """Return the mixed values (B, M, E) for queries (B, M, E) and the source (B, N, E) of keys and values."""
        check_shape("query", query, "(B, M, E)", (None, None, self.embed_dim))
        check_shape("source", source, "(B, N, E)", (query.shape[0], None, self.embed_dim))
        length = query.shape[1]
        keys, values = (fit_length(project(source), length) for project in (self.k_proj, self.v_proj))
        correlation = delay_correlation(self.q_proj(query), keys)  # (B, M)
        weights = delay_weights(correlation, delay_count(length, self.factor), shared=self.training)
        return self.out_proj(aggregate_delays(values, weights))
