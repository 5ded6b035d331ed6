from typing import Any

import pytest
import torch
from torch import Tensor

from toa.nn import Attention, build_attention

NAMES = ("relu", "output-gated", "differential", "sigmoid", "cog")


def make(name: str) -> tuple[Any, Tensor]:
    torch.manual_seed(1)
    layer = build_attention(name, 8, 2, 6).double().eval()
    return layer, torch.randn(3, 6, 8, dtype=torch.float64)


def scores(layer: Attention, x: Tensor, group: int = 0) -> Tensor:
    """Q Kᵀ / sqrt(D) of a group of heads, (B, H, M, N), from the layer's weights."""
    width = layer.num_heads * layer.qk_dim
    q, k = (p(x)[..., group * width : (group + 1) * width] for p in (layer.q_proj, layer.k_proj))
    q, k = (y.unflatten(-1, (layer.num_heads, -1)).transpose(1, 2) for y in (q, k))
    return q @ k.mT / layer.qk_dim**0.5


def expected_weights(layer: Any, x: Tensor) -> Tensor:
    a = scores(layer, x)
    name = type(layer).__name__
    if name == "ReLUAttention":
        return a.relu() / a.shape[-1]
    if name == "SigmoidAttention":
        return 1 / (1 + a.shape[-1] * (-a).exp())
    if name == "CogAttention":
        return a.sign() * a.abs().exp() / a.abs().exp().sum(-1, keepdim=True)
    if name == "DifferentialAttention":
        first, second, third, fourth = layer.lambdas
        weight = (first @ second).exp() - (third @ fourth).exp() + 0.8
        return a.softmax(-1) - weight * scores(layer, x, 1).softmax(-1)
    return a.softmax(-1)


@pytest.mark.parametrize("name", NAMES)
def test_weights_match_the_formula(name):
    layer, x = make(name)
    _, found = layer(x, x, x, need_weights=True)
    assert torch.allclose(found, expected_weights(layer, x), atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_output_is_the_projection_of_the_weighted_values(name):
    layer, x = make(name)
    values = layer.v_proj(x).unflatten(-1, (2, -1)).transpose(1, 2)
    mixed = (expected_weights(layer, x) @ values).transpose(1, 2)
    if name == "differential":
        mixed = 0.2 * mixed / (mixed.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    mixed = mixed.flatten(2)
    if name == "output-gated":
        mixed = mixed * layer.out_gate(x).sigmoid()
    assert torch.allclose(layer(x, x, x)[0], layer.out_proj(mixed), atol=1e-10)


def test_only_differential_and_cog_have_negative_weights():
    for name in NAMES:
        layer, x = make(name)
        negative = bool((layer(x, x, x, need_weights=True)[1] < 0).any())
        assert negative == (name in ("differential", "cog")), name
