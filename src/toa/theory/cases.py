"""The five cases of the paper and its two tokenisations: each builds its optimal operator from named parameters.

Alphabet: Z regimes, T horizon, L or N tokens, C channels, K periods.
"""

import math
from collections.abc import Callable, Sequence

import torch

from toa._checks import check_at_least, check_divisible, check_positive
from toa._registry import Registry
from toa.data import HarmonicDemixing
from toa.theory.bases import local_atoms, projector, quadrature, time_steps
from toa.theory.case import (
    Case,
    diagonal_within,
    every_row_outside,
    negative_in_every_row,
    negative_off_diagonal,
    no_unit_row_sum,
    projectors,
    some_row_outside,
    subtracts,
    zero_row_sums,
)

CASES: Registry[Callable[..., Case]] = Registry("case")


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@CASES.register("A")
def harmonic_continuation(*, length: int = 48, horizon: int = 24, periods: Sequence[int] = (24, 12, 8)) -> Case:
    """Case A: continue a sum of K sinusoids, T* = Φ_fcast Φ_obs⁺, (T, L).

    Args:
        length: Observed steps L, a multiple of every period; then each sinusoid sums to zero and T* 1 = 0.
        horizon: Steps T to forecast, at most L.
        periods: Distinct whole numbers of at least 3 steps; of a shorter one the samples do not show both quadratures.
    """
    check_at_least("horizon", horizon, 1)
    for period in periods:
        check_at_least("period", period, 3)
        check_divisible("length", length, "period", period)
    if not periods or len(set(periods)) < len(periods):
        raise ValueError(f"periods must be distinct and at least one, got {tuple(periods)}; drop the repeated ones.")
    if horizon > length:
        raise ValueError(f"horizon must be at most length={length}, got {horizon}; observe {horizon} steps or more.")
    frequencies = 2.0 * math.pi / torch.tensor(periods, dtype=torch.float64)
    basis = quadrature(torch.outer(frequencies, time_steps(length + horizon)))  # (L+T, 2K)
    return Case(
        name="A",
        title="harmonic continuation",
        operators=(basis[length:] @ torch.linalg.pinv(basis[:length])).unsqueeze(0),
        features=1,
        claims={"every row sums to zero": zero_row_sums, "every row leaves the simplex": every_row_outside},
    )


