"""Layers with rotary positions."""

import pytest
import torch

from tests.support import assert_near, message, scatter_parameters
from toa import ops
from toa.nn import ATTENTIONS, AttentionSpec, SoftmaxAttention, TemporalOperatorAttention, build_attention

WITH_ROTARY = [name for name in ATTENTIONS if "rotary_base" in ATTENTIONS[name].options]


def test_softmax_and_every_toa_layer_has_rotary_positions() -> None:
    assert {"softmax", *(f"toa-{name}" for name in ops.ACTIVATIONS)} <= set(WITH_ROTARY)
    assert "hyperglu" not in WITH_ROTARY


@pytest.mark.parametrize("name", WITH_ROTARY)
def test_layer_counts_positions_from_the_first_token(name) -> None:
    torch.manual_seed(0)
    layer = AttentionSpec(name=name, rotary_base=30.0).build(8, 2, 6).double().eval()
    scatter_parameters(layer, std=0.3)
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    expected = layer(x, x, x)[0]
    later = torch.arange(11.0, 16.0)
    assert_near(layer.attend(x, x, x, positions=(later, later)).output, expected)
    assert not torch.allclose(layer.attend(x, x, x, positions=(2 * later, 2 * later)).output, expected)


def test_softmax_without_operators_is_softmax_of_turned_scores() -> None:
    torch.manual_seed(0)
    layer = SoftmaxAttention(4, 1, 6, rotary_base=30.0).double()
    x = torch.randn(1, 6, 4, dtype=torch.float64)
    q, k = layer.q_proj(x)[0], layer.k_proj(x)[0]
    scores = torch.empty(6, 6, dtype=torch.float64)
    for m in range(6):
        for n in range(6):
            # a pair of features as a complex number turns by the distance
            turns = torch.tensor([1.0, 30.0**-0.5], dtype=torch.float64) * (n - m)
            left = torch.complex(q[m, :2], q[m, 2:])
            right = torch.complex(k[n, :2], k[n, 2:]) * torch.exp(1j * turns)
            scores[m, n] = (left.conj() * right).real.sum() / 2.0
    expected = layer.out_proj(scores.softmax(-1) @ layer.v_proj(x)[0])
    assert_near(layer(x, x, x)[0][0], expected)


@pytest.mark.parametrize("variant", ops.ACTIVATIONS)
def test_layer_decodes_with_a_cache_as_in_one_call(variant) -> None:
    torch.manual_seed(0)
    layer = TemporalOperatorAttention(8, 2, 6, variant, causal=True, rotary_base=30.0, operator_std=0.3).double().eval()
    x = torch.randn(1, 6, 8, dtype=torch.float64)
    cache = ops.AttentionCache()
    steps = [layer(x[:, n : n + 1], x[:, n : n + 1], x[:, n : n + 1], cache=cache)[0] for n in range(6)]
    assert_near(torch.cat(steps, 1), layer(x, x, x)[0])


def test_residual_scores_are_turned_by_each_layer() -> None:
    torch.manual_seed(0)
    first, second = (TemporalOperatorAttention(8, 2, 5, "relu", rotary_base=30.0, sor=False).double() for _ in "ab")
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    before = first.attend(x, x, x)
    got = second.attend(x, x, x, previous=before.factors)
    later = torch.arange(4.0, 9.0)
    moved = first.attend(x, x, x, positions=(later, later))
    assert_near(second.attend(x, x, x, previous=moved.factors, positions=(later, later)).output, got.output)


def test_layers_without_rotary_positions_raise() -> None:
    with pytest.raises(ValueError, match=message("rotary_base is not an option of attention 'hyperglu'")):
        AttentionSpec(name="hyperglu", rotary_base=100.0)
    with pytest.raises(ValueError, match=message("rotary_base must be None for HyperGLUAttention")):
        ATTENTIONS["hyperglu"].layer(8, 2, 5, rotary_base=100.0)
    with pytest.raises(ValueError, match=message("qk_dim must be even with rotary_base, got 3")):
        build_attention(AttentionSpec(name="softmax", rotary_base=100.0, qk_dim=3), 8, 2, 5)
    layer = SoftmaxAttention(8, 2, 5)
    x = torch.zeros(1, 5, 8)
    with pytest.raises(ValueError, match=message("positions require a layer with rotary_base")):
        layer.attend(x, x, x, positions=(torch.arange(5), torch.arange(5)))
