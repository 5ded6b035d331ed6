from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from tests.support import assert_near, message
from toa.nn import (
    ATTENTIONS,
    ChannelBlock,
    DecoderBlock,
    EncoderBlock,
    EncoderStack,
    TokenBatchNorm,
    build_attention,
    mixing_operators,
)
from toa.nn.layers import NORMS


def block(name: str = "softmax", **options: Any) -> EncoderBlock:
    return EncoderBlock(build_attention(name, 8, 2, 6), 12, **options)


def tokens() -> torch.Tensor:
    return torch.randn(3, 6, 8, dtype=torch.float64)


@pytest.mark.parametrize("norm", NORMS)
def test_norm_first_normalises_before_each_sublayer(norm):
    layer = block(norm=norm).double()
    x = tokens()
    h = layer.attention_norm(x)
    y = x + layer.attention(h, h, h)[0]
    assert_near(layer(x), y + layer.ff(layer.ff_norm(y)))


@pytest.mark.parametrize("norm", NORMS)
def test_norm_last_normalises_after_each_addition(norm):
    layer = block(norm=norm, norm_first=False).double()
    x = tokens()
    y = layer.attention_norm(x + layer.attention(x, x, x)[0])
    assert_near(layer(x), layer.ff_norm(y + layer.ff(y)))


def test_state_names_do_not_depend_on_where_the_norm_is():
    names = set(block().state_dict())
    assert names == set(block(norm_first=False).state_dict())
    assert {"attention.q_proj.weight", "attention_norm.weight", "ff.0.weight", "ff.3.bias", "ff_norm.bias"} <= names
    assert names <= set(block(norm="batch").state_dict())
    assert isinstance(block(norm="batch").ff_norm, TokenBatchNorm)


def test_attention_dropout_is_separate_from_dropout():
    layer = block(dropout=0.1)
    assert layer.attention_dropout.p == 0.1
    layer = block(dropout=0.1, attention_dropout=0.3)
    assert layer.attention_dropout.p == 0.3
    assert [m.p for m in layer.ff if isinstance(m, nn.Dropout)] == [0.1, 0.1]


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("name", ATTENTIONS)
def test_stack_passes_scores_on_only_with_residual_scores(name, residual):
    blocks = [block(name).double().eval() for _ in range(3)]
    x = expected = tokens()
    factors = None
    for layer in blocks:
        expected, factors = layer.encode(expected, previous=factors if residual else None)
    assert_near(EncoderStack(blocks, residual_scores=residual)(x), expected)


def test_residual_scores_reach_every_later_block():
    blocks = [block().eval() for _ in range(3)]
    x = torch.randn(3, 6, 8)
    plain = EncoderStack(blocks)
    residual = EncoderStack(blocks, residual_scores=True)
    alone, summed = (mixing_operators(stack, partial(stack, x)) for stack in (plain, residual))
    assert torch.equal(alone["0.attention"], summed["0.attention"])
    assert not torch.allclose(alone["1.attention"], summed["1.attention"])
    assert [tuple(w.shape) for w in summed.values()] == [(3, 2, 6, 6)] * 3


def test_stack_has_the_state_dict_of_a_module_list():
    stack = EncoderStack(block() for _ in range(2))
    assert list(stack.state_dict()) == list(nn.ModuleList(stack).state_dict())


def test_padding_reaches_the_attention():
    stack = EncoderStack(block().double() for _ in range(2))
    x = tokens()
    mask = torch.arange(6).expand(3, 6) >= 4
    assert_near(stack(x, mask)[:, :4], stack(x[:, :4]))


def test_wrong_arguments_raise():
    with pytest.raises(ValueError, match=message("dropout must lie in [0, 1), got 1.0")):
        block(dropout=1.0)
    with pytest.raises(ValueError, match=message("attention_dropout must lie in [0, 1), got -0.1")):
        block(attention_dropout=-0.1)
    with pytest.raises(ValueError, match=message("unknown norm 'x'; known: layer, batch.")):
        block(norm="x")
    with pytest.raises(ValueError, match=message("ff_dim must be at least 1, got 0")):
        EncoderBlock(build_attention("softmax", 8, 2, 6), 0)


def decoder(name: str = "softmax", **options: Any) -> DecoderBlock:
    own = build_attention(name, 8, 2, 6, causal=name != "hyperglu")
    return DecoderBlock(own, build_attention(name, 8, 2, 9), 12, **options).double()


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("name", ATTENTIONS)
def test_decoder_block_applies_self_attention_then_cross_attention(name, norm_first):
    layer = decoder(name, norm_first=norm_first).eval()
    x = tokens()
    encoded = torch.randn(3, 9, 8, dtype=torch.float64)
    if norm_first:
        h = layer.own_norm(x)
        y = x + layer.own(h, h, h)[0]
        y = y + layer.cross(layer.cross_norm(y), encoded, encoded)[0]
        y = y + layer.ff(layer.ff_norm(y))
    else:
        y = layer.own_norm(x + layer.own(x, x, x)[0])
        y = layer.cross_norm(y + layer.cross(y, encoded, encoded)[0])
        y = layer.ff_norm(y + layer.ff(y))
    assert_near(layer(x, encoded), y)


def test_mixing_operators_of_a_decoder_block_are_those_of_both_attentions():
    layer = decoder("toa-gated").eval()
    found = mixing_operators(layer, lambda: layer(tokens(), torch.randn(3, 9, 8, dtype=torch.float64)))
    assert {name: tuple(w.shape) for name, w in found.items()} == {"own": (3, 2, 6, 6), "cross": (3, 2, 6, 9)}
    assert (found["own"].triu(1) == 0).all()


def test_decoder_block_applies_dropout_to_attention_outputs():
    layer = decoder(dropout=0.5)
    assert [m.p for m in layer.modules() if isinstance(m, nn.Dropout)] == [0.5] * 3
    x = tokens()
    encoded = torch.randn(3, 9, 8, dtype=torch.float64)
    assert not torch.equal(layer(x, encoded), layer(x, encoded))


def test_attentions_of_different_widths_raise():
    with pytest.raises(ValueError, match=message("cross must have embed_dim=8", "got 4")):
        DecoderBlock(build_attention("softmax", 8, 2, 6), build_attention("softmax", 4, 2, 6), 12)


def test_a_channel_block_passes_options_to_its_attention():
    layer = ChannelBlock(build_attention("softmax", 8, 2, 4), 12)
    x = torch.randn(3, 4, 5, 8)
    seen = torch.zeros(3, 4, 4)
    seen[:, :, 0] = 1.0
    assert not torch.equal(layer.encode(x)[0], layer.encode(x, pair_mask=seen)[0])
