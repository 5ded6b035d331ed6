"""Channel clustering: which channel attends to which, sampled by a learned distance of spectra (Qiu et al., 2025).

Alphabet: B batch, L look-back, C channels, F frequencies.
"""

from contextlib import nullcontext
from typing import Literal

import torch
from torch import Tensor, nn

from toa._checks import check_at_least, check_choice, check_shape

Sampling = Literal["always", "training", "never"]
SAMPLINGS = ("always", "training", "never")

# no pair is certain, so that its logit stays finite
_LARGEST_PROBABILITY = 0.99
_LEAST_DISTANCE = 1e-10


class ChannelMask(nn.Module):
    """A mask (B, C, C) of zeros and ones, 1 where a channel (row) attends to another (column).

    d_ij = ‖A (|x̂_i| - |x̂_j|)‖², x̂ the real Fourier transform over time: a Mahalanobis distance. With w = 1 / d,
    p_ij = 0.99 w_ij / max of w_ij over j ≠ i, and p_ii = 0.99. A pair is kept if 2 logit(p) + ε > 0, ε logistic noise:
    the Gumbel softmax of the logits ±logit(p), in which a pair is kept with probability p² / (p² + (1 - p)²), not p.
    The gradient is straight-through, that of sigmoid(2 logit(p) + ε); none goes through the maximum.

    Args:
        lookback: Length L of a series.
        sampling: When there is noise: "always", as the authors have it, so that a forecast in evaluation is a random
            one; in "training" alone; or "never". Without noise a pair is kept where p ≥ 1/2.
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
        """A mask for series (B, L, C) of two channels or more; shape (B, C, C)."""
        logits = 2.0 * self.probabilities(series).logit()
        if self.sampling == "always" or (self.sampling == "training" and self.training):
            logits = logits + self._draw(logits)
        soft = logits.sigmoid()
        return soft + ((logits >= 0).to(soft.dtype) - soft).detach()

    def probabilities(self, series: Tensor) -> Tensor:
        """P, (B, C, C): 0.99 for a channel and itself and its nearest, less the farther another one is."""
        check_shape("series", series, "(B, L, C)", (None, self.lookback, None))
        check_at_least("channels", series.shape[2], 2)
        device = series.device.type
        # squared differences: in low precision near channels would coincide
        with torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext():
            return self._probabilities(series)

    def _probabilities(self, series: Tensor) -> Tensor:
        exact = torch.promote_types(series.dtype, torch.float32)
        spectra = torch.fft.rfft(series.mT.to(exact)).abs()  # (B, C, F)
        # distances are those of the centred spectra, whose projections are small and so exact
        points = (spectra - spectra.mean(1, keepdim=True)) @ self.metric.mT.to(exact)
        # differences, not a matrix product, which would lose those of near channels
        distance = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").square()  # (B, C, C)
        itself = torch.eye(series.shape[2], dtype=torch.bool, device=series.device)
        weight = (1.0 / (distance + _LEAST_DISTANCE)).masked_fill(itself, 0.0)
        share = weight / weight.amax(-1, keepdim=True).detach()
        return _LARGEST_PROBABILITY * share.masked_fill(itself, 1.0)

    def _draw(self, like: Tensor) -> Tensor:
        """Logistic noise, the difference of two Gumbel variables."""
        return torch.rand_like(like).logit()

    def extra_repr(self) -> str:
        """What the module's repr shows."""
        return f"lookback={self.lookback}, sampling={self.sampling!r}"
