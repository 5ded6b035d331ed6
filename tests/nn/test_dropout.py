import pytest
import torch
from torch import nn

from toa import ops
from toa.nn import ATTENTIONS, Dropout, EncoderBlock, build_attention


def test_entries_are_dropped_at_the_rate_and_the_mean_is_kept():
    x = torch.ones(400, 500, requires_grad=True)
    layer = Dropout(0.3)
    out = layer(x)
    assert out.unique().tolist() == pytest.approx([0.0, 1 / 0.7], rel=1e-4)
    assert (out == 0).float().mean().item() == pytest.approx(0.3, abs=0.005)
    assert out.mean().item() == pytest.approx(1.0, abs=0.01)
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(grad, out)
    assert not torch.equal(layer(x), out)
    assert layer.eval()(x) is x


def test_dropout_uses_the_default_generator():
    x = torch.ones(64, 64)
    torch.manual_seed(5)
    first = Dropout(0.5)(x)
    torch.manual_seed(5)
    assert torch.equal(Dropout(0.5)(x), first)


@pytest.mark.parametrize("name", sorted(ATTENTIONS))
def test_blocks_use_only_this_dropout(name):
    block = EncoderBlock(build_attention(name, 8, 2, 5), 16, dropout=0.2)
    found = [module for module in block.modules() if isinstance(module, nn.Dropout)]
    assert found
    assert all(isinstance(module, Dropout) for module in found)


@pytest.mark.parametrize("causal", [False, True])
def test_kept_softmax_weights_are_only_scaled(causal):
    q, k = torch.randn(2, 2, 7, 3, 4).unbind()
    eye = torch.eye(7)[None, :, None].expand(2, -1, 3, -1)
    padding = torch.zeros(2, 7, dtype=torch.bool)
    padding[1, 0] = True
    options = {"causal": causal, "key_padding_mask": padding, "backend": "folded"}
    weights = ops.operator_attention(q, k, eye, **options)
    torch.manual_seed(0)
    dropped = ops.operator_attention(q, k, eye, dropout_p=0.5, **options)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], 2.0 * weights[kept])
    # under causality the first query of the second sequence sees only padding: its output is zero, not NaN
    assert dropped.isfinite().all()
    assert 0.3 < kept.sum().item() / (weights != 0).sum().item() < 0.7
