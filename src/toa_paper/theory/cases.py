"""What softmax attention can represent, and the cases of the paper: their optimal operators, and what lemmas claim.

The rows of a softmax kernel lie in the simplex: entries ≥ 0, row sums 1. All distances are Frobenius norms. For white
noise v of unit variance the squared distance is the smallest mean squared error E ‖(K - T) v‖². Proposition 1: softmax
attention on a small input is an average. The five cases and two tokenisations of the paper are in float64.

Alphabet: Z regimes, T output positions or horizon, L or N input positions, C channels, F features, K periods.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from toa import ops
from toa._checks import (
    ArgumentError,
    check_at_least,
    check_at_most,
    check_divisible,
    check_finite,
    check_positive,
    check_shape,
)
from toa._registry import Registry
from toa.ops.simplex import in_simplex
from toa_paper.demixing.signals import HarmonicDemixing

# float64 leaves errors of about 1e-15 in the sums below
_TOLERANCE = 1e-9
# matrices and numbers of the cases are in float64
_eye = partial(torch.eye, dtype=torch.float64)
_steps = partial(torch.arange, dtype=torch.float64)


def uniform_distance(operator: Float[Tensor, "*batch t n"]) -> Float[Tensor, "*batch"]:
    """Distance to the uniform kernel, ‖T - 1 1ᵀ / N‖: Proposition 1, one softmax head without biases and positions.

    For small inputs such a head becomes an average, so the average is the only T that it realises for all inputs. At
    least `simplex_distance`.
    """
    return torch.linalg.matrix_norm(operator - 1.0 / operator.shape[-1])


def multihead_distance(operator: Float[Tensor, "*batch t n"]) -> Float[Tensor, "*batch"]:
    """Distance to the nearest signed sum of any number of softmax heads: ‖s - mean(s)‖ / sqrt(N) for the row sums s.

    Since K_h 1 = 1, all row sums of Σ c_h K_h are equal. This is the only restriction: if T 1 = s 1, two heads suffice,
    T = (s + b) P - b 1 1ᵀ / N, where P lies in the simplex for large b.
    """
    sums = operator.sum(-1)
    return torch.linalg.vector_norm(sums - sums.mean(-1, keepdim=True), dim=-1) / operator.shape[-1] ** 0.5


def scaled_outputs(
    tokens: Float[Tensor, "n e"], w_q: Float[Tensor, "d e"], w_k: Float[Tensor, "d e"], scales: Float[Tensor, " s"]
) -> Float[Tensor, "s n"]:
    """Outputs of one softmax head on scaled tokens, divided by the scale α: o(αH) / α.

    o(H) = softmax(H W_Qᵀ W_K Hᵀ / sqrt(D)) v with the values v_n = h_n⁽¹⁾. If o(H) = T v(H) for all H, the result does
    not depend on α.
    """
    check_shape("tokens", tokens, "(N, E)", (None, None))
    for name, weight in (("w_q", w_q), ("w_k", w_k)):
        check_shape(name, weight, "(D, E)", (w_q.shape[0], tokens.shape[1]))
    check_positive("the smallest of scales", float(scales.min()))
    shrunk = scales[:, None, None] * tokens  # (S, N, E)
    q = shrunk @ w_q.mT
    k = shrunk @ w_k.mT
    v = shrunk[..., :1]
    out = ops.operator_attention(q.unsqueeze(2), k.unsqueeze(2), v.unsqueeze(2), scale=w_q.shape[0] ** -0.5)
    return out[:, :, 0, 0] / scales[:, None]


def uniform_gap(
    tokens: Float[Tensor, "n e"], w_q: Float[Tensor, "d e"], w_k: Float[Tensor, "d e"], scales: Float[Tensor, " s"]
) -> Float[Tensor, " s"]:
    """Distance of o(αH) / α from the mean of the values: max_m |o_m(αH) / α - mean(v)|.

    Scores shrink as α² and softmax(0) is uniform, so the gap goes to zero as α². If one such head realises T for all H,
    every row of T is therefore 1ᵀ / N; see `uniform_distance`.
    """
    outputs = scaled_outputs(tokens, w_q, w_k, scales)
    return (outputs - tokens[:, 0].mean()).abs().amax(-1)


def _diagonal(operators: Tensor) -> Tensor:
    return operators.diagonal(dim1=-2, dim2=-1)


def _negative(operators: Tensor) -> Tensor:
    return operators < -_TOLERANCE


def _is_projector(operators: Tensor) -> bool:
    squares = operators @ operators
    transposes = operators.mT
    return all(torch.allclose(x, operators, rtol=0.0, atol=_TOLERANCE) for x in (squares, transposes))


def _rows_have_negatives(operators: Tensor) -> bool:
    zero = (operators.abs() < _TOLERANCE).all(-1)
    return bool((zero | _negative(operators).any(-1)).all())


# properties of operators (Z, T, N) that lemmas claim; each holds for every operator of a family
CLAIMS: Mapping[str, Callable[[Tensor], bool]] = {
    "every row sums to zero": lambda s: bool((s.sum(-1).abs() < _TOLERANCE).all()),
    "no row sums to one": lambda s: bool(((s.sum(-1) - 1.0).abs() > _TOLERANCE).all()),
    "every row has a negative entry": _rows_have_negatives,
    "every row that is not zero has a negative entry": _rows_have_negatives,
    "every row leaves the simplex": lambda s: not bool(in_simplex(s).any()),
    "some row leaves the simplex": lambda s: bool((~in_simplex(s)).any(-1).all()),
    "some row subtracts": lambda s: bool(((_diagonal(s) > _TOLERANCE) & _negative(s).any(-1)).any(-1).all()),
    "an orthogonal projector": _is_projector,
    "orthogonal projectors": _is_projector,
    "diagonal strictly between zero and one": lambda s: bool(
        ((_diagonal(s) > _TOLERANCE) & (_diagonal(s) < 1.0 - _TOLERANCE)).all()
    ),
    "negative off the diagonal": lambda s: bool(
        torch.where(torch.eye(s.shape[-1], dtype=torch.bool), s > 0.0, s < 0.0).all()
    ),
}


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Case:
    """An optimal sequence operator T*, one per regime of the signal.

    Args:
        operators: (Z, T, N) in float64, with one row per output; a static case has Z = 1.
        features: Numbers per token: 1 for a sample, otherwise the length of a patch or a series.
        claims: Names in `CLAIMS` of the properties that the lemma states.
    """

    name: str
    title: str
    operators: Float[Tensor, "z t n"]
    features: int
    claims: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_shape("operators", self.operators, "(Z, T, N)", (None, None, None))
        check_finite("operators", self.operators)
        check_at_least("features", self.features, 1)
        z, t, n = self.operators.shape
        check_at_least("Z", z, 1)
        check_at_most("T", t, "N", n, "use at most as many outputs as keys")
        if z > 1 and t < n:
            raise ArgumentError(f"operators of {z} regimes", "be square", f"T={t} and N={n}", "give one operator")

    @property
    def adaptive(self) -> bool:
        """Whether the operator depends on the regime of the signal."""
        return len(self.operators) > 1

    @property
    def row_sums(self) -> Float[Tensor, "z t"]:
        """T* 1, the output for a constant input. Equal to 1 in the simplex."""
        return self.operators.sum(-1)

    @property
    def negative_share(self) -> float:
        """Share of negative entries, except rounding errors. Zero in the simplex."""
        return float(_negative(self.operators).double().mean())

    @property
    def facts(self) -> dict[str, bool]:
        """Whether each claim of the lemma holds."""
        return {claim: CLAIMS[claim](self.operators) for claim in self.claims}


CASES: Registry[Callable[..., Case]] = Registry("case")


@CASES.register("A")
def harmonic_continuation(*, length: int = 48, horizon: int = 24, periods: Sequence[int] = (24, 12, 8)) -> Case:
    """Case A: continue a sum of K sinusoids, T* = Φ_fcast Φ_obs⁺, (T, L).

    Args:
        length: Observed steps L, a multiple of every period; then each sinusoid sums to zero and T* 1 = 0.
        horizon: Steps T to forecast, at most L.
        periods: Distinct periods of at least 3 steps. Samples of a shorter one do not determine its phase.
    """
    check_at_least("horizon", horizon, 1)
    check_at_most("horizon", horizon, "length", length, f"observe at least {horizon} steps")
    for period in periods:
        check_at_least("period", period, 3)
        check_divisible("length", length, "period", period)
    if not periods or len(set(periods)) < len(periods):
        raise ArgumentError("periods", "be distinct and at least one", tuple(periods), "drop the repeated ones")
    basis = _waves(periods, _steps(length + horizon))  # (L+T, 2K)
    operators = (basis[length:] @ torch.linalg.pinv(basis[:length])).unsqueeze(0)
    claims = ("every row sums to zero", "every row leaves the simplex")
    return Case(name="A", title="harmonic continuation", operators=operators, features=1, claims=claims)


@CASES.register("B")
def residualization(*, num_tokens: int = 48, width: int = 7) -> Case:
    """Case B: subtract the moving average, T* = I - G.

    Args:
        width: Odd number of steps in the average; at the ends, it covers the steps that exist.
    """
    check_at_least("width", width, 3)
    if width % 2 == 0 or width > num_tokens:
        raise ArgumentError("width", f"be odd and at most num_tokens={num_tokens}", width, "use 3, for instance")
    t = _steps(num_tokens)
    window = ((t[:, None] - t).abs() <= width // 2).double()
    average = window / window.sum(-1, keepdim=True)
    operators = (_eye(num_tokens) - average).unsqueeze(0)
    claims = ("every row sums to zero", "every row has a negative entry")
    return Case(name="B", title="residualization", operators=operators, features=1, claims=claims)


@CASES.register("C")
def latent_factors(*, channels: int = 24, factors: int = 4, steps: int = 16, seed: int = 0) -> Case:
    """Case C: denoise C channels driven by r latent factors, T* = A (AᵀA)⁻¹ Aᵀ with A ~ N(0, 1).

    The negative entries of the lemma hold for an open set of A, not for every A. The row sums alone exclude softmax.

    Args:
        factors: Latent factors r < C.
    """
    check_at_least("factors", factors, 1)
    check_at_most("factors", factors, "channels-1", channels - 1, "use fewer factors than channels")
    operators = _projector(factor_mixing(channels, factors, seed)).unsqueeze(0)
    claims = (
        "an orthogonal projector",
        "diagonal strictly between zero and one",
        "every row has a negative entry",
        "no row sums to one",
    )
    return Case(name="C", title="latent factor demixing", operators=operators, features=steps, claims=claims)


def factor_mixing(channels: int, factors: int, seed: int) -> Float[Tensor, "{channels} {factors}"]:
    """Weights A ~ N(0, 1) of the factors in the channels of case C."""
    return torch.randn(channels, factors, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@CASES.register("D")
def time_warping(*, length: int = 96, phase: float = 0.0) -> Case:
    """Case D: recover sinusoids under three warps of time; T_z projects onto cos, sin(ω_k τ_z(t) + φ), (3, L, L).

    τ_0 = t, τ_1 = t + 20 sin(4πt/L), τ_2 = t + 40 (t/L)², with the periods 24, 84, 168 of the paper's L = 672, all
    scaled by L / 672.

    cos(x + φ) and sin(x + φ) span the same plane for every φ, so T_z does not depend on the phase. The paper's family
    {T*(φ)} is one matrix; a layer has to choose the warp only. Row sums are zero for τ_0 only.

    Args:
        length: Steps L, at least 84: three samples of the shortest period.
        phase: φ, which has no effect on the operators.
    """
    check_at_least("length", length, 84)
    signals = HarmonicDemixing().scaled(length)
    operators = torch.stack([_projector(_waves(signals.periods, warp, phase)) for warp in signals.warps()])
    claims = ("orthogonal projectors", "every row has a negative entry", "every row leaves the simplex")
    return Case(name="D", title="phase drift and time warping", operators=operators, features=1, claims=claims)


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

    T_c = ψψᵀ/‖ψ‖² + ψ'ψ'ᵀ/‖ψ'‖². The paper prints (ψψᵀ + ψ'ψ'ᵀ) / (‖ψ‖² + ‖ψ'‖²). For two atoms of equal norm this is
    half of T_c, and not a projection. As in case D the phase has no effect.

    Args:
        window: Samples R per atom.
        cycles: Periods within the window.
        centres: Possible centres of the transient: the regimes.
        phase: φ, which has no effect on the operators.
    """
    check_at_least("the number of centres", len(centres), 1)
    atoms = torch.stack([local_atoms(num_tokens, window, cycles, centre, phase) for centre in centres])
    unit = atoms / torch.linalg.vector_norm(atoms, dim=1, keepdim=True)  # (Z, N, 2)
    operators = unit @ unit.mT
    claims = ("orthogonal projectors", "every row sums to zero", "every row that is not zero has a negative entry")
    return Case(name="E", title="local transients", operators=operators, features=1, claims=claims)


