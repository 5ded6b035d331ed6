from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import assert_near
from toa.nn import TemporalOperatorAttention


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("variant", ["relu", "gated"])
def test_rms_divides_by_the_count_and_the_root_mean_square_over_visible_keys(variant, padded, causal):
    layer = TemporalOperatorAttention(4, 1, 6, variant, score_norm="rms", operator_std=0.3, causal=causal)
    layer.double().eval()
    x = 3.0 * torch.randn(2, 6, 4, dtype=torch.float64)
    mask = torch.arange(6) >= torch.tensor([[6], [4]]) if padded else None
    visible = torch.ones(2, 6, 6, dtype=torch.float64)
    if causal:
        visible = visible.tril()
    if mask is not None:
        visible = visible * ~mask[:, None, :]
    valid = visible[:, -1:].mT  # (B, N, 1): the last query sees every valid key

    def scores(group: slice, s1: Any) -> Tensor:
        q = layer.q_proj(x)[..., group]
        k = layer.k_proj(x)[..., group] * valid
        return q @ k.mT / 2.0 @ (s1.dense()[0].triu() if causal else s1.dense()[0]) * visible

    row = scores(slice(4), layer.s1)
    count = visible.sum(-1, keepdim=True)
    weights = (row / count / (1.0 + row.square().sum(-1, keepdim=True) / count).sqrt()).relu()
    if variant == "gated":
        weights = weights * torch.nn.functional.softplus(scores(slice(4, 8), layer.gate_s1))
    s2 = layer.s2.dense()[0].tril() if causal else layer.s2.dense()[0]
    assert_near(layer(x, x, x, mask)[0], layer.out_proj(weights @ s2 @ (layer.v_proj(x) * valid)), 1e-10)
