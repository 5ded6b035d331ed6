import pytest
import torch
from torch import nn

import toa.nn.attention as attention
from toa.nn import Linear, build_attention


@pytest.mark.parametrize("bias", [True, False])
def test_linear_matches_torch(bias):
    torch.manual_seed(0)
    plain = nn.Linear(6, 4, bias=bias)
    torch.manual_seed(0)
    ours = Linear(6, 4, bias=bias)
    assert repr(ours) == repr(plain)
    assert list(ours.state_dict()) == list(plain.state_dict())
    x = torch.randn(3, 5, 6)
    results = []
    for layer in (ours, plain):
        out = layer(x)
        results.append([out, *torch.autograd.grad(out.square().sum(), list(layer.parameters()))])
    for got, expected in zip(*results, strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("kind", [Linear, nn.Linear])
def test_plain_projections_of_either_kind_are_one_product(monkeypatch, kind):
    layer = build_attention("softmax", 8, 2, 5)
    for name in ("q_proj", "k_proj", "v_proj"):
        setattr(layer, name, kind(8, 8))
    calls = []

    def counted(x, weight, bias):
        calls.append(tuple(weight.shape))
        return nn.functional.linear(x, weight, bias)

    monkeypatch.setattr(attention, "linear", counted)
    x = torch.randn(3, 5, 8)
    layer(x, x, x)
    assert calls == [(24, 8)]
