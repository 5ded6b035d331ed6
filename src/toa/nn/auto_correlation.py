"""Auto-correlation: replaces attention by a weighted sum of shifted series (Wu et al., 2021).

Alphabet: B batch, M queries, N keys, E embedding.
"""

import math

import torch
from torch import Tensor, nn

from toa._checks import check_at_least, check_shape
from toa.nn.layers import Layer, Linear


def delay_count(length: int, factor: int) -> int:
    """Return the number of delays to keep: floor(factor · ln length), clipped to 1..length."""
    check_at_least("length", length, 1)
    check_at_least("factor", factor, 1)
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
