from typing import Any

import pytest
import torch
from torch import nn

from toa.nn import Attention, DenseOperator, EncoderBlock, build_attention
from toa.training.diagnostics import branch_sizes, contributions, operator_norms


def make_block(name: str = "toa-relu") -> Any:
    torch.manual_seed(0)
    return EncoderBlock(build_attention(name, 8, 2, 5), 16).eval()


def test_norm_of_an_offset_is_relative_to_the_identity():
    operator = DenseOperator(2, 4, init_std=0.0)
    with torch.no_grad():
        operator.offset.fill_(0.5)
    # per head: sqrt(16 * 0.25) / sqrt(4)
    assert operator_norms(nn.Sequential(operator))["0"] == 1.0


def test_operators_are_the_identity_in_one_measurement_and_restored_after():
    block = make_block()
    with torch.no_grad():
        block.attention.s2.offset.normal_()
    x = torch.randn(3, 5, 8)
    before = block(x)
    seen = []

    def validate() -> float:
        seen.append((max(operator_norms(block).values()), torch.equal(block(x), before)))
        return 1.0

    contributions(block, validate)
    # in full, with M = 0, and with the attention averaged
    assert [norm == 0.0 for norm, _ in seen] == [False, True, False]
    assert [same for _, same in seen] == [True, False, False]
    assert torch.equal(block(x), before)


def test_operators_are_restored_after_an_error():
    block = make_block()
    x = torch.randn(3, 5, 8)
    before = block(x)
    errors = iter((1.0,))
    with pytest.raises(StopIteration):
        contributions(block, lambda: next(errors))
    assert torch.equal(block(x), before)


def test_mean_attention_gives_every_token_the_same():
    block = make_block("softmax")
    x = torch.randn(3, 5, 8)
    outputs = []

    def validate() -> float:
        outputs.append(block.attention.attend(x, x, x).output)
        return 1.0

    contributions(block, validate)
    full, averaged = outputs
    assert torch.allclose(averaged, full.mean((0, 1)).expand_as(averaged))
    assert not torch.allclose(full, averaged)
    assert block.attention.attend.__func__ is Attention.attend


def test_branch_size_is_the_output_relative_to_the_input():
    block = make_block()
    with torch.no_grad():
        block.attention.out_proj.weight.zero_()
        block.attention.out_proj.bias.fill_(3.0)
    x = torch.ones(3, 5, 8)
    # the block normalises its input, which is constant: measure the layer alone
    sizes = branch_sizes(block, lambda: block.attention.attend(x, x, x))
    assert sizes == {"attention": 3.0}


def test_contributions_are_none_for_missing_parts():
    x = torch.randn(3, 5, 8)
    assert contributions(nn.Linear(2, 2), lambda: 1.0) == {"operators": None, "attention": None}
    block = make_block("softmax")
    found = contributions(block, lambda: float(block(x).square().mean().detach()))
    assert found["operators"] is None
    assert found["attention"] != 0.0
    toa = make_block()
    with torch.no_grad():
        toa.attention.s2.offset.normal_()
    assert contributions(toa, lambda: float(toa(x).square().mean().detach()))["operators"] != 0.0
