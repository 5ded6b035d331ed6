import pytest
import torch

from tests.support import assert_near
from toa.nn import ATTENTIONS, SoftmaxAttention, TemporalOperatorAttention, build_attention


def test_softmax_adds_the_scores_of_the_layer_before():
    first, second = (SoftmaxAttention(8, 2, 6).double() for _ in range(2))
    x, y = torch.randn(2, 3, 6, 8, dtype=torch.float64)
    before = first.attend(x, x, x)
    got = second.attend(y, y, y, previous=before.factors)

    def scores(layer: SoftmaxAttention, z: torch.Tensor) -> torch.Tensor:
        q, k = (p(z).unflatten(-1, (2, 4)).transpose(1, 2) for p in (layer.q_proj, layer.k_proj))
        return q @ k.mT / 2.0

    weights = (scores(second, y) + scores(first, x)).softmax(-1)
    values = second.v_proj(y).unflatten(-1, (2, 4)).transpose(1, 2)
    expected = second.out_proj((weights @ values).transpose(1, 2).flatten(2))
    assert_near(got.output, expected)


def test_relu_adds_scores_before_its_operator():
    first, second = (
        TemporalOperatorAttention(4, 1, 5, "relu", operator_std=0.3, scale=1.0).double().eval() for _ in "ab"
    )
    x = torch.randn(2, 5, 4, dtype=torch.float64)
    got = second.attend(x, x, x, previous=first.attend(x, x, x).factors)
    a = sum(layer.q_proj(x) @ layer.k_proj(x).mT for layer in (first, second))
    kernel = (a @ second.s1.dense()).relu() @ second.s2.dense()
    assert_near(got.output, second.out_proj(kernel @ second.v_proj(x)))


@pytest.mark.parametrize("name", ATTENTIONS)
def test_every_attention_can_be_stacked_with_residual_scores(name):
    layers = [build_attention(name, 8, 2, 6) for _ in range(3)]
    x = torch.randn(2, 6, 8)
    factors = None
    for layer in layers:
        attended = layer.attend(x, x, x, previous=factors)
        x, factors = attended.output, attended.factors
    x.square().mean().backward()
    # the first layer's scores reach the last one: so its queries get a gradient from there too
    assert all(p.grad is not None and p.grad.isfinite().all() for layer in layers for p in layer.parameters())
    assert factors is not None
    assert factors.q.shape[-1] == 3 * layers[0].qk_dim