@CASES.register("patch")
def patch_differencing(*, num_patches: int = 42, lag: int = 7, patch_length: int = 16) -> Case:
    """Seasonal differences of patches: o_n = h_n - h_(n - S), and o_n = h_n for the first S.

    Args:
        lag: S, from 1 to N - 1.
        patch_length: Samples per token.
    """
    check_at_least("lag", lag, 1)
    check_at_most("lag", lag, "num_patches-1", num_patches - 1, "use a shorter lag")
    shift = torch.ones(num_patches - lag, dtype=torch.float64).diag(-lag)
    operators = (_eye(num_patches) - shift).unsqueeze(0)
    claims = ("some row subtracts", "some row leaves the simplex")
    return Case(name="patch", title="patch differencing", operators=operators, features=patch_length, claims=claims)


@CASES.register("inverted")
def cross_variate_demixing(*, channels: int = 24, leakage: float = 0.4, steps: int = 32, seed: int = 0) -> Case:
    """Undo leakage between channels: T* = A⁻¹ with A = I + E, E ≥ 0 off the diagonal.

    Args:
        channels: Tokens C, at least 2.
        leakage: Bound on the row sums of E, below 1/2. Entries of E differ at most by a factor of two, so the first
            order of A⁻¹ = I - E + E² - ... decides the signs: positive on the diagonal, negative elsewhere.
    """
    check_at_least("channels", channels, 2)
    check_positive("leakage", leakage)
    if leakage >= 0.5:
        raise ArgumentError("leakage", "be below 0.5", leakage, "more may change the signs of T*")
    generator = torch.Generator().manual_seed(seed)
    leak = 0.5 + 0.5 * torch.rand(channels, channels, generator=generator, dtype=torch.float64)
    leak = leak.fill_diagonal_(0.0) * (leakage / (channels - 1))
    operators = torch.linalg.inv(_eye(channels) + leak).unsqueeze(0)
    claims = ("some row subtracts", "negative off the diagonal")
    return Case(name="inverted", title="cross-variate demixing", operators=operators, features=steps, claims=claims)


