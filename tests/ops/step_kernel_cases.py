"""Tests of the kernels that save launches in a training step; run on a GPU, or by test_compile.py."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.ops.triton_cases import DEVICE, _poisoned  # noqa: F401
from tests.support import assert_registered
from toa.nn import EncoderBlock, ReversibleInstanceNorm, TemporalOperatorAttention
from toa.ops import Dense, EntryDrop, operator_attention
from toa.ops import row_functions as rows_module
from toa.ops.mixing import drop_op
from toa.ops.row_functions import add_norm


@pytest.fixture(autouse=True)
def _kernels(monkeypatch) -> None:
    monkeypatch.setenv("TOA_BACKEND", "triton")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def dropped(*numbers: float | None) -> list[EntryDrop | None]:
    def drop(place: int, rate: float) -> EntryDrop:
        return EntryDrop(
            torch.tensor([place], dtype=torch.int32, device=DEVICE), torch.tensor([rate, rate / 2], device=DEVICE)
        )

    return [None if rate is None else drop(place, rate) for place, rate in enumerate(numbers)]


@pytest.mark.parametrize(
    ("activation", "rates", "queries"),
    [
        ("gated", (0.2, None, 0.8), 6),
        ("softmax", (0.3, 0.5), 9),
        pytest.param("gated", (0.2, 0.5, 0.8), 9, marks=pytest.mark.slow),
        pytest.param("relu", (0.2, 0.5), 6, marks=pytest.mark.slow),
        pytest.param("softmax", (None, 0.5), 9, marks=pytest.mark.slow),
    ],
)
def test_operators_dropped_in_the_kernel_are_those_dropped_beforehand(activation, rates, queries):
    q = normal(2, queries, 2, 4, seed=1)
    k = normal(2, 9, 2, 4, seed=2)
    v = normal(2, 9, 2, 5, seed=3)
    gates = (normal(2, queries, 2, 3, seed=4), normal(2, 9, 2, 3, seed=5)) if activation == "gated" else ()
    # operators for more tokens than the sequence has
    weights = [0.3 * normal(2, 11, 11, seed=6 + place) for place in range(len(rates))]
    tensors = [x.requires_grad_() for x in (q, k, v, *gates, *weights)]

    def attend(operators: list[Dense]) -> list[Tensor]:
        names = ("gate_q", "gate_k", "gate_s1")
        gate: dict[str, Any] = dict(zip(names, (*gates, *operators[2:]), strict=True)) if gates else {}
        out = operator_attention(q, k, v, *operators[:2], activation=activation, score_norm="rms", **gate)
        return [out, *torch.autograd.grad(out.square().sum(), tensors)]

    drops = dropped(*rates)
    found = attend([Dense(weight, drop=drop) for weight, drop in zip(weights, drops, strict=True)])
    before = [w if drop is None else drop_op(w, *drop) for w, drop in zip(weights, drops, strict=True)]
    for one, other in zip(found, attend([Dense(weight) for weight in before]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_a_layer_draws_the_seeds_of_its_operators_in_one_call(monkeypatch):
    draws: list[object] = []
    plain = torch.randint

    def watched(*args: Any, **options: Any) -> Tensor:
        draws.append(args)
        return plain(*args, **options)

    monkeypatch.setattr(torch, "randint", watched)
    layer = TemporalOperatorAttention(8, 2, 5).to(DEVICE)
    x = normal(2, 5, 8)
    layer(x, x, x)
    assert draws == [(2**31, (3,))]


@pytest.mark.parametrize("shape", [(0, 3, 8), (2, 5, 8), (3, 7, 24), (70, 128)])
def test_norm_of_a_sum_and_all_its_gradients(shape):
    x, y, above = (normal(*shape, seed=place) for place in range(3))
    weight, bias = normal(shape[-1], seed=3), normal(shape[-1], seed=4)
    leaves = [tensor.requires_grad_() for tensor in (x, y, weight, bias)]
    found = add_norm(*leaves)
    assert found.grad_fn is not None
    assert "toa_layer_norm" in found.grad_fn.name()
    # the sum is part of the kernel
    assert len([above for above, _ in found.grad_fn.next_functions if above is not None]) == 4
    exact = [tensor.detach().double().requires_grad_() for tensor in leaves]
    wanted = torch.nn.functional.layer_norm(exact[0] + exact[1], shape[-1:], exact[2], exact[3])
    torch.testing.assert_close(found, wanted.float(), rtol=1e-4, atol=1e-5)
    grads = torch.autograd.grad(found, leaves, above)
    for one, other in zip(grads, torch.autograd.grad(wanted, exact, above.double()), strict=True):
        torch.testing.assert_close(one, other.float(), rtol=1e-4, atol=1e-4)


def test_norm_of_a_sum_with_dropout_has_one_mask():
    x, y, above = (normal(40, 64, seed=place) for place in range(3))
    weight = normal(64, seed=3).abs() + 0.5
    bias = normal(64, seed=4)
    leaves = [tensor.requires_grad_() for tensor in (x, y, weight, bias)]

    def out(p: float) -> Tensor:
        torch.manual_seed(5)
        return add_norm(*leaves, p=p)

    grads = torch.autograd.grad(out(0.25), leaves, above)
    # the gradients of the summands differ by the mask only
    mask = grads[1] / grads[0]
    kept = mask.round(decimals=3).unique(return_counts=True)
    assert kept[0].tolist() == pytest.approx([0.0, 1.333])
    assert abs(int(kept[1][1]) / mask.numel() - 0.75) < 0.03
    wanted = torch.nn.functional.layer_norm(x + y * mask, (64,), weight, bias)
    torch.testing.assert_close(out(0.25), wanted, rtol=1e-4, atol=1e-4)
    assert not torch.equal(add_norm(*leaves, p=0.25), out(0.25))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("p", [0.0, 0.5])
def test_norm_of_a_sum_is_registered_correctly(p):
    seed = torch.tensor([3], dtype=torch.int32, device=DEVICE) if p else None
    tensors = [normal(3, 8, seed=1), normal(3, 8, seed=2), normal(8, seed=3), normal(8, seed=4)]
    assert_registered(rows_module._norm, (*(x.requires_grad_() for x in tensors), seed, p, 1e-5))


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_block_gives_the_same_with_and_without_kernels(monkeypatch, norm_first):
    block = EncoderBlock(TemporalOperatorAttention(8, 2, 5, sor=False), 16, norm_first=norm_first).to(DEVICE)
    x = normal(2, 5, 8).requires_grad_()
    outputs = []
    for backend in ("triton", "folded"):
        monkeypatch.setenv("TOA_BACKEND", backend)
        out = block(x)
        outputs.append([out, *torch.autograd.grad(out.square().sum(), [x, *block.parameters()])])
    for one, other in zip(*outputs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


def test_a_block_in_training_draws_new_masks_in_each_pass():
    block = EncoderBlock(TemporalOperatorAttention(8, 2, 5, sor=False), 16, dropout=0.5, norm_first=False).to(DEVICE)
    x = normal(2, 5, 8)
    torch.manual_seed(1)
    first, second = block(x), block(x)
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    assert torch.equal(block(x), first)


@pytest.mark.parametrize("channels", [None, 3])
def test_a_series_is_normalised_alike_with_and_without_kernels(monkeypatch, channels):
    layer = ReversibleInstanceNorm(channels).to(DEVICE)
    series = normal(2, 5, 3).mul(3).add(100)
    series[0, :, 1] = 7.0
    found, statistics = layer.normalise(series)
    torch.testing.assert_close(layer.denormalise(found, statistics), series)
    monkeypatch.setenv("TOA_BACKEND", "folded")
    wanted, expected = layer.normalise(series)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(statistics, expected)
