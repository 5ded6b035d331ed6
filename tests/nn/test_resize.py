import pytest
import torch
from torch import Tensor

from tests.support import assert_near
from toa.nn import (
    ATTENTIONS,
    OPERATORS,
    BandedOperator,
    DenseOperator,
    DiagonalLowRankOperator,
    SequenceOperator,
    ToeplitzOperator,
    build_attention,
    make_operator,
)

STRUCTURES = tuple(OPERATORS)


@torch.no_grad()
def smooth(structure: str, n: int) -> SequenceOperator:
    """An operator whose offset samples a smooth kernel, its row sums of order one."""
    x = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    operator = make_operator(structure, 1, n, rank=2 if structure == "dplr" else None).double()
    if isinstance(operator, DenseOperator):
        operator.offset[0] = torch.exp(-4 * (x[:, None] - 0.7 * x[None, :]) ** 2) / n
    elif isinstance(operator, DiagonalLowRankOperator):
        operator.diagonal[0] = torch.sin(3 * x)
        operator.left[0] = torch.stack((torch.cos(2 * x), 1 + x), -1)
        operator.right[0] = torch.stack((1 + x.square(), torch.exp(-x)), -1) / n
    elif isinstance(operator, ToeplitzOperator):
        lag = torch.arange(1 - n, n, dtype=torch.float64) / n
        operator.taps[0] = torch.exp(-3 * (lag - 0.2) ** 2) / n
    elif isinstance(operator, BandedOperator):
        operator.diagonals[0] = torch.sin(3 * x) / (1 + torch.arange(operator.diagonals.shape[1])[:, None])
    return operator


def row_sums(operator: SequenceOperator) -> Tensor:
    return (operator.dense().sum(-1) - 1.0)[0].detach()


@pytest.mark.parametrize("structure", STRUCTURES)
def test_resizing_to_the_same_length_changes_nothing(structure) -> None:
    operator = make_operator(structure, 2, 6)
    before = {name: (parameter, parameter.clone()) for name, parameter in operator.named_parameters()}
    assert operator.resize(6) is operator
    for name, parameter in operator.named_parameters():
        assert parameter is before[name][0]
        assert torch.equal(parameter, before[name][1])


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("length", [24, 37, 96, 133])
def test_row_sums_of_a_smooth_kernel_survive(structure, length) -> None:
    operator = smooth(structure, 48)
    before = row_sums(operator)
    operator.resize(length)
    after = row_sums(operator)
    assert operator.num_tokens == length == len(after)
    # compare at the same positions; the ends of a kernel are extrapolated as constants
    there = (torch.arange(length) + 0.5) / length * 48 - 0.5
    low = there.floor().clamp(0, 46).long()
    expected = before[low] + (there - low) * (before[low + 1] - before[low])
    # a band of 4 ends outside of the matrix in the first and last four rows
    edge = max(length // 10, 4)
    middle = slice(edge, length - edge)
    assert_near(after[middle], expected[middle], 0.02)
    assert before.abs().max() > 0.3


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("length", [80, 55])
def test_resizing_up_and_back_nearly_restores_the_operator(structure, length) -> None:
    operator = smooth(structure, 40)
    before = operator.dense().detach().clone()
    after = operator.resize(length).resize(40).dense()
    scale = (before - torch.eye(40)).abs().max()
    assert (after - before)[:, 3:-3, 3:-3].abs().max() < 0.05 * scale


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("length", [1, 3, 6, 11])
def test_identity_stays_exact(structure, length) -> None:
    operator = make_operator(structure, 2, 5, init_std=0.0).resize(length)
    assert torch.equal(operator.dense(), torch.eye(length).expand(2, length, length))


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("start", [1, 2, 5])
def test_resized_operator_mixes_longer_sequences_and_learns(structure, start) -> None:
    operator = make_operator(structure, 2, start, init_std=0.1).resize(9)
    x = torch.randn(1, 9, 2, 3)
    operator(x).square().sum().backward()
    assert all(p.grad is not None and p.is_contiguous() and p.isfinite().all() for p in operator.parameters())


@pytest.mark.parametrize("structure", STRUCTURES)
def test_frozen_parameters_stay_frozen_and_keep_their_dtype(structure) -> None:
    operator = make_operator(structure, 2, 5).double()
    names = [name for name, _ in operator.named_parameters()]
    getattr(operator, names[0]).requires_grad_(False)
    operator.resize(8)
    flags = {name: p.requires_grad for name, p in operator.named_parameters()}
    assert flags == {name: name != names[0] for name in names}
    assert all(p.dtype == torch.float64 for p in operator.parameters())


@pytest.mark.parametrize("name", list(ATTENTIONS))
def test_resized_layer_accepts_longer_sequences(name) -> None:
    layer = build_attention(name, 8, 2, 5)
    x = torch.randn(2, 9, 8)
    with pytest.raises(ValueError, match=r"at most 5 tokens, got a sequence of 9.*resize\(9\)"):
        layer(x, x, x)
    assert layer.resize(9) is layer
    assert layer.num_tokens == 9
    out, weights = layer(x, x, x, need_weights=True)
    assert out.shape == x.shape
    assert weights is not None
    assert weights.shape == (2, 2, 9, 9)


@pytest.mark.parametrize("name", list(ATTENTIONS))
def test_resized_layer_with_zero_offsets_is_unchanged_on_short_sequences(name) -> None:
    layer = build_attention(name, 8, 2, 5).eval()
    for operator in (m for m in layer.modules() if isinstance(m, SequenceOperator)):
        for parameter in operator.parameters():
            torch.nn.init.zeros_(parameter)
    x = torch.randn(2, 5, 8)
    before = layer(x, x, x)[0]
    assert torch.equal(layer.resize(12)(x, x, x)[0], before)


def test_layer_cannot_shrink_below_one_token() -> None:
    with pytest.raises(ValueError, match="num_tokens must be at least 1, got 0"):
        build_attention("softmax", 8, 2, 5).resize(0)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_bfloat16_operators_can_be_resized(structure) -> None:
    operator = make_operator(structure, 2, 5).bfloat16().resize(8)
    assert operator.dense().dtype == torch.bfloat16
