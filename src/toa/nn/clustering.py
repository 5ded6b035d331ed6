"""The two clusterings of DUET (Qiu et al., 2025): experts chosen per series, and a sampled mask of channel pairs.

Alphabet: B batch, L look-back, C channels, X experts, E embedding, F frequencies.
"""

from contextlib import nullcontext
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from toa._checks import check_at_least, check_at_most, check_choice, check_shape
from toa.nn.layers import Layer, SeriesDecomposition
from toa.ops.dropout import thread_generator

# minimum standard deviation of the gate's noise; added to divisors: a sum of probabilities, a squared mean
_LEAST_NOISE = 1e-2
_LEAST_SUM = 1e-6
_LEAST_SQUARE = 1e-10


class Gating(NamedTuple):
    """Expert weights (..., X), of which k are nonzero, and the scalar load-balancing penalty."""

    gates: Tensor
    penalty: Tensor


class NoisyTopKGate(Layer):
    """Expert weights per series, k of them nonzero, computed from its values.

    p = softmax(z), gate_x = p_x / sum of the k largest p if p_x is among them, else 0; z = G(x), and in training
    z = (G(x) + ε ⊙ (softplus(N(x)) + 0.01)) W, ε ~ N(0, 1). G and N are perceptrons with one hidden layer and no bias.

    The penalty is cv²(importance) + cv²(load), cv² the variance between experts over the squared mean. The importance
    of an expert is the sum of its gates; its load is its number of series or, with noise, the differentiable expected
    number under a new draw. As in the authors' code, that expectation compares G(x) with thresholds taken from p,
    although p has passed W and softmax and G(x) has not.

    Args:
        noisy: Whether to add noise in training. If False, there is neither N nor W.
    """

    shown = ("num_experts", "top_k")

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
        """Return the weights for series (..., L), and the penalty over all series."""
        exact = torch.promote_types(series.dtype, torch.float32)
        clean = noisy = logits = self.logits(series).to(exact)  # (..., X)
        spread: Tensor | None = None
        if self.training and self.noise is not None and self.mixing is not None:
            spread = nn.functional.softplus(self.noise(series).to(exact)) + _LEAST_NOISE
            noisy = clean + self._draw(clean) * spread
            logits = noisy @ self.mixing.to(exact)
        # the k-th probability and the next one are the thresholds of the choice
        top = logits.softmax(-1).topk(min(self.top_k + 1, self.num_experts), -1)
        kept = top.values[..., : self.top_k]
        kept = kept / (kept.sum(-1, keepdim=True) + _LEAST_SUM)
        gates = torch.zeros_like(clean).scatter(-1, top.indices[..., : self.top_k], kept.to(clean.dtype))
        if spread is not None and self.top_k < self.num_experts:
            load = self._choice_probabilities(clean, noisy, spread, top.values)
        else:
            load = (gates > 0).to(gates.dtype)
        return Gating(gates, _squared_variation(gates) + _squared_variation(load))

    def _draw(self, like: Tensor) -> Tensor:
        generator = thread_generator(like.device)
        return torch.randn_like(like) if generator is None else torch.empty_like(like).normal_(generator=generator)

    def _choice_probabilities(self, clean: Tensor, noisy: Tensor, spread: Tensor, top: Tensor) -> Tensor:
        """Return the probability that each expert is chosen if its noise is drawn again."""
        last = top[..., self.top_k - 1 : self.top_k]
        next_ = top[..., self.top_k : self.top_k + 1]
        # a chosen expert must exceed the first one not chosen, any other the last one chosen
        threshold = torch.where(noisy > next_, next_, last)
        return torch.special.ndtr((clean - threshold) / spread)


def check_top_k(top_k: int, num_experts: int) -> None:
    """Check that the number of experts per series lies in 1..num_experts."""
    check_at_least("top_k", top_k, 1)
    remedy = f"use top_k={num_experts}, which gates all of them, or more experts"
    check_at_most("top_k", top_k, "num_experts", num_experts, remedy)


def _squared_variation(shares: Tensor) -> Tensor:
    """Return cv² of the experts' totals: variance (Bessel-corrected) over squared mean; 0 for one expert."""
    total = shares.flatten(0, -2).sum(0)  # (X,)
    if len(total) == 1:
        return torch.zeros_like(total[0])
    return total.var() / (total.mean().square() + _LEAST_SQUARE)


