import pytest
import torch

from tests.support import assert_near
from toa.nn import TemporalOperatorAttention


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("variant", ["relu", "gated"])
def test_bounded_divides_by_the_root_mean_square_over_visible_keys(variant, padded, causal):
    layer = TemporalOperatorAttention(4, 1, 6, variant, score_norm="bounded", operator_std=0.3, causal=causal)
    layer.double().eval()
    x = 3.0 * torch.randn(2, 6, 4, dtype=torch.float64)
    mask = torch.arange(6) >= torch.tensor([[6], [4]]) if padded else None
    visible = torch.ones(2, 6, 6, dtype=torch.float64)
    if causal:
        visible = visible.tril()
    if mask is not None:
        visible = visible * ~mask[:, None, :]
    s1, s2 = (operator.dense()[0].triu() if causal else operator.dense()[0] for operator in (layer.s1, layer.s2))
    s2 = layer.s2.dense()[0].tril() if causal else s2
    q, k = layer.q_proj(x)[..., :4], layer.k_proj(x)[..., :4] * visible[:, -1:].mT
    row = (q @ k.mT / 2.0) @ s1 * visible
    count = visible.sum(-1, keepdim=True)
    weights = (row / (1.0 + row.square().sum(-1, keepdim=True) / count).sqrt()).relu()
    if variant == "gated":
        gate_s1 = layer.gate_s1.dense()[0].triu() if causal else layer.gate_s1.dense()[0]
        gate_q, gate_k = layer.q_proj(x)[..., 4:], layer.k_proj(x)[..., 4:] * visible[:, -1:].mT
        weights = weights * torch.nn.functional.softplus(gate_q @ gate_k.mT / 2.0 @ gate_s1) * visible
    values = layer.v_proj(x) * visible[:, -1:].mT
    assert_near(layer(x, x, x, mask)[0], layer.out_proj(weights @ s2 @ values), 1e-10)