@CASES.register("B")
def residualization(*, num_tokens: int = 48, width: int = 7) -> Case:
    """Case B: take the moving average away, T* = I - G.

    Args:
        num_tokens: Steps N.
        width: Steps that the average spans, odd; at an edge, those of them that exist.
    """
    check_at_least("width", width, 3)
    if width % 2 == 0 or width > num_tokens:
        raise ValueError(f"width must be odd and at most num_tokens={num_tokens}, got {width}; use 3, for instance.")
    t = time_steps(num_tokens)
    window = ((t[:, None] - t).abs() <= width // 2).double()
    average = window / window.sum(-1, keepdim=True)
    return Case(
        name="B",
        title="residualization",
        operators=(torch.eye(num_tokens, dtype=torch.float64) - average).unsqueeze(0),
        features=1,
        claims={"every row sums to zero": zero_row_sums, "every row has a negative entry": negative_in_every_row},
    )


@CASES.register("C")
def latent_factors(*, channels: int = 24, factors: int = 4, steps: int = 16, seed: int = 0) -> Case:
    """Case C: clean C channels that r latent factors drive, T* = A (AᵀA)⁻¹ Aᵀ with A ~ N(0, 1).

    The lemma's negative entries hold for an open set of A, not for all of them; the row sums alone refute softmax.

    Args:
        channels: Tokens C.
        factors: Latent factors r < C.
        steps: Steps that the token of a channel holds.
        seed: Draws A.
    """
    check_at_least("factors", factors, 1)
    if factors >= channels:
        raise ValueError(f"factors must be below channels={channels}, got {factors}; else T* is the identity.")
    mixing = torch.randn(channels, factors, generator=_generator(seed), dtype=torch.float64)
    return Case(
        name="C",
        title="latent factor demixing",
        operators=projector(mixing).unsqueeze(0),
        features=steps,
        claims={
            "an orthogonal projector": projectors,
            "diagonal strictly between zero and one": diagonal_within,
            "every row has a negative entry": negative_in_every_row,
            "no row sums to one": no_unit_row_sum,
        },
    )


@CASES.register("D")
def time_warping(*, length: int = 96, phase: float = 0.0) -> Case:
    """Case D: recover sinusoids under three warps of time; T_z projects onto cos, sin(ω_k τ_z(t) + φ), (3, L, L).

    τ_0 = t, τ_1 = t + 20 sin(4πt/L), τ_2 = t + 40 (t/L)² and the periods 24, 84, 168 of the paper's L = 672, all
    scaled by L / 672.

    cos(x + φ) and sin(x + φ) span one plane for every φ, so T_z does not depend on the phase: the paper's family
    {T*(φ)} is a single matrix, and what a layer has to choose is the warp. Row sums are zero for τ_0 only.

    Args:
        length: Steps L, at least 84: three samples of the shortest period.
        phase: φ, without effect on the operators.
    """
    check_at_least("length", length, 84)
    signals = HarmonicDemixing().scaled(length)
    frequencies = 2.0 * math.pi / torch.tensor(signals.periods, dtype=torch.float64)
    bases = [quadrature(torch.outer(frequencies, warp) + phase) for warp in signals.warps()]
    return Case(
        name="D",
        title="phase drift and time warping",
        operators=torch.stack([projector(basis) for basis in bases]),
        features=1,
        claims={
            "orthogonal projectors": projectors,
            "every row has a negative entry": negative_in_every_row,
            "every row leaves the simplex": every_row_outside,
        },
    )


@CASES.register("E")
def local_features(
    *,
    num_tokens: int = 48,
    window: int = 16,
    cycles: int = 3,
    centres: Sequence[int] = (8, 20, 32, 40),
    phase: float = 0.0,
) -> Case:
    """Case E: recover a transient at centre c; T_c projects onto the atom and its quadrature, (Z, N, N).

    T_c = ψψᵀ/‖ψ‖² + ψ'ψ'ᵀ/‖ψ'‖². The paper prints (ψψᵀ + ψ'ψ'ᵀ) / (‖ψ‖² + ‖ψ'‖²), which for a pair of equal norms is
    half of that and not idempotent; a projection leaves the atom as it is. As in case D the phase has no effect.

    Args:
        num_tokens: Steps N.
        window: Samples R of an atom.
        cycles: Periods within the window.
        centres: Where the transient may be: the regimes.
        phase: φ, without effect on the operators.
    """
    check_at_least("the number of centres", len(centres), 1)
    atoms = torch.stack([local_atoms(num_tokens, window, cycles, centre, phase) for centre in centres])
    unit = atoms / torch.linalg.vector_norm(atoms, dim=1, keepdim=True)  # (Z, N, 2)
    return Case(
        name="E",
        title="local transients",
        operators=unit @ unit.mT,
        features=1,
        claims={
            "orthogonal projectors": projectors,
            "every row sums to zero": zero_row_sums,
            "every row that is not zero has a negative entry": negative_in_every_row,
        },
    )


@CASES.register("patch")
def patch_differencing(*, num_patches: int = 42, lag: int = 7, patch_length: int = 16) -> Case:
    """Seasonal differences of patches: o_n = h_n - h_(n - S), and o_n = h_n for the first S.

    Args:
        num_patches: Tokens N.
        lag: S, from 1 to N - 1.
        patch_length: Samples that a token holds.
    """
    check_at_least("lag", lag, 1)
    if lag >= num_patches:
        raise ValueError(f"lag must be below num_patches={num_patches}, got {lag}; else nothing is subtracted.")
    shift = torch.ones(num_patches - lag, dtype=torch.float64).diag(-lag)
    return Case(
        name="patch",
        title="patch differencing",
        operators=(torch.eye(num_patches, dtype=torch.float64) - shift).unsqueeze(0),
        features=patch_length,
        claims={"some row subtracts": subtracts, "some row leaves the simplex": some_row_outside},
    )


@CASES.register("inverted")
def cross_variate_demixing(*, channels: int = 24, leakage: float = 0.4, steps: int = 32, seed: int = 0) -> Case:
    """Undo a leak between channels: T* = A⁻¹ with A = I + E, E ≥ 0 off the diagonal.

    Args:
        channels: Tokens C, at least 2.
        leakage: Bound on the row sums of E, below 1/2. Its entries differ by a factor of two at most, so in
            A⁻¹ = I - E + E² - ... the first order wins: the diagonal is positive, all else negative.
        steps: Steps that the token of a channel holds.
        seed: Draws E.
    """
    check_at_least("channels", channels, 2)
    check_positive("leakage", leakage)
    if leakage >= 0.5:
        raise ValueError(f"leakage must be below 0.5, got {leakage}; more may turn signs around.")
    leak = 0.5 + 0.5 * torch.rand(channels, channels, generator=_generator(seed), dtype=torch.float64)
    leak = leak.fill_diagonal_(0.0) * (leakage / (channels - 1))
    return Case(
        name="inverted",
        title="cross-variate demixing",
        operators=torch.linalg.inv(torch.eye(channels, dtype=torch.float64) + leak).unsqueeze(0),
        features=steps,
        claims={"some row subtracts": subtracts, "negative off the diagonal": negative_off_diagonal},
    )
