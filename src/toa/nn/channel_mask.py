"""Channel clustering: a sampled mask of channel pairs from a learned distance of spectra (Qiu et al., 2025).

Alphabet: B batch, L look-back, C channels, F frequencies.
"""

from contextlib import nullcontext
from typing import Literal

import torch
from torch import Tensor, nn

from toa._checks import check_at_least, check_choice, check_shape

Sampling = Literal["always", "training", "never"]
SAMPLINGS = ("always", "training", "never")

# below 1, so that logits stay finite
_LARGEST_PROBABILITY = 0.99
_LEAST_DISTANCE = 1e-10


class ChannelMask(nn.Module):
    """A mask (B, C, C) of zeros and ones, 1 where a channel (row) attends to another (column).

    d_ij = ‖A (|x̂_i| - |x̂_j|)‖², x̂ the real Fourier transform over time: a Mahalanobis distance. With w = 1 / d,
    p_ij = 0.99 w_ij / max of w_ij over j ≠ i, and p_ii = 0.99. A pair is kept if 2 logit(p) + ε > 0, ε logistic noise:
    the Gumbel softmax of the logits ±logit(p), in which a pair is kept with probability p² / (p² + (1 - p)²), not p.
    The gradient is straight-through, that of sigmoid(2 logit(p) + ε); the maximum has no gradient.

    Args:
        lookback: Length L of a series.
        sampling: When noise is used: "always", as in the authors' code, which makes forecasts random in evaluation;
            "training"; or "never". Without noise a pair is kept if p ≥ 1/2.
    """

    def __init__(self, lookback: int, *, sampling: Sampling = "training") -> None:
        super().__init__()
        check_at_least("lookback", lookback, 1)
        check_choice("sampling", sampling, SAMPLINGS)
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
        return torch.rand_like(like).logit()

    def extra_repr(self) -> str:
        """Options shown in the module's repr."""
        return f"lookback={self.lookback}, sampling={self.sampling!r}"
