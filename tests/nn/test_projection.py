import pytest
import torch
from torch import nn

from tests.support import BLOCKED, assert_near, scatter_parameters
from toa.nn import ATTENTIONS, AttentionSpec, TemporalOperatorAttention, build_attention


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", ATTENTIONS)
def test_one_product_projects_like_three(name, bias):
    layer = scatter_parameters(AttentionSpec(name=name, bias=bias).build(8, 2, 5)).double().eval()
    x = torch.randn(3, 5, 8, dtype=torch.float64, requires_grad=True)
    results = []
    for inputs in ((x, x, x), (x, x.view_as(x), x.view_as(x))):
        out, _ = layer(*inputs)
        results.append([out, *torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])])
    for joined, separate in zip(*results, strict=True):
        assert_near(joined, separate)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("variant", BLOCKED)
def test_features_first_layout_changes_no_result_on_a_cpu(monkeypatch, variant, bias):
    layer = TemporalOperatorAttention(8, 2, 5, variant, bias=bias, qk_dim=3).double().eval()
    scatter_parameters(layer)
    x = torch.randn(3, 5, 8, dtype=torch.float64, requires_grad=True)
    other = torch.randn(3, 4, 8, dtype=torch.float64, requires_grad=True)
    factors, values = layer._project(x, x, x, None)
    parts = [part for part in (*factors, values) if part is not None]
    assert all(part.permute(2, 3, 0, 1).is_contiguous() for part in parts)
    results = []
    for _ in range(2):
        out = torch.cat((layer(x, x, x)[0], layer(x, other, other)[0]))
        results.append([out, *torch.autograd.grad(out.square().sum(), [x, other, *layer.parameters()])])
        # as if the projections were the user's own
        monkeypatch.setattr("toa.nn.operator_attention.PLAIN", ())
    factors, values = layer._project(x, x.clone(), x.clone(), None)
    assert all(part.stride(-1) == 1 for part in (*factors, values) if part is not None)
    for first, last in zip(*results, strict=True):
        assert_near(first, last)


@pytest.mark.parametrize("name", ["softmax", "toa-gated"])
def test_replaced_projection_is_called(name):
    class Doubled(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2.0 * super().forward(x)

    layer = build_attention(name, 8, 2, 5).eval()
    x = torch.randn(3, 5, 8)
    before, _ = layer(x, x, x)
    doubled = Doubled(8, 8)
    doubled.load_state_dict(layer.v_proj.state_dict())
    layer.v_proj = doubled
    bias = layer.out_proj.bias
    after, _ = layer(x, x, x)
    torch.testing.assert_close(after - bias, 2.0 * (before - bias))


def test_projections_can_have_biases_independently():
    layer = build_attention("softmax", 8, 2, 5).double().eval()
    layer.k_proj = nn.Linear(8, 8, bias=False).double()
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    assert_near(layer(x, x, x)[0], layer(x, x.clone(), x.clone())[0])
    layer.q_proj = nn.Linear(8, 8, bias=False).double()
    assert_near(layer(x, x, x)[0], layer(x, x.clone(), x.clone())[0])
