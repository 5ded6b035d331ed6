from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import assert_near, message
from toa.nn import ChannelMask

# look-back
L = 12
# number of channels
C = 4


def make(sampling: Any = "training", lookback: int = L) -> ChannelMask:
    return ChannelMask(lookback, sampling=sampling).double()


def literal_probabilities(mask: ChannelMask, series: Tensor) -> Tensor:
    """The formula, pair by pair."""
    spectra = torch.fft.rfft(series, dim=1).abs()
    result = torch.full((len(series), C, C), 0.99, dtype=series.dtype)
    for b in range(len(series)):
        weights = torch.zeros(C, C, dtype=series.dtype)
        for i in range(C):
            for j in range(C):
                if i != j:
                    difference = mask.metric @ (spectra[b, :, i] - spectra[b, :, j])
                    weights[i, j] = 1.0 / (difference @ difference + 1e-10)
        for i in range(C):
            for j in range(C):
                if i != j:
                    result[b, i, j] = 0.99 * weights[i, j] / weights[i].max().detach()
    return result


@pytest.mark.parametrize("lookback", [L, L + 1, 1])
def test_probabilities_and_metric_gradient_match_the_formula(lookback) -> None:
    mask = make(lookback=lookback)
    series = torch.randn(2, lookback, C, dtype=torch.float64)
    got = mask.probabilities(series)
    expected = literal_probabilities(mask, series)
    assert_near(got, expected)
    cotangent = torch.randn_like(got)
    one, other = (torch.autograd.grad(p, [mask.metric], cotangent)[0] for p in (got, expected))
    assert_near(one, other, 1e-11)


def test_a_channel_keeps_itself_and_its_nearest() -> None:
    p = make().probabilities(torch.randn(3, L, C, dtype=torch.float64))
    assert_near(p.diagonal(dim1=1, dim2=2), torch.full((3, C), 0.99, dtype=torch.float64))
    off = p.masked_fill(torch.eye(C, dtype=torch.bool), 0.0)
    assert_near(off.amax(-1), torch.full((3, C), 0.99, dtype=torch.float64))
    assert (p > 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_channels_attend_to_each_other_with_finite_gradients(dtype) -> None:
    mask = make("never").to(dtype)
    series = torch.randn(2, L, C, dtype=dtype)
    series[..., 1] = series[..., 0]
    kept = mask(series)
    assert (kept[:, :2, :2] == 1).all()
    assert (kept[:, :2, 2:] == 0).all()
    (gradient,) = torch.autograd.grad(kept.sum(), [mask.metric])
    assert gradient.isfinite().all()


def test_similar_channels_are_distinguished_in_float32() -> None:
    mask = make()
    common = 1e3 * torch.randn(1, L, 1, dtype=torch.float64)
    series = common + 1e-2 * torch.randn(1, L, C, dtype=torch.float64)
    exact = mask.probabilities(series)
    assert_near(mask.float().probabilities(series.float()), exact, 2e-2)


def test_pairs_are_kept_with_the_gumbel_softmax_probability() -> None:
    mask = make("always")
    series = torch.randn(1, L, C, dtype=torch.float64)
    p = mask.probabilities(series)[0].detach()
    chance = p**2 / (p**2 + (1 - p) ** 2)
    count = 20000
    kept = mask(series.expand(count, -1, -1)).detach()
    assert set(kept.unique().round(decimals=12).tolist()) == {0.0, 1.0}
    deviation = (chance * (1 - chance) / count).sqrt()
    assert ((kept.mean(0) - chance).abs() <= 5 * deviation + 1e-3 / count).all()


def test_masked_pair_is_exactly_zero_in_float32() -> None:
    kept = make("always").float()(torch.randn(50, L, C))
    assert ((kept == 0) | ((kept - 1).abs() < 1e-6)).all()
    assert (kept == 0).any()


def test_gradient_equals_that_of_the_soft_sample() -> None:
    mask = make("always")
    series = torch.randn(2, L, C, dtype=torch.float64)
    noise = torch.rand(2, C, C, dtype=torch.float64).logit()
    mask._draw = lambda like: noise  # type: ignore[method-assign]
    p = mask.probabilities(series)
    soft = ((p / (1 - p)).log() * 2 + noise).sigmoid()
    assert_near(mask(series), (soft > 0.5).double())
    cotangent = torch.randn_like(soft)
    one, other = (torch.autograd.grad(x, [mask.metric], cotangent)[0] for x in (mask(series), soft))
    assert_near(one, other, 1e-11)


@pytest.mark.parametrize(
    ("sampling", "training", "evaluation"), [("always", True, True), ("training", True, False), ("never", False, False)]
)
def test_sampling_controls_when_the_mask_is_random(sampling, training, evaluation) -> None:
    mask = make(sampling)
    series = torch.randn(20, L, C, dtype=torch.float64)
    for mode, random in ((True, training), (False, evaluation)):
        mask.train(mode)
        assert torch.equal(mask(series), mask(series)) is not random
        if not random:
            assert_near(mask(series), (mask.probabilities(series) >= 0.5).double())


def test_autocast_keeps_distances_in_full_precision() -> None:
    mask = make().float()
    series = torch.randn(2, L, C)
    expected = mask.probabilities(series)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(mask.probabilities(series), expected)


def test_wrong_sizes_and_names_raise() -> None:
    with pytest.raises(ValueError, match=message("unknown sampling 'often'; known: always, training, never.")):
        make("often")
    with pytest.raises(ValueError, match=message("channels must be at least 2, got 1.")):
        make()(torch.zeros(2, L, 1, dtype=torch.float64))
    with pytest.raises(ValueError, match=message("series must have shape (B, L, C)=(any, 12, any), got (2, 11, 4)")):
        make()(torch.zeros(2, L - 1, C, dtype=torch.float64))
