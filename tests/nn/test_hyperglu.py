import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support import assert_near, message, scatter_parameters
from toa.nn import HyperGLUAttention
from toa.nn.operator import DiagonalLowRankOperator
from toa.ops.attention.definitions import L2_FLOOR

# embedding width
E = 8
# number of heads
H = 2
# number of queries
M = 4
# number of tokens, or of keys
N = 6
# rank of the projections
R = 3


def literal(layer: HyperGLUAttention, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """The formula with an explicit N x N mixer T(x_m) per query."""
    n = key.shape[1]
    width = layer.qk_dim

    def convolved(x: Tensor) -> Tensor:
        if mask is not None:
            x = x.masked_fill(mask.unsqueeze(-1), 0.0)
        out = torch.zeros_like(x)
        taps = layer.conv.weight[:, 0]  # (E, size), the last tap on the present token
        size = taps.shape[1]
        for t in range(n):
            for lag in range(min(size, t + 1)):
                out[:, t] += taps[:, size - 1 - lag] * x[:, t - lag]
        return out

    def mixer(operator: DiagonalLowRankOperator, switch: Tensor, head: int) -> Tensor:
        d, left, right = operator.diagonal[head, :n], operator.left[head, :n], operator.right[head, :n]
        return torch.eye(n, dtype=d.dtype) + torch.diag(d) + left @ torch.diag(switch) @ right.T

    queries = layer.q_proj(query) * torch.sigmoid(layer.q_gate(query))
    keys = layer.k_proj(convolved(key))
    values = layer.v_proj(convolved(value))
    switches = torch.sigmoid(layer.rank_gates(query))
    rows = torch.zeros(*query.shape[:2], layer.embed_dim, dtype=query.dtype)
    for b in range(query.shape[0]):
        visible = torch.ones(n, dtype=torch.bool) if mask is None else ~mask[b]
        for m in range(query.shape[1]):
            for head in range(H):
                # three groups of H heads of R switches; two groups of H heads of queries and keys
                l_switch, r_switch, v_switch = switches[b, m].reshape(3, H, R)[:, head]
                q_l, q_r = queries[b, m].reshape(2, H, width)[:, head]
                k_l, k_r = keys[b].reshape(n, 2, H, width)[:, :, head].unbind(1)
                k_l, k_r = k_l * visible[:, None], k_r * visible[:, None]
                left = (q_l @ k_l.T @ mixer(layer.score_mixer, l_switch, head)) * visible
                right = (q_r @ k_r.T @ mixer(layer.gate_mixer, r_switch, head)) * visible
                left = left / torch.sqrt(left.square().sum() + L2_FLOOR)
                weights = F.softplus(right) * F.relu(left)
                v = values[b].reshape(n, H, -1)[:, head] * visible[:, None]
                width_v = v.shape[1]
                rows[b, m, head * width_v : (head + 1) * width_v] = (
                    weights @ mixer(layer.value_mixer, v_switch, head) @ v
                )
    return layer.out_proj(rows * torch.sigmoid(layer.out_gate(query)))


def make(**options) -> HyperGLUAttention:
    layer = HyperGLUAttention(E, H, N + 2, rank=R, **options)
    scatter_parameters(layer, std=0.7)
    return layer.double()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("options", [{}, {"conv_size": 1}, {"conv_size": 7, "qk_dim": 5}], ids=str)
@pytest.mark.parametrize("backend", ["folded", "reference"])
def test_layer_matches_the_formula_with_explicit_mixers(backend, options, masked) -> None:
    layer = make(backend=backend, **options)
    query, key, value = (torch.randn(2, n, E, dtype=torch.float64) for n in (M, N, N))
    mask = torch.tensor([[False] * 6, [True, False, False, True, False, False]]) if masked else None
    assert_near(layer(query, key, value, key_padding_mask=mask)[0], literal(layer, query, key, value, mask))


def test_self_attention_and_every_gradient_match_the_formula() -> None:
    layer = make()
    x = torch.randn(2, N, E, dtype=torch.float64)
    parameters = list(layer.parameters())
    got = torch.autograd.grad(layer(x, x, x)[0].square().sum(), parameters)
    expected = torch.autograd.grad(literal(layer, x, x, x, None).square().sum(), parameters)
    for (name, _), one, other in zip(layer.named_parameters(), got, expected, strict=True):
        assert_near(one, other, 1e-11, name=name)
        assert (one != 0).any(), name


def test_convolution_is_initially_the_identity() -> None:
    layer = HyperGLUAttention(E, H, N)
    x = torch.randn(2, N, E)
    assert torch.equal(layer._convolve(x, None), x)


def test_default_query_width_is_a_quarter_of_a_head() -> None:
    assert HyperGLUAttention(64, 4, N).qk_dim == 4
    assert HyperGLUAttention(8, 4, N).qk_dim == 1
    assert HyperGLUAttention(8, 4, N, qk_dim=3).qk_dim == 3


def test_causal_and_empty_convolutions_raise() -> None:
    with pytest.raises(ValueError, match=message("causal must be False for hyperglu", "use a TOA variant")):
        HyperGLUAttention(E, H, N, causal=True)
    with pytest.raises(ValueError, match=message("conv_size must be at least 1, got 0")):
        HyperGLUAttention(E, H, N, conv_size=0)
    with pytest.raises(ValueError, match=message("rank must be at least 1, got 0")):
        HyperGLUAttention(E, H, N, rank=0)


def test_mask_is_checked_before_the_convolution_uses_it() -> None:
    layer = HyperGLUAttention(E, H, N)
    x = torch.randn(2, N, E)
    with pytest.raises(ValueError, match=message("key_padding_mask must be bool", "got torch.float32", ".bool()")):
        layer(x, x, x, key_padding_mask=torch.zeros(2, N))
