"""Multi-regime harmonic demixing (section 4 of the paper): noisy superpositions of harmonics under a hidden warp.

x_t = Σ_k a_k cos(ω_k τ_z(t) + φ) + ε_t, with φ ~ U[0, 2π), ε_t ~ N(0, noise²) and z one of three warps of time:
stationary τ_0(t) = t, vibrato τ_1(t) = t + 20 sin(4πt/L), chirp τ_2(t) = t + 40 (t/L)². The target is the clean sum.

Alphabet: B batch, L length, K harmonics, Z = 3 regimes.
"""

import hashlib
import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from toa._checks import ArgumentError, check_at_least, check_generator

REGIMES = ("stationary", "vibrato", "chirp")


class DemixingBatch(NamedTuple):
    """Noisy signals, clean signals (B, L) and the regime (B,) each was drawn from."""

    noisy: Tensor
    clean: Tensor
    regime: Tensor

    @property
    def checksum(self) -> str:
        """SHA-256 of the signals."""
        return hashlib.sha256(b"".join(tensor.cpu().numpy().tobytes() for tensor in self)).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class HarmonicDemixing:
    """The distribution of signals; the defaults are the paper's.

    The paper does not state the amplitudes; with a_k = 1 the linear oracle is close to its published numbers.
    """

    length: int = 672
    periods: tuple[float, ...] = (24.0, 84.0, 168.0)
    amplitudes: tuple[float, ...] = (1.0, 1.0, 1.0)
    noise: float = 0.5
    vibrato: float = 20.0
    chirp: float = 40.0

    def __post_init__(self) -> None:
        for name in ("periods", "amplitudes"):
            if not isinstance(getattr(self, name), tuple):
                raise ArgumentError(name, "be a tuple", repr(getattr(self, name)), "write (24.0, 84.0)")
        check_at_least("length", self.length, 2)
        check_at_least("noise", self.noise, 0.0)
        if len(self.amplitudes) != len(self.periods) or not self.periods:
            raise ArgumentError(
                "amplitudes",
                "be as many as periods, at least one",
                f"{len(self.amplitudes)} and {len(self.periods)}",
                "give one amplitude per period",
            )
        if min(self.periods) < 2:
            raise ArgumentError("periods", "be at least 2 samples", min(self.periods), "lengthen the series")

    def scaled(self, length: int) -> "HarmonicDemixing":
        """The same signals sampled at another rate: periods and warps shrink or grow with the length."""
        ratio = length / self.length
        return replace(
            self,
            length=length,
            periods=tuple(p * ratio for p in self.periods),
            vibrato=self.vibrato * ratio,
            chirp=self.chirp * ratio,
        )

    def warps(self) -> Tensor:
        """τ_z(t) of every regime, (Z, L) in float64."""
        t = torch.arange(self.length, dtype=torch.float64)
        vibrato = t + self.vibrato * torch.sin(4 * math.pi * t / self.length)
        chirp = t + self.chirp * (t / self.length) ** 2
        return torch.stack((t, vibrato, chirp))

    def _quadrature(self) -> tuple[Tensor, Tensor]:
        """a_k cos(ω_k τ_z) and a_k sin(ω_k τ_z), each (Z, K, L) in float64."""
        omega = 2 * math.pi / torch.tensor(self.periods, dtype=torch.float64)
        angle = omega[None, :, None] * self.warps()[:, None, :]
        amplitude = torch.tensor(self.amplitudes, dtype=torch.float64)[:, None]
        return amplitude * angle.cos(), amplitude * angle.sin()

    def sample(
        self, count: int, *, generator: Generator | None = None, device: torch.device | str = "cpu"
    ) -> DemixingBatch:
        """Draw signals on any device, in float32."""
        check_at_least("count", count, 1)
        device = torch.device(device)
        check_generator(generator, device)
        regime = torch.randint(len(REGIMES), (count,), generator=generator, device=device)
        phase = 2 * math.pi * torch.rand(count, 1, generator=generator, device=device)
        cosine, sine = _phase_parts(self, device)
        clean = cosine[regime] * phase.cos() - sine[regime] * phase.sin()
        noise = torch.randn(count, self.length, generator=generator, device=device)
        return DemixingBatch(clean + self.noise * noise, clean, regime)

    def oracle(self) -> Tensor:
        """The linear estimator that knows warp and periods, one projector per regime: (Z, L, L) in float64.

        It fits an amplitude and a phase to each harmonic by least squares; its error is noise² 2K / L.
        """
        basis = torch.cat(self._quadrature(), 1)  # (Z, 2K, L)
        return torch.linalg.pinv(basis) @ basis

    def best_fixed_filter(self) -> Tensor:
        """The best single linear estimator for all regimes, without knowledge of the warp: (L, L) in float64.

        Σ (Σ + noise² I)⁻¹ with Σ the covariance of the clean signals. All harmonics share one phase, so the signals of
        a regime span only two dimensions, and this filter onto the six of all regimes is as good as the oracle.
        """
        basis = torch.cat([part.sum(1) for part in self._quadrature()])  # (2 Z, L)
        covariance = basis.mT @ basis / (2 * len(REGIMES))
        noisy = covariance + self.noise**2 * torch.eye(self.length, dtype=torch.float64)
        return torch.linalg.solve(noisy, covariance).mT


@lru_cache(maxsize=8)
def _phase_parts(signals: HarmonicDemixing, device: torch.device) -> tuple[Tensor, Tensor]:
    """Clean signals of phase 0 and of phase -π/2, each (Z, L), cached on the device."""
    cosine, sine = (part.sum(1).to(device, torch.float32) for part in signals._quadrature())
    return cosine, sine
