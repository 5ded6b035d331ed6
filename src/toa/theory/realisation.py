"""Weights of a complete TOA layer, projections and all, that make it the operator of a case.

Alphabet: B batch, Z regimes, T output positions, N input positions, F features, H heads, E width of a token.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from toa import ops
from toa._checks import check_at_least, check_choice, check_shape
from toa.nn import DenseOperator, TemporalOperatorAttention, Variant
from toa.theory.case import Case

# e^-120 is zero in float32 and 1e-52 in float64: a score this far below another one is shut off
_SHUT = 120.0

# S2 = I + M passes the input itself along, and its rounding with it; so S2 is scaled up and W_O down, exactly
_GAIN = 64.0


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Realisation:
    """A layer that applies T_z to the features of its tokens, for the regime z that the tokens name.

    A token is [F features | its position, one-hot, N | its regime, one-hot, Z | padding]. Backbones add positions to
    their tokens, and without them no attention layer could do it: it answers equal tokens with equal outputs, whatever
    the rows of T* are. The regime stands for what earlier layers detect in the signal.
    """

    case: Case
    layer: TemporalOperatorAttention

    def tokens(self, features: Float[Tensor, "b n f"], regime: Int[Tensor, " b"] | None = None) -> Tensor:
        """Tokens (B, n, E) of the first n ≤ N positions; each sample has a regime of its own."""
        z, _, positions = self.case.operators.shape
        check_shape("features", features, "(B, N, F)", (None, None, self.case.features))
        b, n, f = features.shape
        if n > positions:
            raise ValueError(f"features must hold at most N={positions} positions, got {n}; cut them.")
        if regime is None:
            if self.case.adaptive:
                raise ValueError(f"case {self.case.name!r} needs regime, one of 0 to {z - 1} a sample, got None.")
            regime = torch.zeros(b, dtype=torch.long, device=features.device)
        check_shape("regime", regime, "(B,)", (b,))
        if b and not 0 <= int(regime.min()) <= int(regime.max()) < z:
            raise ValueError(f"regime must lie in 0 to {z - 1}, got {int(regime.min())} to {int(regime.max())}.")
        tokens = features.new_zeros(b, n, self.layer.embed_dim)
        tokens[..., :f] = features
        tokens[:, range(n), range(f, f + n)] = 1.0
        tokens[range(b), :, f + positions + regime] = 1.0
        return tokens

    def __call__(self, features: Float[Tensor, "b n f"], regime: Int[Tensor, " b"] | None = None) -> Tensor:
        """Features in, T_z times the features out: (B, T, F).

        A square T* is self attention. Otherwise the T queries are tokens of positions alone, as a decoder has them.
        """
        b, _, f = features.shape
        _, t, n = self.case.operators.shape
        check_shape("features", features, "(B, N, F)", (None, n, self.case.features))
        keys = self.tokens(features, regime)
        queries = keys if t == n else self.tokens(features.new_zeros(b, t, f), regime)
        out, _ = self.layer(queries, keys, keys)
        return out[..., :f]


def realise(case: Case, variant: Variant, *, dtype: torch.dtype = torch.float32) -> Realisation:
    """The layer whose S2 is T*, up to a factor, and whose kernel is the identity; a head for each regime.

    W_V reads the features, W_Q and W_K the positions, so that Q Kᵀ = I; S1 = I; W_O writes the sum of heads back.

    relu: ReLU(I - 1[regime ≠ z]) is I in the regime of head z, else 0; S2 = T_z.
    gated: ReLU(I) softplus(-c 1[regime ≠ z]) is ln 2 I or 0; S2 = T_z / ln 2.
    softmax: softmax(c I) = I. Its rows always sum to one, but where they all fall on a token whose row of S2 is zero
    the head is silent: S2 = T_z - 1 t_z with t_z the first row of T_z, and a last head, whose queries point at row z
    of its S2, gives t_z back. So signed operators alone, without a gate, realise the adaptive families as well.
    """
    check_choice("variant", variant, ops.ACTIVATIONS)
    z, t, n = case.operators.shape
    f = case.features
    sink = variant == "softmax" and case.adaptive
    if sink and z > n:
        raise ValueError(f"softmax needs a token for each regime, Z ≤ N={n}, got Z={z}; use 'relu' or 'gated'.")
    heads = z + sink
    # every head carries all features
    width = heads * max(f, math.ceil((f + n + z) / heads))
    # built without storage: nothing is drawn from the global generator
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
    """W_Q, W_K, W_V and W_O, and the bias of the keys that stands for the constant -1."""
    z, _, n = case.operators.shape
    f, heads = case.features, layer.num_heads
    position, code = slice(f, f + n), slice(f + n, f + n + z)
    sharpness = _SHUT if layer.variant == "softmax" else 1.0
    groups = (-1, heads, n + 1)
    w_q = layer.q_proj.weight.unflatten(0, groups)  # (G, H, N+1, E)
    w_k = layer.k_proj.weight.unflatten(0, groups)
    b_k = layer.k_proj.bias.unflatten(0, groups)
    w_v = layer.v_proj.weight.unflatten(0, (heads, -1))  # (H, D, E)
    w_o = layer.out_proj.weight.unflatten(1, (heads, -1))  # (E, H, D)
    for head in range(heads):
        w_v[head, :f, :f].fill_diagonal_(1.0)
        w_o[:f, head, :f].fill_diagonal_(1.0 / _GAIN)
        w_k[0, head, :n, position].fill_diagonal_(1.0)
        if head == z:
            # softmax's last head: the regime, not the position, says where to look
            w_q[0, head, :z, code].fill_diagonal_(sharpness)
            continue
        w_q[0, head, :n, position].fill_diagonal_(sharpness)
        # the extra coordinate of the queries is 1[regime ≠ head], times what it takes to shut the head
        other = w_q[-1, head, n, code]
        other.fill_({"relu": 1.0, "gated": _SHUT, "softmax": 2.0 * _SHUT}[layer.variant])
        other[head] = 0.0
        if layer.variant == "softmax":
            w_k[0, head, n, f] = 1.0  # the first position is the sink
        else:
            b_k[-1, head, n] = -1.0


@torch.no_grad()
def realisation_error(
    case: Case,
    variant: Variant,
    *,
    dtype: torch.dtype = torch.float32,
    batch: int = 16,
    generator: torch.Generator | None = None,
) -> float:
    """How far the layer's output is from T_z x, relative to the output: max |O - T_z x| / max |T_z x|.

    Features are standard normal, rounded to `dtype` first; T_z x is computed in float64. A batch mixes the regimes.

    Args:
        case: What to realise.
        variant: "softmax", "relu" or "gated".
        dtype: Of the layer.
        batch: Samples, at least one for each regime.
        generator: Draws the features; None is a fresh one with seed 0.
    """
    z, _, n = case.operators.shape
    check_at_least("batch", batch, z)
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    features = torch.randn(batch, n, case.features, generator=generator, dtype=torch.float64).to(dtype)
    regime = torch.arange(batch) % z
    exact = case.operators[regime] @ features.double()
    got = realise(case, variant, dtype=dtype)(features, regime)
    return float((got.double() - exact).abs().max() / exact.abs().max())
