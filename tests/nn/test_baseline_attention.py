from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from toa.nn import Attention, AttentionSpec, build_attention

NAMES = ("relu", "gated", "output-gated", "differential", "sigmoid", "cog")


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
    if name == "GatedAttention":
        return F.softplus(scores(layer, x, 1)) * a.relu()
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


def without_operators(name: str, **options: Any) -> tuple[Attention, Attention]:
    """TOA with M = 0 and without SOR, and the named attention with the same weights."""
    toa = build_attention(AttentionSpec(name=f"toa-{name}", sor=False, operator_std=0.0, **options), 8, 2, 6)
    plain = build_attention(AttentionSpec(name=name, **options), 8, 2, 6)
    shared = {key: value for key, value in toa.state_dict().items() if key in plain.state_dict()}
    plain.load_state_dict(shared)
    return toa.double(), plain.double()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gated", {"score_norm": "rms", "gate_norm": "rms"}),
        ("gated", {}),
        ("relu", {"score_norm": "rms"}),
        ("relu", {"score_norm": "mean"}),
    ],
)
def test_plain_attention_is_toa_without_operators_in_output_and_gradients(name, options, training):
    toa, plain = without_operators(name, **options)
    inputs = torch.randn(3, 6, 8, dtype=torch.float64)
    outputs = []
    gradients = []
    for layer in (toa.train(training), plain.train(training)):
        x = inputs.clone().requires_grad_()
        output = layer(x, x, x)[0]
        output.square().sum().backward()
        outputs.append(output)
        gradients.append({"x": x.grad, **{key: p.grad for key, p in layer.named_parameters()}})
    assert torch.allclose(outputs[0], outputs[1], rtol=1e-12, atol=1e-14)
    # beside the operators, both have the same parameters
    assert set(gradients[0]) - set(gradients[1]) == {key for key in gradients[0] if "s1." in key or "s2." in key}
    for key, expected in gradients[1].items():
        found = gradients[0][key]
        assert found is not None
        assert expected is not None
        assert torch.allclose(found, expected, rtol=1e-10, atol=1e-12), key


def test_relu_attention_divides_by_the_tokens_unless_another_normaliser_is_given():
    specs = [AttentionSpec(name="relu", score_norm=norm) for norm in (None, "mean", "rms")]
    layers = [spec.build(8, 2, 6).double().eval() for spec in specs]
    for layer in layers[1:]:
        layer.load_state_dict(layers[0].state_dict())
    x = torch.randn(2, 6, 8, dtype=torch.float64)
    default, mean, rms = (layer(x, x, x)[0] for layer in layers)
    assert torch.equal(default, mean)
    assert not torch.allclose(default, rms)
    # the defaults that records keep: a run from before the option has the same config
    assert AttentionSpec(name="relu").resolved().score_norm is None
