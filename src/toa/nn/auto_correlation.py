"""Auto-correlation: a mechanism in the place of attention that mixes whole series, shifted, instead of tokens.

After Wu et al. (2021). Alphabet: B batch, M queries, N keys, E embedding.
"""

import math

import torch
from torch import Tensor, nn

from toa._checks import check_at_least, check_shape
from toa.nn.linear import Linear


def delay_count(length: int, factor: int) -> int:
    """How many delays auto-correlation keeps of `length`: floor(factor · ln length), within 1..length."""
    check_at_least("length", length, 1)
    check_at_least("factor", factor, 1)
    return min(length, max(1, math.floor(factor * math.log(length))))


def fit_length(x: Tensor, length: int) -> Tensor:
    """The first `length` steps of (B, N, E), with zeros after the last where there are fewer."""
    missing = length - x.shape[1]
    return nn.functional.pad(x, (0, 0, 0, missing)) if missing > 0 else x[:, :length]


def delay_correlation(q: Tensor, k: Tensor) -> Tensor:
    """Circular correlation at each delay, (B, N, E) twice to (B, N): out[τ] = (1 / E) Σ_t q[t + τ]·k[t], modulo N.

    By FFT, in at least float32. The mean is taken of the spectra, so that only one transform a sequence leads back. For
    odd N, where the authors' code loses a delay, N are given as well.
    """
    q_spectrum, k_spectrum = (torch.fft.rfft(_at_least_float32(x), dim=1) for x in (q, k))  # (B, N // 2 + 1, E)
    return torch.fft.irfft((q_spectrum * k_spectrum.conj()).mean(2), n=q.shape[1])


def delay_weights(correlation: Tensor, count: int, *, shared: bool) -> Tensor:
    """Softmax over the `count` largest correlations of each row, zero at every other delay: (B, N).

    Args:
        correlation: At each delay, (B, N).
        count: Delays to keep.
        shared: Whether the delays are those of the batch's mean correlation, the same in every row. The weights are
            each row's own all the same.
    """
    ranked = correlation.mean(0, keepdim=True) if shared else correlation
    top = ranked.topk(count, sorted=False).indices.expand(correlation.shape[0], -1)  # (B, count)
    return torch.zeros_like(correlation).scatter(1, top, correlation.gather(1, top).softmax(-1))


def aggregate_delays(v: Tensor, weights: Tensor) -> Tensor:
    """A weighted sum of the shifts of a series, out[t] = Σ_τ weights[τ] v[t + τ], modulo N.

    By FFT as well: the host need not know the delays, and no shifted copy is kept.

    Args:
        v: (B, N, E).
        weights: Of each delay, (B, N).
    """
    spectrum, shifts = (torch.fft.rfft(_at_least_float32(x), dim=1) for x in (v, weights.unsqueeze(-1)))
    return torch.fft.irfft(spectrum * shifts.conj(), n=v.shape[1], dim=1).to(v.dtype)


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


class AutoCorrelation(nn.Module):
    """Values averaged over the delays at which queries and keys correlate most, projected: (B, M, E) to (B, M, E).

    c = delay_correlation(Q, K), w = softmax of the delay_count(M, factor) largest of c, O[t] = Σ_τ w[τ] V[t + τ]. Keys
    and values are cut, or filled up with zeros, to the M steps of the queries. Training takes the delays of the batch's
    mean correlation for every sample, evaluation each sample's own.

    As the authors publish it, the correlation is a mean over all heads: their number has no effect, and there is none
    here. Nothing is masked: a step sees those after it.

    Args:
        embed_dim: Width E of queries, keys, values and outputs.
        factor: How many delays take part; see `delay_count`.
    """

    def __init__(self, embed_dim: int, *, factor: int = 1) -> None:
        super().__init__()
        check_at_least("embed_dim", embed_dim, 1)
        check_at_least("factor", factor, 1)
        self.embed_dim = embed_dim
        self.factor = factor
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (Linear(embed_dim, embed_dim) for _ in range(4))

    def forward(self, query: Tensor, source: Tensor) -> Tensor:
        """Mix.

        Args:
            query: (B, M, E).
            source: What keys and values are made of, (B, N, E).
        """
        check_shape("query", query, "(B, M, E)", (None, None, self.embed_dim))
        check_shape("source", source, "(B, N, E)", (query.shape[0], None, self.embed_dim))
        length = query.shape[1]
        keys, values = (fit_length(project(source), length) for project in (self.k_proj, self.v_proj))
        correlation = delay_correlation(self.q_proj(query), keys)  # (B, M)
        weights = delay_weights(correlation, delay_count(length, self.factor), shared=self.training)
        return self.out_proj(aggregate_delays(values, weights))

    def extra_repr(self) -> str:
        """What the module's repr shows."""
        return f"embed_dim={self.embed_dim}, factor={self.factor}"
