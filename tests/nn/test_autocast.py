import pytest
import torch

from tests.support import scatter_parameters
from toa.nn import ATTENTIONS, AttentionSpec, build_attention

NAMES = tuple(ATTENTIONS)
SPECS = [
    *(AttentionSpec(name=name) for name in NAMES),
    AttentionSpec(name="toa-gated", structure="dplr", score_norm="l2", gate_norm="l2"),
    AttentionSpec(name="toa-gated", structure="toeplitz", score_norm="mean"),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: "-".join(map(str, (s.name, *s.options().values()))))
@pytest.mark.parametrize("backend", ["folded", "reference"])
def test_autocast_training_step_returns_bfloat16_and_float32_gradients(spec, backend) -> None:
    layer = spec.build(8, 2, 6)
    layer.backend = backend
    x = torch.randn(2, 6, 8)
    mask = torch.arange(6).expand(2, 6) >= 4
    with torch.autocast("cpu", torch.bfloat16):
        out, weights = layer(x, x, x, key_padding_mask=mask, need_weights=True)
    assert out.dtype == torch.bfloat16
    assert weights is not None
    assert weights.dtype == torch.bfloat16
    out.float().square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.dtype == torch.float32, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("name", NAMES)
def test_autocast_stays_close_to_float32(name) -> None:
    layer = scatter_parameters(build_attention(name, 16, 2, 12), std=0.1).eval()
    x = torch.randn(2, 12, 16)
    exact, _ = layer(x, x, x)
    with torch.autocast("cpu", torch.bfloat16):
        got, _ = layer(x, x, x)
    assert (got.float() - exact).norm() < 0.03 * exact.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_layer_returns_its_own_dtype(name, dtype) -> None:
    layer = build_attention(name, 8, 2, 6).to(dtype)
    x = torch.randn(2, 6, 8, dtype=dtype)
    out, _ = layer(x, x, x)
    assert out.dtype == dtype
    out.sum().backward()
    assert all(p.grad is not None and p.grad.dtype == dtype for p in layer.parameters())
