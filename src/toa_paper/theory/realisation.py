"""Weights of a complete TOA layer, including its projections, that apply the operator of a case; the theory as a table.

Alphabet: B batch, Z regimes, T output positions, N input positions, F features, H heads, E width of a token.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from toa._checks import ArgumentError, check_at_least, check_at_most, check_choice, check_shape
from toa.nn import DenseOperator, TemporalOperatorAttention, Variant
from toa.ops.simplex import simplex_distance
from toa_paper.theory.cases import CASES, Case, multihead_distance, uniform_distance

# e^-120 is zero in float32 and 1e-52 in float64: a score that is lower by this much has no weight
_SHUT = 120.0

# S2 = I + M also passes the input and its rounding error; scaling S2 up and W_O down by a power of two reduces this
_GAIN = 64.0

# the activations that realise cases, with the factor of the extra coordinate of queries that turns a head off
_OFF = {"relu": 1.0, "gated": _SHUT, "softmax": 2.0 * _SHUT}


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Realisation:
    """A layer that applies T_z to the features of its tokens, where z is the regime in the tokens.

    A token is [F features | one-hot position, N | one-hot regime, Z | padding]. Positions are necessary, and backbones
    add them: without them an attention layer gives equal outputs for equal tokens. The regime represents what earlier
    layers detect in the signal.
    """

    case: Case
    layer: TemporalOperatorAttention

    def tokens(self, features: Float[Tensor, "b n f"], regime: Int[Tensor, " b"] | None = None) -> Tensor:
        """Tokens (B, n, E) of the first n ≤ N positions, with one regime per sample."""
        z, _, positions = self.case.operators.shape
        check_shape("features", features, "(B, N, F)", (None, None, self.case.features))
        b, n, f = features.shape
        check_at_most("positions of features", n, "N", positions, "cut them")
        if regime is None:
            if self.case.adaptive:
                raise ValueError(f"case {self.case.name!r} needs regime, one of 0 to {z - 1} per sample, got None.")
            regime = torch.zeros(b, dtype=torch.long, device=features.device)
        check_shape("regime", regime, "(B,)", (b,))
        if b and not 0 <= int(regime.min()) <= int(regime.max()) < z:
            raise ArgumentError("regime", f"lie in 0 to {z - 1}", f"{int(regime.min())} to {int(regime.max())}")
        tokens = features.new_zeros(b, n, self.layer.embed_dim)
        tokens[..., :f] = features
        tokens[:, range(n), range(f, f + n)] = 1.0
        tokens[range(b), :, f + positions + regime] = 1.0
        return tokens

    def __call__(self, features: Float[Tensor, "b n f"], regime: Int[Tensor, " b"] | None = None) -> Tensor:
        """T_z times the features: (B, T, F).

        A square T* is self-attention. Otherwise the T queries hold positions only, as in a decoder.
        """
        b, _, f = features.shape
        _, t, n = self.case.operators.shape
        check_shape("features", features, "(B, N, F)", (None, n, self.case.features))
        keys = self.tokens(features, regime)
        queries = keys if t == n else self.tokens(features.new_zeros(b, t, f), regime)
        out, _ = self.layer(queries, keys, keys)
        return out[..., :f]


def realise(case: Case, variant: Variant, *, dtype: torch.dtype = torch.float32) -> Realisation:
    """The layer with one head per regime whose kernel is the identity and whose S2 is T*, up to a factor.

    W_V reads the features, W_Q and W_K read the positions, so that Q Kᵀ = I; S1 = I; W_O adds the heads.

    relu: ReLU(I - 1[regime ≠ z]) is I in the regime of head z, else 0; S2 = T_z.
    gated: ReLU(I) softplus(-c 1[regime ≠ z]) is ln 2 I or 0; S2 = T_z / ln 2.
    softmax: softmax(c I) = I. Its rows sum to one, so a head of another regime attends to a token whose row of S2 is
    zero: S2 = T_z - 1 t_z, where t_z is the first row of T_z. A last head, whose queries attend to row z of its S2,
    adds t_z. So signed operators without a gate realise adaptive families as well.
    """
    check_choice("variant", variant, _OFF)
    z, t, n = case.operators.shape
    f = case.features
    sink = variant == "softmax" and case.adaptive
    if sink and z > n:
        raise ValueError(f"softmax needs a token for each regime, Z ≤ N={n}, got Z={z}; use 'relu' or 'gated'.")
    heads = z + sink
    # every head must hold all features
    width = heads * max(f, math.ceil((f + n + z) / heads))
    # built on the meta device, so that the global generator is not used
    with torch.device("meta"):
        layer = TemporalOperatorAttention(
            width, heads, n, variant, scale=1.0, operator_std=0.0, sor=False, qk_dim=n + 1
        )
    layer = layer.to(dtype).to_empty(device="cpu").eval().requires_grad_(False)
    for parameter in layer.parameters():
        parameter.zero_()
    _write_projections(layer, case)
    s2 = torch.zeros(heads, n, n, dtype=torch.float64)
    s2[:z, :t] = case.operators
    if sink:
        first = case.operators[:, 0]  # (Z, N)
        s2[:z] -= first[:, None]
        s2[z, :z] = first
    s2 *= _GAIN / math.log(2.0) if variant == "gated" else _GAIN
    assert isinstance(layer.s2, DenseOperator)
    layer.s2.offset.copy_(s2 - torch.eye(n, dtype=torch.float64))
    return Realisation(case=case, layer=layer)


def _write_projections(layer: TemporalOperatorAttention, case: Case) -> None:
    """Set W_Q, W_K, W_V, W_O and the bias of the keys, which provides the constant -1."""
    z, _, n = case.operators.shape
    f, heads = case.features, layer.num_heads
    position = slice(f, f + n)
    code = slice(f + n, f + n + z)
    sharpness = _SHUT if layer.variant == "softmax" else 1.0
    groups = (-1, heads, n + 1)
    w_q = layer.q_proj.weight.unflatten(0, groups)  # (G, H, N+1, E)
    w_k = layer.k_proj.weight.unflatten(0, groups)
    b_k = layer.k_proj.bias.unflatten(0, groups)
    w_v = layer.v_proj.weight.unflatten(0, (heads, -1))  # (H, D, E)
    w_o = layer.out_proj.weight.unflatten(1, (heads, -1))  # (E, H, D)
    w_v[:, :f, :f] = torch.eye(f)
    w_o[:f, :, :f] = torch.eye(f)[:, None] / _GAIN
    w_k[0, :, :n, position] = torch.eye(n)
    w_q[0, :z, :n, position] = sharpness * torch.eye(n)
    # the last head of softmax: its queries attend by regime, not by position
    w_q[0, z:, :z, code] = sharpness * torch.eye(z)
    # the extra coordinate of the queries is 1[regime ≠ head], times a factor that turns the head off
    w_q[-1, :z, n, code] = _OFF[layer.variant] * (1.0 - torch.eye(z))
    if layer.variant == "softmax":
        w_k[0, :z, n, f] = 1.0  # other regimes attend to the first position
    else:
        b_k[-1, :z, n] = -1.0


@torch.no_grad()
def realisation_error(
    case: Case,
    variant: Variant,
    *,
    dtype: torch.dtype = torch.float32,
    batch: int = 16,
    generator: torch.Generator | None = None,
) -> float:
    """Relative error of the layer's output: max |O - T_z x| / max |T_z x|, with T_z x in float64.

    It uses `batch` samples of random features, at least one per regime; without a generator, those of seed 0.
    """
    z, _, n = case.operators.shape
    check_at_least("batch", batch, z)
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    features = torch.randn(batch, n, case.features, generator=generator, dtype=torch.float64).to(dtype)
    regime = torch.arange(batch) % z
    exact = case.operators[regime] @ features.double()
    got = realise(case, variant, dtype=dtype)(features, regime)
    return float((got.double() - exact).abs().max() / exact.abs().max())


@dataclass(frozen=True, kw_only=True, slots=True)
class TheoryRow:
    """Measurements of a case; over several regimes, distances are the largest ones.

    For softmax, `max_abs_row_sum` is 1 and `min_entry` at least 0. Distances are from one softmax head, one without
    positions (Proposition 1), and any number of heads; see `toa_paper.theory.cases`. Errors are relative errors of the
    TOA layers that realise the case; see `realisation_error`.
    """

    name: str
    title: str
    regimes: int
    shape: tuple[int, int]
    max_abs_row_sum: float
    min_entry: float
    negative_share: float
    facts: Mapping[str, bool]
    simplex_distance: float
    uniform_distance: float
    multihead_distance: float
    relu_error: float
    gated_error: float
    softmax_error: float


def theory_row(case: Case, *, dtype: torch.dtype = torch.float32) -> TheoryRow:
    """Measure one case, with layers of type `dtype`."""
    z, t, n = case.operators.shape
    distances = (simplex_distance, uniform_distance, multihead_distance)
    return TheoryRow(
        name=case.name,
        title=case.title,
        regimes=z,
        shape=(t, n),
        max_abs_row_sum=float(case.row_sums.abs().max()),
        min_entry=float(case.operators.min()),
        negative_share=case.negative_share,
        facts=case.facts,
        **{distance.__name__: float(distance(case.operators).max()) for distance in distances},
        **{f"{variant}_error": realisation_error(case, variant, dtype=dtype) for variant in _OFF},
    )


def theory_table(*, dtype: torch.dtype = torch.float32) -> list[TheoryRow]:
    """One row per case, with its default sizes."""
    return [theory_row(CASES[name](), dtype=dtype) for name in CASES]
