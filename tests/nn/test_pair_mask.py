from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import assert_near, message, scatter_parameters
from toa.nn import ATTENTIONS, Attention, EncoderBlock, EncoderStack, build_attention

# embedding width
E = 8
# number of heads
H = 2
# number of tokens, or of keys
N = 5
every_attention = pytest.mark.parametrize("name", ATTENTIONS)


def make(name: str, backend: str = "auto") -> Attention:
    layer = build_attention(name, E, H, N)
    scatter_parameters(layer, std=0.5)
    layer.backend = backend
    return layer.double().eval()


def random_mask(batch: int = 2) -> Tensor:
    return (torch.rand(batch, N, N, dtype=torch.float64) > 0.4).double()


@every_attention
def test_every_layer_applies_the_mask_and_returns_its_gradient(name) -> None:
    x = torch.randn(2, N, E, dtype=torch.float64)
    mask = random_mask().requires_grad_()
    layer = make(name)
    results = []
    for backend in ("folded", "reference"):
        layer.backend = backend
        out = layer.attend(x, x, x, pair_mask=mask).output
        results.append((out, *torch.autograd.grad(out.square().sum(), [mask])))
    assert_near(results[0][0], results[1][0])
    assert_near(results[0][1], results[1][1])
    assert (results[0][1] != 0).any()
    assert_near(layer.attend(x, x, x, pair_mask=torch.ones_like(mask)).output, layer(x, x, x)[0])
    assert not torch.allclose(results[0][0], layer(x, x, x)[0])


@pytest.mark.parametrize("name", ["toa-relu", "toa-gated", "hyperglu"])
def test_query_without_unmasked_pairs_gets_zero(name) -> None:
    layer: Any = make(name)
    x = torch.randn(2, N, E, dtype=torch.float64)
    mask = random_mask()
    mask[:, 1] = 0.0
    attended = layer.attend(x, x, x, need_weights=True, pair_mask=mask)
    assert attended.mixing is not None
    assert (attended.mixing[:, :, 1] == 0).all()
    assert_near(attended.output[:, 1], layer.out_proj.bias.expand(2, -1))


@every_attention
def test_the_mixing_operator_is_the_masked_one(name) -> None:
    layer = make(name)
    x = torch.randn(2, N, E, dtype=torch.float64)
    mask = random_mask()
    masked = layer.attend(x, x, x, need_weights=True, pair_mask=mask).mixing
    unmasked = layer.attend(x, x, x, need_weights=True).mixing
    assert masked is not None
    assert unmasked is not None
    if name == "softmax":
        # without S2 the rows still sum to one
        assert_near(masked.sum(-1), torch.ones(2, H, N, dtype=torch.float64))
    assert not torch.allclose(masked, unmasked)


@every_attention
def test_stack_applies_the_mask_in_every_block(name) -> None:
    blocks = [EncoderBlock(make(name), 6).double().eval() for _ in range(2)]
    x = torch.randn(2, N, E, dtype=torch.float64)
    mask = random_mask(1)
    expected = x
    for block in blocks:
        expected, _ = block.encode(expected, pair_mask=mask)
    assert_near(EncoderStack(blocks)(x, pair_mask=mask), expected)
    assert not torch.allclose(expected, EncoderStack(blocks)(x))


@every_attention
def test_mask_of_wrong_shape_raises(name) -> None:
    x = torch.randn(2, N, E, dtype=torch.float64)
    with pytest.raises(ValueError, match=message("pair_mask must have shape (B or 1, M, N)=(2, 5, 5), got (2, 5, 4)")):
        make(name).attend(x, x, x, pair_mask=torch.ones(2, N, N - 1, dtype=torch.float64))