class LinearExperts(Layer):
    """Experts that map seasonal part and trend of each channel to a token, summed with gate weights.

    y_c = sum over x of g_x (W_x seasonal_c + b_x + W'_x trend_c + b'_x). One product computes all experts for all
    series, so that no shape depends on the choice.

    Args:
        moving_average: Window of the moving average of the trend; odd and at most L.
    """

    shown = ("lookback", "embed_dim", "num_experts")

    def __init__(self, lookback: int, embed_dim: int, num_experts: int, *, moving_average: int = 25) -> None:
        super().__init__()
        for name, size in (("lookback", lookback), ("embed_dim", embed_dim), ("num_experts", num_experts)):
            check_at_least(name, size, 1)
        self.lookback = lookback
        self.embed_dim = embed_dim
        self.num_experts = num_experts
        self.decompose = SeriesDecomposition(moving_average)
        # axis 1: seasonal part, trend
        self.weight = nn.Parameter(torch.empty(num_experts, 2, lookback, embed_dim))
        self.bias = nn.Parameter(torch.empty(num_experts, 2, embed_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set weights to 1 / L, a mean over time, as the authors do; draw biases from U(-b, b), b = 1 / sqrt(L)."""
        nn.init.constant_(self.weight, 1.0 / self.lookback)
        bound = self.lookback**-0.5
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, series: Tensor, gates: Tensor) -> Tensor:
        """Return tokens (B, C, E) of series (B, L, C) with gates (B, C, X), or (B, 1, X) shared by all channels."""
        check_shape("series", series, "(B, L, C)", (None, self.lookback, None))
        channels = 1 if gates.dim() == 3 and gates.shape[1] == 1 else series.shape[2]
        check_shape("gates", gates, "(B, C or 1, X)", (series.shape[0], channels, self.num_experts))
        parts = torch.stack(self.decompose(series), 1).permute(0, 3, 1, 2)  # (B, C, 2, L)
        gated = gates[..., None, None] * parts.unsqueeze(2)  # (B, C, X, 2, L)
        tokens = gated.flatten(2) @ self.weight.flatten(0, 2)  # (B, C, E)
        return tokens + gates @ self.bias.sum(1)


Sampling = Literal["always", "training", "never"]

# below 1, so that logits stay finite
_LARGEST_PROBABILITY = 0.99
_LEAST_DISTANCE = 1e-10


class ChannelMask(Layer):
    """A mask (B, C, C) of zeros and ones, 1 where a channel (row) attends to another (column).

    d_ij = ‖A (|x̂_i| - |x̂_j|)‖², x̂ the real Fourier transform over time: a Mahalanobis distance. With w = 1 / d,
    p_ij = 0.99 w_ij / max of w_ij over j ≠ i, and p_ii = 0.99. A pair is kept if 2 logit(p) + ε > 0, ε logistic noise:
    the Gumbel softmax of the logits ±logit(p), in which a pair is kept with probability p² / (p² + (1 - p)²), not p.
    The gradient is straight-through, that of sigmoid(2 logit(p) + ε); the maximum has no gradient.

    Args:
        sampling: When noise is used: "always", as in the authors' code, which makes forecasts random in evaluation;
            "training"; or "never". Without noise a pair is kept if p ≥ 1/2.
    """

    shown = ("lookback", "sampling")

    def __init__(self, lookback: int, *, sampling: Sampling = "training") -> None:
        super().__init__()
        check_at_least("lookback", lookback, 1)
        check_choice("sampling", sampling, get_args(Sampling))
        self.lookback = lookback
        self.sampling = sampling
        frequencies = lookback // 2 + 1
        self.metric = nn.Parameter(torch.randn(frequencies, frequencies))

    def forward(self, series: Tensor) -> Tensor:
        """Return the mask (B, C, C) of series (B, L, C) with at least two channels."""
        logits = 2.0 * self.probabilities(series).logit()
        if self.sampling == "always" or (self.sampling == "training" and self.training):
            logits = logits + self._draw(logits)
        soft = logits.sigmoid()
        return soft + ((logits >= 0).to(soft.dtype) - soft).detach()

    def probabilities(self, series: Tensor) -> Tensor:
        """Return p (B, C, C): 0.99 for a channel with itself and its nearest, smaller for more distant channels."""
        check_shape("series", series, "(B, L, C)", (None, self.lookback, None))
        check_at_least("channels", series.shape[2], 2)
        device = series.device.type
        # full precision: squared differences of similar channels would vanish in low precision
        with torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext():
            return self._probabilities(series)

    def _probabilities(self, series: Tensor) -> Tensor:
        exact = torch.promote_types(series.dtype, torch.float32)
        spectra = torch.fft.rfft(series.mT.to(exact)).abs()  # (B, C, F)
        # centring keeps the distances and makes the projections small, so that they round less
        points = (spectra - spectra.mean(1, keepdim=True)) @ self.metric.mT.to(exact)
        # explicit differences: a matrix product would lose those of similar channels
        distance = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").square()  # (B, C, C)
        itself = torch.eye(series.shape[2], dtype=torch.bool, device=series.device)
        weight = (1.0 / (distance + _LEAST_DISTANCE)).masked_fill(itself, 0.0)
        share = weight / weight.amax(-1, keepdim=True).detach()
        return _LARGEST_PROBABILITY * share.masked_fill(itself, 1.0)

    def _draw(self, like: Tensor) -> Tensor:
        """Draw logistic noise, the difference of two Gumbel variables."""
        generator = thread_generator(like.device)
        drawn = torch.rand_like(like) if generator is None else torch.empty_like(like).uniform_(generator=generator)
        return drawn.logit()
