"""Tests of mixing by kernels; run on a GPU, or by test_compile.py under Triton's interpreter."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import assert_registered, poison_buffers
from toa import ops
from toa.nn import TemporalOperatorAttention
from toa.ops import mixing
from toa.ops.mixing import EntryDrop, drop_op

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch) -> None:
    poison_buffers(monkeypatch)
    monkeypatch.setenv("TOA_BACKEND", "triton")


def mix_tokens(x: Tensor, weight: Tensor, drop: EntryDrop | None = None, **options: bool) -> Tensor:
    return ops.Dense(weight, options.pop("residual", True), drop).mix(x, **options)


def drop_entries(matrix: Tensor, drop: EntryDrop) -> Tensor:
    return drop_op(matrix, *drop)


def make_drop(rate: float | list[float], seed: int = 5) -> EntryDrop:
    return EntryDrop(
        torch.tensor([seed], dtype=torch.int32, device=DEVICE), torch.tensor(rate, dtype=torch.float32, device=DEVICE)
    )


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))
    return made.to(DEVICE, dtype).requires_grad_()


# each size with drops, each surplus, each direction, and each with and without the residual; others are slow tests
DIFFERENT = [(1, 1, True, True, True), (17, 1, False, True, True), (17, 8, False, False, False)]
DIFFERENT += [(63, 1, True, False, False), (64, 0, False, True, False), (65, 1, True, True, True)]
COMBINATIONS = [
    pytest.param(*case, marks=() if case in DIFFERENT else pytest.mark.slow)
    for case in itertools.product((1, 17, 63, 64, 65, 130), (0, 1, 8), (True, False), (True, False), (True, False))
    if case[1] == 1 or not case[2]
]


@pytest.mark.parametrize(("n", "surplus", "dropped", "transpose", "residual"), COMBINATIONS)
def test_mixing_and_its_gradients_are_those_of_the_dropped_matrix(n, surplus, dropped, transpose, residual) -> None:
    x = normal(3, n, 2, 5)
    weight = normal(2, n + surplus, n + surplus)
    block = weight[:, :n, :n]
    drop = make_drop([0.3, 0.6]) if dropped else None
    got = mix_tokens(x, block, drop, transpose=transpose, residual=residual)
    matrix = block if drop is None else drop_entries(block, drop)
    matrix = matrix.mT if transpose else matrix
    expected = torch.einsum("hmn,bnhd->bmhd", matrix, x) + (x if residual else 0.0)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-4)
    grads = torch.autograd.grad(got.square().sum(), (x, weight))
    wanted = torch.autograd.grad(expected.square().sum(), (x, weight))
    for one, other in zip(grads, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-3)


def test_second_derivatives_are_those_of_products() -> None:
    x = normal(2, 9, 2, 4)
    weight = normal(2, 9, 9)
    results = []
    for mix in (
        lambda: mix_tokens(x, weight, transpose=True),
        lambda: x + torch.einsum("hnm,bnhd->bmhd", weight, x),
    ):
        grads = torch.autograd.grad(mix().pow(3).sum(), (x, weight), create_graph=True)
        results.append(torch.autograd.grad(torch.cat([g.flatten() for g in grads]).square().sum(), (x, weight)))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-2)


def test_an_aligned_operator_is_not_copied(monkeypatch) -> None:
    copies: list[Tensor] = []
    plain = mixing._copied

    def counted(*arguments: Any) -> Tensor:
        copies.append(plain(*arguments))
        return copies[-1]

    monkeypatch.setattr(mixing, "_copied", counted)
    x = normal(2, 64, 2, 8)
    mix_tokens(x, normal(2, 64, 64)).sum().backward()
    mix_tokens(x, normal(2, 72, 72)[:, :64, :64]).sum().backward()
    assert copies == []
    # unaligned rows, unaligned tokens, another dtype, and dropped entries
    mix_tokens(x, normal(2, 65, 65)[:, :64, :64])
    mix_tokens(normal(2, 63, 2, 8), normal(2, 63, 63))
    mix_tokens(x.to(torch.float16), normal(2, 64, 64))
    mix_tokens(x, normal(2, 64, 64), make_drop(0.5))
    assert len(copies) == 4


def test_views_are_not_copied() -> None:
    tokens = normal(2, 24, 3 * 2 * 8)
    views = [x.unflatten(-1, (2, 8)) for x in tokens.chunk(3, -1)]
    weight = normal(2, 24, 24)
    got = mix_tokens(views[1], weight)
    copied = mix_tokens(views[1].contiguous(), weight)
    assert torch.equal(got, copied)
    # the result keeps the layout of its product, which backward reads without a copy
    heads_first = got.permute(2, 1, 0, 3)
    assert heads_first.is_contiguous()
    assert mixing._by_head(got, 24).data_ptr() == got.data_ptr()
    of_view, of_copy = (torch.autograd.grad(y.square().sum(), weight)[0] for y in (got, copied))
    assert torch.equal(of_view, of_copy)


def test_dropped_entries_depend_on_seed_head_row_and_column_only() -> None:
    ones = torch.ones(2, 70, 70, device=DEVICE)
    drop = make_drop([0.0, 0.75])
    dropped = drop_entries(ones, drop)
    assert torch.equal(dropped[0], ones[0])
    assert set(dropped[1].unique().tolist()) == {0.0, 4.0}
    assert abs((dropped[1] != 0).float().mean().item() - 0.25) < 0.03
    assert torch.equal(drop_entries(ones[:, :33, :33], drop), dropped[:, :33, :33])
    assert torch.equal(drop_entries(ones.mT, drop), dropped)
    assert not torch.equal(drop_entries(ones, make_drop([0.0, 0.75], seed=6)), dropped)
    # with one rate for all heads, each head still drops different entries
    shared = drop_entries(ones, make_drop(0.5))
    assert not torch.equal(shared[0], shared[1])
    # heads of neighbouring seeds differ too
    beside = drop_entries(ones, make_drop(0.5, seed=6))
    assert not torch.equal(shared[1], beside[0])
    largest = drop_entries(ones, make_drop(0.5, seed=2**31 - 1))
    assert abs((largest != 0).float().mean().item() - 0.5) < 0.03


def test_a_dropped_operator_is_the_same_matrix_in_mix_dense_and_offset() -> None:
    operator = ops.Dense(normal(2, 30, 30), drop=make_drop(0.5))
    x = normal(1, 25, 2, 4)
    dense = operator.dense(25)
    torch.testing.assert_close(operator.mix(x), torch.einsum("hmn,bnhd->bmhd", dense, x), rtol=1e-5, atol=1e-4)
    causal = torch.einsum("hmn,bnhd->bmhd", dense.tril(), x)
    torch.testing.assert_close(operator.mix(x, causal=True), causal, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(operator.offset(25) + torch.eye(25, device=DEVICE), dense)


@pytest.mark.parametrize(
    ("tokens", "sharing"),
    [(9, "operator"), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((9, "pass"), (70, "operator")))],
)
def test_generator_makes_a_training_pass_reproducible(tokens, sharing) -> None:
    x = torch.randn(1, tokens, 8, device=DEVICE)

    def outputs(seed: int, passes: int = 2) -> list[Tensor]:
        torch.manual_seed(1)
        generator = torch.Generator(DEVICE).manual_seed(seed)
        layer = TemporalOperatorAttention(8, 2, tokens, operator_std=1.0, generator=generator, sor_sharing=sharing)
        layer.to(DEVICE)
        torch.manual_seed(seed + 100)  # the default generator must not matter
        return [layer(x, x, x)[0] for _ in range(passes)]

    first = outputs(3)
    again = outputs(3)
    other = outputs(4, passes=1)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], other[0])


# the compiler itself calls deprecated functions of PyTorch
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.slow
@pytest.mark.parametrize("dropped", [True, False])
def test_mixing_is_registered_correctly(dropped) -> None:
    drop = make_drop([0.3, 0.6]) if dropped else (None, None)
    views = (normal(2, 2, 9, 5, dtype=torch.float16).transpose(1, 2), normal(2, 11, 11)[:, :9, :9])
    x, block = (view.detach().requires_grad_() for view in views)
    for heads_first in (True,) if dropped else (True, False):
        assert_registered(mixing.mix_op, (x, block, *drop, True, True, heads_first))
    assert_registered(mixing.outer_op, (x, x, *drop, torch.float32))
    if dropped:
        assert_registered(drop_op, (block, *drop))


def kept_bytes(layer: torch.nn.Module, x: Tensor) -> int:
    """Bytes that autograd keeps for backward, without parameters and input tokens."""
    given = {t.untyped_storage().data_ptr() for t in (x, *layer.parameters())}
    found: dict[int, tuple[int, Tensor]] = {}

    def keep(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in given:
            found[storage.data_ptr()] = (storage.nbytes(), t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        layer(x, x, x)
    return sum(size for size, _ in found.values())


@pytest.mark.parametrize(("variant", "tensors"), [("gated", 9), pytest.param("relu", 6, marks=pytest.mark.slow)])
def test_a_layer_keeps_few_tensors_of_tokens_and_no_operator_for_backward(variant, tensors) -> None:
    batch = 2 if ON_GPU else 1
    tokens = 96
    width = 32
    norms: dict[str, Any] = {"score_norm": "rms"} | ({"gate_norm": "rms"} if variant == "gated" else {})
    layer = TemporalOperatorAttention(width, 2, tokens, variant, dropout=0.1, **norms).to(DEVICE)
    x = torch.randn(batch, tokens, width, device=DEVICE)
    # projected queries, keys and values, mixed keys and values, and the output
    weights = 4 * sum(p.numel() for p in layer.parameters() if p.shape[-1] == width and p.dim() == 2)
    rows = 8 * batch * tokens * layer.num_heads + 4096
    assert kept_bytes(layer, x) <= 4 * tensors * batch * tokens * width + weights + rows
