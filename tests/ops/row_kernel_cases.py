"""Tests of layer norm, column sums and linear maps by kernels; run on a GPU, or by test_compile.py."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.ops.rounding import unit_of_rounding
from tests.ops.triton_cases import DEVICE, ON_GPU, _poisoned, _rms  # noqa: F401
from tests.support import assert_registered
from toa.ops import kernels
from toa.ops import row_functions as rows_module
from toa.ops._backend import SWITCHABLE_KERNELS, disable_kernels
from toa.ops.row_functions import MAX_WIDTH, column_sum, layer_norm, linear

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# rows and width; the interpreter is slow, and runs the same code for every dtype
LARGE = [(rows, width) for rows in (0, 1, 17, 1000, 40000) for width in (1, 8, 16, 24, 128, 200, 512, MAX_WIDTH)]
SMALL = [(0, 8), (1, 1), (17, 8), (1000, 16), (17, 24), (70, 128), (17, 200), (5, 512)]
CASES = [
    pytest.param(dtype, *size, marks=pytest.mark.slow if dtype != torch.float32 and size != (17, 24) else ())
    for dtype in DTYPES
    for size in (LARGE if ON_GPU else SMALL)
]


@pytest.fixture(autouse=True)
def _kernels(monkeypatch) -> None:
    monkeypatch.setenv("TOA_BACKEND", "triton")


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def results(function: Callable[..., Tensor], backend: str, grad: Tensor, *tensors: Tensor) -> dict[str, Tensor]:
    """The output, and the gradient of every tensor; by PyTorch's functions if the backend has no kernels."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOA_BACKEND", backend)
        out = function(*leaves)
        grads = torch.autograd.grad(out, leaves, grad)
    return {"output": out, **{f"gradient {place}": x for place, x in enumerate(grads)}}


def assert_as_accurate_as_pytorch(function: Callable[..., Tensor], grad: Tensor, *tensors: Tensor) -> None:
    """Compare root mean square errors, relative to float64."""
    exact = results(function, "folded", grad.double(), *(x.double() for x in tensors))
    plain = results(function, "folded", grad, *tensors)
    eps = unit_of_rounding(grad.dtype, tf32=False)
    for name, got in results(function, "triton", grad, *tensors).items():
        assert got.shape == exact[name].shape, name
        assert got.dtype == grad.dtype, name
        assert got.isfinite().all(), name
        granted = (1e-6 + 4 * eps) * _rms(exact[name]) + 1e-7
        error = _rms(got.double() - exact[name])
        allowed = 2 * _rms(plain[name].double() - exact[name]) + granted
        assert error <= allowed, f"{name}: error {error:.2e}, allowed {allowed:.2e}"


class OptionsOf:
    """Stands for a kernel: runs it, and keeps the options of every launch."""

    def __init__(self, kernel: Any, launches: list[dict[str, Any]]) -> None:
        self.kernel = kernel
        self.launches = launches

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        def launch(*arguments: Any, **options: Any) -> Any:
            self.launches.append(options)
            return self.kernel[grid](*arguments, **options)

        return launch


def test_every_launch_on_rows_states_that_products_and_sums_are_fused(monkeypatch) -> None:
    launches: list[dict[str, Any]] = []
    names = ("norm_kernel", "norm_backward_kernel", "column_sum_kernel")
    for name in names:
        monkeypatch.setattr(kernels, name, OptionsOf(getattr(kernels, name), launches))
    results(layer_norm, "triton", normal(3, 8), normal(3, 8), normal(8), normal(8))
    assert [options["enable_fp_fusion"] for options in launches] == [True] * 3


def runs_kernel(out: Tensor, name: str) -> bool:
    return name in type(out.grad_fn).__name__


@pytest.mark.parametrize(("dtype", "rows", "width"), CASES)
def test_layer_norm_and_its_gradients(dtype, rows, width) -> None:
    # far from zero, where the mean of squares minus the square of the mean loses digits
    x = 3.0 + normal(rows, width, dtype=dtype)
    others = (normal(width, dtype=dtype, seed=seed) for seed in (1, 2))
    assert_as_accurate_as_pytorch(layer_norm, normal(rows, width, dtype=dtype, seed=3), x, *others)