def local_atoms(
    num_tokens: int, window: int, cycles: int, centre: int, phase: float = 0.0
) -> Float[Tensor, "{num_tokens} 2"]:
    """The atom w(t - c) cos(ω(t - c) + φ) of case E and, as a second column, its quadrature at φ + π/2.

    w(u) = 1 - cos(2π(u + R/2 + ½)/R) > 0 on R samples, ω = 2π cycles/R. For 2 ≤ cycles ≤ (R - 3)/2 both have zero mean
    and equal norms, and they are orthogonal.
    """
    start = centre - window // 2
    check_at_least("cycles", cycles, 2)
    if 2 * cycles > window - 3:
        raise ArgumentError("window", f"be at least 2 cycles + 3 = {2 * cycles + 3}", window, "widen it")
    if start < 0 or start + window > num_tokens:
        raise ArgumentError(
            "centre",
            f"leave {window} samples inside num_tokens={num_tokens}",
            centre,
            f"use {window // 2} to {num_tokens - window + window // 2}",
        )
    samples = _steps(window)
    envelope = 1.0 - (2.0 * math.pi * (samples + 0.5) / window).cos()
    angle = 2.0 * math.pi * cycles / window * (samples - window // 2) + phase
    atoms = torch.zeros(num_tokens, 2, dtype=torch.float64)
    atoms[start : start + window, 0] = envelope * angle.cos()
    atoms[start : start + window, 1] = envelope * (angle + math.pi / 2.0).cos()
    return atoms


def _waves(periods: Sequence[float], times: Float[Tensor, " t"], phase: float = 0.0) -> Float[Tensor, "t _columns"]:
    """One column of cosines and one of sines per period."""
    angles = torch.outer(2.0 * math.pi / torch.tensor(periods, dtype=torch.float64), times) + phase
    return torch.cat([angles.cos(), angles.sin()]).mT


def _projector(basis: Float[Tensor, "n r"]) -> Float[Tensor, "n n"]:
    """Φ (ΦᵀΦ)⁻¹ Φᵀ, computed from an orthonormal basis of the same span."""
    q = torch.linalg.qr(basis).Q
    return q @ q.mT
