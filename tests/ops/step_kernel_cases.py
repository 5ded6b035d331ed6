"""Tests of the kernels that spare a step launches; run on a GPU, or by test_step_kernels.py in the interpreter."""

import pytest
import torch
from torch import Tensor

from tests.ops.triton_cases import DEVICE, _poisoned  # noqa: F401
from toa.nn import ReversibleInstanceNorm
from toa.nn import norm as norm_module
from toa.ops.series_norm import MAX_LENGTH, takes_series


@pytest.fixture(autouse=True)
def _kernels(monkeypatch) -> None:
    monkeypatch.setenv("TOA_BACKEND", "triton")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize(("batch", "length", "channels"), [(1, 1, 1), (2, 5, 3), (3, 96, 17), (1, 336, 7)])
def test_a_series_is_normalised_as_in_float64(monkeypatch, batch, length, channels, affine):
    # a part of a longer window, as batches have it
    series = (normal(batch, length + 3, channels) * 5 + 100)[:, :length]
    assert takes_series(series)
    layer = ReversibleInstanceNorm(channels if affine else None).to(DEVICE)
    for parameter in layer.parameters():
        torch.nn.init.uniform_(parameter, 0.5, 1.5)
    found, statistics = layer.normalise(series)
    monkeypatch.setenv("TOA_BACKEND", "folded")
    expected, wanted = layer.double().normalise(series.double())
    assert found.shape == expected.shape
    torch.testing.assert_close(statistics.mean, wanted.mean.float(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(statistics.std, wanted.std.float(), rtol=1e-5, atol=1e-6)
    # the level takes digits of a series around it: one number of 100 is worth 1e-5, over a scale of 5 or sqrt(eps)
    torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-5 if length > 1 else 0.01)
    back = layer.float().denormalise(found, statistics)
    torch.testing.assert_close(back, series, rtol=1e-5, atol=1e-4)


def test_channels_of_a_normalised_series_lie_one_after_another():
    found, _ = ReversibleInstanceNorm().normalise(normal(2, 8, 3))
    assert found.mT.is_contiguous()


def test_a_series_that_kernels_do_not_take_is_normalised_by_pytorch(monkeypatch):
    def fail(*args: object) -> None:
        raise AssertionError("the kernel was called")

    monkeypatch.setattr(norm_module, "series_norm", fail)
    layer = ReversibleInstanceNorm()
    layer.normalise(normal(2, 8, 3).requires_grad_())
    layer.normalise(normal(2, 8, 3).double())
    layer.normalise(normal(1, MAX_LENGTH + 1, 1))
    layer.normalise(normal(2, 8, 3), torch.ones(2, 8, dtype=torch.bool, device=DEVICE))
    with pytest.raises(AssertionError, match="was called"):
        layer.normalise(normal(2, 8, 3))