def test_layer_norm_of_tensors_in_any_memory_layout() -> None:
    x = normal(24, 5, 3)
    grad = normal(5, 3, 24)
    weight = normal(24, 2)
    bias = normal(24)
    apart = (grad.transpose(0, 1), x.permute(2, 1, 0), weight[:, 0], bias.flip(0))
    together = [x.contiguous() for x in apart]
    expected = results(layer_norm, "triton", *together)
    for name, got in results(layer_norm, "triton", *apart).items():
        assert torch.equal(got, expected[name]), name
    wide = normal(15, 48)[:, :24]  # rows do not follow one another
    expected = results(layer_norm, "triton", wide.contiguous(), wide.contiguous(), *together[2:])
    for name, got in results(layer_norm, "triton", wide, wide, *together[2:]).items():
        torch.testing.assert_close(got, expected[name])
    # the gradient of a sum is one expanded number
    ones = torch.ones((), device=DEVICE)
    expected = results(layer_norm, "triton", ones.repeat(3, 5, 24), *together[1:])
    for name, got in results(layer_norm, "triton", ones.expand(3, 5, 24), *together[1:]).items():
        assert torch.equal(got, expected[name]), name


def test_layer_norm_is_deterministic() -> None:
    tensors = (normal(500, 16, seed=1), normal(500, 16), normal(16), normal(16))
    first, again = (results(layer_norm, "triton", *tensors) for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_layer_norm_under_autocast_is_in_float32() -> None:
    x, weight, bias = (normal(*shape).requires_grad_() for shape in ((5, 8), (8,), (8,)))
    low = x.detach().bfloat16().requires_grad_()
    with torch.autocast(DEVICE, torch.bfloat16):
        out = layer_norm(low, weight, bias)
    assert runs_kernel(out, "toa_layer_norm")
    assert out.dtype == torch.float32
    expected = layer_norm(low.float(), weight, bias)
    assert torch.equal(out, expected)
    grads = torch.autograd.grad(out.square().sum(), (low, weight, bias))
    assert [grad.dtype for grad in grads] == [torch.bfloat16, torch.float32, torch.float32]


def test_layer_norm_falls_back_to_pytorch(monkeypatch) -> None:
    def runs(x: Tensor, dtype: torch.dtype | None = None) -> bool:
        weight, bias = (normal(x.shape[-1]).to(dtype or x.dtype).requires_grad_() for _ in range(2))
        return runs_kernel(layer_norm(x, weight, bias), "toa_layer_norm")

    assert runs(normal(3, MAX_WIDTH))
    assert not runs(normal(3, MAX_WIDTH + 1))
    assert not runs(normal(3, 1))
    assert not runs(normal(3, 8, dtype=torch.float64))
    if not ON_GPU:
        # PyTorch takes mixed dtypes on a CPU only
        assert not runs(normal(3, 8, dtype=torch.bfloat16), torch.float32)
    monkeypatch.setenv("TOA_BACKEND", "folded")
    assert not runs(normal(3, 8))
    monkeypatch.delenv("TOA_BACKEND")
    assert runs(normal(3, 8)) == ON_GPU
    with pytest.raises(RuntimeError, match="normalized_shape"):
        layer_norm(normal(3, 8), normal(4), normal(4))


def test_layer_norm_raises_for_second_derivatives() -> None:
    x, weight, bias = (normal(*shape).requires_grad_() for shape in ((5, 8), (8,), (8,)))
    (grad,) = torch.autograd.grad(layer_norm(x, weight, bias).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        grad.sum().backward()


@pytest.mark.parametrize(("dtype", "rows", "width"), CASES)
def test_column_sum(dtype, rows, width) -> None:
    x = normal(rows, width, dtype=dtype)
    exact = x.double().sum(0)
    got = column_sum(x, torch.float32)
    assert got.dtype == torch.float32
    # in any order, the error of a sum is at most n eps times the sum of magnitudes, and far less as a rule
    assert ((got - exact).abs() <= 1e-6 * x.double().abs().sum(0)).all()
    rounded = column_sum(x, dtype)
    assert rounded.dtype == dtype
    assert ((rounded - got).abs() <= torch.finfo(dtype).eps * got.abs()).all()


@pytest.mark.parametrize("shape", [(5,), (0, 5), (3, 0, 5), (700, 5), (2, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_linear_and_its_gradients(dtype, shape) -> None:
    x, weight, bias = (normal(*size, dtype=dtype, seed=len(size)) for size in (shape, (24, 5), (24,)))
    assert_as_accurate_as_pytorch(linear, normal(*shape[:-1], 24, dtype=dtype), x, weight, bias)


def test_linear_takes_gradients_in_any_memory_layout() -> None:
    tensors = (normal(2, 600, 3), normal(24, 3), normal(24))
    for grad in (normal(2, 24, 600).mT, normal(600, 2, 24).transpose(0, 1), normal(600, 1).expand(2, 600, 24)):
        expected = results(linear, "triton", grad.contiguous(), *tensors)
        for name, got in results(linear, "triton", grad, *tensors).items():
            torch.testing.assert_close(got, expected[name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("learning", [(True, False, False), (False, True, False), (False, False, True)], ids=str)
def test_linear_computes_only_the_gradients_that_are_needed(monkeypatch, learning) -> None:
    summed = []

    def counted(x: Tensor, dtype: torch.dtype) -> Tensor:
        summed.append(x.shape)
        return column_sum(x, dtype)

    monkeypatch.setattr(rows_module, "column_sum", counted)
    leaves = [normal(*size).requires_grad_(flag) for size, flag in zip(((4, 3), (6, 3), (6,)), learning, strict=True)]
    linear(*leaves).sum().backward()
    assert [leaf.grad is not None for leaf in leaves] == list(learning)
    assert summed == ([(4, 6)] if learning[2] else [])
    with torch.no_grad():
        assert not linear(*leaves).requires_grad
    assert runs_kernel(linear(*leaves), "BiasGradient") == learning[2]


def test_linear_under_autocast_sums_the_bias_in_float32() -> None:
    x, weight, bias = (normal(*shape).requires_grad_() for shape in ((600, 3), (6, 3), (6,)))
    with torch.autocast(DEVICE, torch.bfloat16):
        out = linear(x, weight, bias)
        expected = torch.nn.functional.linear(x, weight, bias)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, expected)
    grad = normal(600, 6, dtype=torch.bfloat16)
    got, plain = (torch.autograd.grad(result, (x, weight, bias), grad) for result in (out, expected))
    for one, other in zip(got[:2], plain[:2], strict=True):
        assert torch.equal(one, other)
    assert got[2].dtype == torch.float32
    torch.testing.assert_close(got[2], grad.float().sum(0))


def test_linear_can_be_differentiated_twice() -> None:
    def second(backend: str) -> tuple[Tensor, ...]:
        leaves = [normal(*shape).requires_grad_() for shape in ((7, 3), (6, 3), (6,))]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TOA_BACKEND", backend)
            first = torch.autograd.grad(linear(*leaves).pow(3).sum(), leaves, create_graph=True)
            return torch.autograd.grad([x.square().sum() for x in first], leaves)

    for got, expected in zip(second("triton"), second("folded"), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_changing_a_linear_map_in_place_raises() -> None:
    x, weight, bias = (normal(*shape).requires_grad_() for shape in ((7, 3), (6, 3), (6,)))
    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        linear(x, weight, bias).relu_()


# the compiler itself calls deprecated functions of PyTorch, and warns that it ignores a cache
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Dynamo detected a call:UserWarning")
@pytest.mark.parametrize("function", [layer_norm, linear])
def test_it_compiles_without_a_graph_break(function) -> None:
    tensors = (normal(7, 8, seed=1), normal(7, 8), normal(8) if function is layer_norm else normal(8, 8), normal(8))
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    expected = results(function, "triton", *tensors)
    for name, got in results(compiled, "triton", *tensors).items():
        torch.testing.assert_close(got, expected[name])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float16, marks=pytest.mark.slow)], ids=str)
def test_operators_are_registered_correctly(dtype) -> None:
    x, weight, bias = (normal(*shape, dtype=dtype) for shape in ((4, 3, 8), (8,), (8,)))
    apart = x.transpose(0, 1)
    leaves = [leaf.detach().requires_grad_() for leaf in (apart, weight, bias)]
    assert_registered(rows_module._norm, (leaves[0], None, *leaves[1:], None, 0.0, 1e-5))
    assert_registered(rows_module._norm_backward, (apart.contiguous(), apart, weight, None, 0.0, 1e-5))
    assert_registered(column_sum, (leaves[0], torch.float32))


def test_each_kernel_can_be_switched_off() -> None:
    x, weight, bias = (normal(*shape).requires_grad_() for shape in ((5, 8), (8,), (8,)))
    try:
        disable_kernels("layer_norm")
        assert not runs_kernel(layer_norm(x, weight, bias), "toa_layer_norm")
        assert runs_kernel(linear(x, weight.outer(weight), bias), "BiasGradient")
        disable_kernels("bias_gradient")
        assert runs_kernel(layer_norm(x, weight, bias), "toa_layer_norm")
        assert not runs_kernel(linear(x, weight.outer(weight), bias), "BiasGradient")
        with pytest.raises(ValueError, match=f"unknown kernel 'norm'.*{SWITCHABLE_KERNELS[0]}"):
            disable_kernels("norm")
    finally:
        disable_kernels()
