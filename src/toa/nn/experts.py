"""Temporal clustering: a few linear experts for each series, chosen by a noisy top-k gate (Qiu et al., 2025).

Alphabet: B batch, L look-back, C channels, X experts, E embedding.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from toa._checks import check_at_least, check_shape
from toa.nn.decomposition import SeriesDecomposition

# least standard deviation of the gate's noise; what the kept probabilities' sum and a squared mean are kept above
_LEAST_NOISE = 1e-2
_LEAST_SUM = 1e-6
_LEAST_SQUARE = 1e-10


class Gating(NamedTuple):
    """Weights of the experts (..., X), all but k of them zero, and the load-balancing penalty, a scalar."""

    gates: Tensor
    penalty: Tensor


class NoisyTopKGate(nn.Module):
    """Weights of experts for each series, k of them above zero, by what its values look like.

    p = softmax(z), gate_x = p_x / sum of the k largest p where p_x is one of those, else 0; z = G(x), and in training
    z = (G(x) + ε ⊙ (softplus(N(x)) + 0.01)) W, ε ~ N(0, 1). G and N are perceptrons of one hidden layer without
    biases.

    The penalty is cv²(importance) + cv²(load), cv² the variance between experts over the squared mean. An expert's
    importance is the sum of its gates; its load is how many series it gets or, under noise, how many it would get with
    fresh noise, differentiable. That probability is the authors': it sets G(x) against the k-th and next p as
    thresholds, though p has been through W and softmax and G(x) has not.

    Args:
        lookback: Length L of a series.
        num_experts: Number of experts X.
        top_k: Experts k that a series gets.
        hidden_dim: Width inside of the perceptrons.
        noisy: Whether there is noise, in training alone. Without it there is neither N nor W.
    """

    def __init__(self, lookback: int, num_experts: int, top_k: int, *, hidden_dim: int, noisy: bool = True) -> None:
        super().__init__()
        for name, size in (("lookback", lookback), ("num_experts", num_experts), ("hidden_dim", hidden_dim)):
            check_at_least(name, size, 1)
        check_top_k(top_k, num_experts)
        self.lookback = lookback
        self.num_experts = num_experts
        self.top_k = top_k

        def perceptron() -> nn.Sequential:
            return nn.Sequential(
                nn.Linear(lookback, hidden_dim, bias=False), nn.ReLU(), nn.Linear(hidden_dim, num_experts, bias=False)
            )

        self.logits = perceptron()
        self.noise = perceptron() if noisy else None
        self.mixing = nn.Parameter(torch.eye(num_experts)) if noisy else None

    def forward(self, series: Tensor) -> Gating:
        """Weights for series (..., L), and the penalty over all of them."""
        exact = torch.promote_types(series.dtype, torch.float32)
        clean = noisy = logits = self.logits(series).to(exact)  # (..., X)
        spread: Tensor | None = None
        if self.training and self.noise is not None and self.mixing is not None:
            spread = nn.functional.softplus(self.noise(series).to(exact)) + _LEAST_NOISE
            noisy = clean + self._draw(clean) * spread
            logits = noisy @ self.mixing.to(exact)
        # the k-th probability and the one after it bound the chosen
        top = logits.softmax(-1).topk(min(self.top_k + 1, self.num_experts), -1)
        kept = top.values[..., : self.top_k]
        kept = kept / (kept.sum(-1, keepdim=True) + _LEAST_SUM)
        gates = torch.zeros_like(clean).scatter(-1, top.indices[..., : self.top_k], kept.to(clean.dtype))
        if spread is not None and self.top_k < self.num_experts:
            load = self._chances(clean, noisy, spread, top.values)
        else:
            load = (gates > 0).to(gates.dtype)
        return Gating(gates, _squared_variation(gates) + _squared_variation(load))

    def _draw(self, like: Tensor) -> Tensor:
        return torch.randn_like(like)

    def _chances(self, clean: Tensor, noisy: Tensor, spread: Tensor, top: Tensor) -> Tensor:
        """How probable it is that each expert would be chosen with fresh noise of its own."""
        last, next_ = top[..., self.top_k - 1 : self.top_k], top[..., self.top_k : self.top_k + 1]
        # one that is chosen must beat the next, one that is not the last of the chosen
        threshold = torch.where(noisy > next_, next_, last)
        return torch.special.ndtr((clean - threshold) / spread)

    def extra_repr(self) -> str:
        """What the module's repr shows."""
        return f"num_experts={self.num_experts}, top_k={self.top_k}"


def check_top_k(top_k: int, num_experts: int) -> None:
    """Refuse more experts a series than there are, or none."""
    check_at_least("top_k", top_k, 1)
    if top_k > num_experts:
        raise ValueError(
            f"top_k must be at most num_experts={num_experts}, got {top_k}; use top_k={num_experts}, which gates all "
            "of them, or more experts."
        )


def _squared_variation(shares: Tensor) -> Tensor:
    """cv² of the experts' totals over all series: Bessel-corrected variance over squared mean; 0 for one expert."""
    total = shares.flatten(0, -2).sum(0)  # (X,)
    if len(total) == 1:
        return torch.zeros_like(total[0])
    return total.var() / (total.mean().square() + _LEAST_SQUARE)


class LinearExperts(nn.Module):
    """Experts that each map the seasonal part and the trend of a channel to a token, summed by gates.

    y_c = sum over x of g_x (W_x seasonal_c + b_x + W'_x trend_c + b'_x). All experts are computed for all series, in
    one product whose shape never depends on what is chosen.

    Args:
        lookback: Length L of a series.
        embed_dim: Width E of a token.
        num_experts: Number of experts X.
        moving_average: Window of the moving average that is the trend; odd, and at most L.
    """

    def __init__(self, lookback: int, embed_dim: int, num_experts: int, *, moving_average: int = 25) -> None:
        super().__init__()
        for name, size in (("lookback", lookback), ("embed_dim", embed_dim), ("num_experts", num_experts)):
            check_at_least(name, size, 1)
        self.lookback = lookback
        self.num_experts = num_experts
        self.decompose = SeriesDecomposition(moving_average)
        # axis 1: of the seasonal part, of the trend
        self.weight = nn.Parameter(torch.empty(num_experts, 2, lookback, embed_dim))
        self.bias = nn.Parameter(torch.empty(num_experts, 2, embed_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Every weight 1 / L, a mean over time, as the authors start; biases U(-b, b) with b = 1 / sqrt(L)."""
        nn.init.constant_(self.weight, 1.0 / self.lookback)
        bound = self.lookback**-0.5
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, series: Tensor, gates: Tensor) -> Tensor:
        """Tokens (B, C, E) of series (B, L, C) under gates (B, C, X), or (B, 1, X) for all channels alike."""
        check_shape("series", series, "(B, L, C)", (None, self.lookback, None))
        channels = 1 if gates.dim() == 3 and gates.shape[1] == 1 else series.shape[2]
        check_shape("gates", gates, "(B, C or 1, X)", (series.shape[0], channels, self.num_experts))
        parts = torch.stack(self.decompose(series), 1).permute(0, 3, 1, 2)  # (B, C, 2, L)
        gated = gates[..., None, None] * parts.unsqueeze(2)  # (B, C, X, 2, L)
        tokens = gated.flatten(2) @ self.weight.flatten(0, 2)  # (B, C, E)
        return tokens + gates @ self.bias.sum(1)

    def extra_repr(self) -> str:
        """What the module's repr shows."""
        return f"lookback={self.lookback}, embed_dim={self.weight.shape[-1]}, num_experts={self.num_experts}"
