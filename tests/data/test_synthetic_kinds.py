"""Statistics of each kind of synthetic series."""

import pytest
import torch

from toa.data.synthetic import SOURCES, Draws, seasons, trends
from toa.data.synthetic.gaussian_processes import (
    periodic_exponent,
    random_kernel,
    rational_exponent,
    rough_exponent,
    sample_process,
    smooth_exponent,
    white_exponent,
)
from toa.data.synthetic.processes import one_root, sarma_response, switching_process, two_roots
from toa.data.synthetic.sequences import filter_noise, hold, scan, seasonal_sum, standardise

CPU = torch.device("cpu")


@pytest.fixture
def draws(request) -> Draws:
    return Draws.of(request.node.name, device=CPU)


@pytest.fixture
def period_of_32(monkeypatch):
    monkeypatch.setattr(Draws, "periods", lambda self, count: torch.full((count, 1), 32.0))


def correlation(series, lag):
    """Mean over series of their correlation with themselves `lag` steps later."""
    scaled = standardise(series)
    return (scaled[:, lag:] * scaled[:, : scaled.shape[1] - lag]).mean().item()


def local(series, size):
    """Parts of `size` steps (B, parts, size)."""
    return series.unfold(1, size, size)


# ---- operations along time


def test_scan_equals_the_recursion(draws):
    decay, inputs = draws.uniform(3, 37), draws.normal(3, 37)
    state = torch.zeros(3)
    for step, value in enumerate(scan(decay, inputs).unbind(1)):
        state = decay[:, step] * state + inputs[:, step]
        torch.testing.assert_close(value, state)


def test_hold_repeats_the_value_of_the_last_change():
    changes = torch.tensor([[False, False, True, False, True]])
    assert hold(torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]]), changes).tolist() == [[1.0, 1.0, 3.0, 3.0, 5.0]]


def test_seasonal_sum_equals_the_recursion(draws):
    series = draws.normal(4, 29)
    periods = torch.tensor([[1], [4], [7], [40]])
    expected = series.clone()
    for row, period in enumerate(periods[:, 0].tolist()):
        for step in range(period, 29):
            expected[row, step] += expected[row, step - period]
    torch.testing.assert_close(seasonal_sum(series, periods, 40), expected)


# ---- every kind


@pytest.mark.parametrize("length", [16, 257])
@pytest.mark.parametrize("kind", SOURCES)
def test_a_kind_draws_finite_series_that_differ(kind, length, draws):
    series = SOURCES[kind](draws, 9, length)
    assert series.shape == (9, length)
    assert series.dtype == torch.float32
    assert series.isfinite().all()
    assert len(series.unique(dim=0)) > 1


@pytest.mark.parametrize("kind", SOURCES)
def test_values_of_a_kind_are_far_from_overflow(kind, draws):
    assert SOURCES[kind](draws, 200, 64).abs().max() < 1e4


# ---- trends


def test_linear_trends_have_one_slope(draws):
    slopes = trends.linear(draws, 50, 64).diff(dim=1)
    assert slopes.std(1).max() < 1e-6
    assert slopes.mean(1).std() > 0.5 / 64


def test_exponential_trends_have_one_ratio(draws):
    series = trends.exponential(draws, 50, 64)
    ratios = series[:, 1:] / series[:, :-1]
    assert ratios.std(1).max() < 1e-5
    assert ((series.amax(1) > 0.9) & (series.amax(1) <= 1.0)).all()


def test_logistic_trends_are_monotone_and_saturate(draws):
    series = trends.logistic(draws, 200, 256)
    rises = series.diff(dim=1)
    assert ((rises >= 0).all(1) | (rises <= 0).all(1)).all()
    # most of the change happens in half of the steps; of a line, half of it does
    fastest = rises.abs().sort(1, descending=True).values[:, :128].sum(1)
    assert (fastest / rises.abs().sum(1)).mean() > 0.7


def test_piecewise_trends_change_slope_a_few_times(draws):
    bends = trends.piecewise(draws, 400, 256).diff(n=2, dim=1).abs() > 1e-5
    assert 3.0 < bends.sum(1).float().mean() < 6.5


# ---- seasons


def test_harmonics_have_their_energy_at_the_period_and_its_fractions(draws):
    season = seasons.harmonics(draws, 100, 256, torch.full((100, 1), 32.0))
    energy = torch.fft.rfft(season).abs().square()
    share = energy[:, 8 : 8 * 6 : 8].sum(1) / energy.sum(1)
    assert share.min() > 0.999
    assert (energy[:, 8] > 0.01 * energy.sum(1)).all()
    torch.testing.assert_close(season.square().mean(1), torch.ones(100), rtol=1e-3, atol=0)


def test_harmonics_of_a_short_period_do_not_appear_at_another(draws):
    season = seasons.harmonics(draws, 50, 64, torch.full((50, 1), 4.0))
    energy = torch.fft.rfft(season).abs().square()
    assert (energy[:, [16, 32]].sum(1) / energy.sum(1)).min() > 0.999


def test_periods_lie_between_4_and_730(draws):
    periods = draws.periods(2000)
    assert periods.min() >= 4
    assert periods.max() <= 730.01
    # the common ones
    assert 0.6 < (periods == periods.round()).float().mean() < 0.8


@pytest.mark.parametrize(("kind", "least"), [("pulses", 0.75), ("sawtooth", 0.75), ("seasons", 0.5), ("spikes", 0.3)])
@pytest.mark.usefixtures("period_of_32")
def test_a_seasonal_kind_repeats_after_its_period(kind, least, draws):
    series = SOURCES[kind](draws, 300, 256)
    # without the trend of half of the seasons
    detrended = series[:, 32:] - series.unfold(1, 32, 1).mean(2)[:, 1:]
    assert correlation(detrended, 32) > least
    assert correlation(detrended, 32) > correlation(detrended, 16) + 0.2


@pytest.mark.usefixtures("period_of_32")
def test_spikes_rest_most_of_the_time(draws):
    series = SOURCES["spikes"](draws, 300, 256)
    resting = (series.abs() < 0.3 * series.abs().amax(1, keepdim=True)).float().mean(1)
    assert resting.median() > 0.7


def test_the_spread_of_multiplicative_series_grows_with_their_level(draws):
    series = SOURCES["multiplicative"](draws, 300, 512)
    assert (series > 0).all()
    parts = local(series, 32)
    both = torch.stack((standardise(parts.mean(2)), standardise(parts.diff(dim=2).std(2))))
    assert (both[0] * both[1]).mean() > 0.4


def test_a_calendar_pattern_changes_with_the_hour(draws):
    pattern = seasons.calendar_pattern(draws, 50, 384, torch.full((50, 1), 96.0))
    # four steps per hour; a month may begin inside one
    changes = (pattern.diff(dim=1) != 0).sum(1)
    assert changes.max() <= 384 / 4 + 2
    assert changes.min() >= 384 / 4 - 2


def test_a_daily_calendar_pattern_repeats_weekly_within_a_month(draws):
    pattern = seasons.calendar_pattern(draws, 50, 366, torch.ones(50, 1))
    same = (pattern[:, 7:] - pattern[:, :-7]).abs() < 1e-5
    # seven of about 30 days lie in the next month
    assert 0.7 < same.float().mean() < 0.85


def test_a_monthly_calendar_pattern_repeats_yearly(draws):
    pattern = seasons.calendar_pattern(draws, 50, 120, torch.full((50, 1), 12 / 365.25))
    assert ((pattern[:, 12:] - pattern[:, :-12]).abs() < 1e-5).float().mean() > 0.9


# ---- Gaussian processes


def test_a_process_has_the_covariances_of_its_kernel(draws):
    lag = torch.arange(65.0).unsqueeze(0)
    covariance = (-rough_exponent(lag, torch.tensor([[8.0]]))).exp()
    series = sample_process(draws, covariance.expand(4000, -1))
    for steps in (0, 1, 8, 40):
        measured = (series[:, : 64 - steps] * series[:, steps:]).mean()
        assert abs(measured - covariance[0, steps]) < 0.05


def test_kernels_are_one_at_lag_zero_and_at_most_one_elsewhere(draws):
    covariance = random_kernel(draws, 300, 128)
    torch.testing.assert_close(covariance[:, 0], torch.ones(300))
    assert covariance.abs().max() <= 1.0 + 1e-5


def test_each_kernel_has_its_formula():
    lag = torch.tensor([[0.0, 3.0, 12.0]])
    size = torch.tensor([[6.0]])
    expected = {
        smooth_exponent: [0.0, 0.125, 2.0],
        rough_exponent: [0.0, 0.5, 2.0],
        rational_exponent: [0.0, 0.1177830, 1.0986123],
    }
    for function, values in expected.items():
        torch.testing.assert_close(function(lag, size), torch.tensor([values]))
    torch.testing.assert_close(periodic_exponent(lag, size, size), torch.tensor([[0.0, 12.0, 0.0]]), atol=1e-4, rtol=0)
    assert white_exponent(lag).exp().log().gt(20).tolist() == [[False, True, True]]


# ---- stochastic processes


def test_a_switching_process_keeps_the_moments_of_its_regime(draws):
    constant = torch.ones(4000, 60)
    series = switching_process(0.8 * constant, 3.0 * constant, 2.0 * constant, draws.normal(4000, 60))
    for step in (0, 1, 30, 59):
        assert abs(series[:, step].mean() - 3.0) < 0.15
        assert abs(series[:, step].std() - 2.0) < 0.1
    assert abs(((series[:, 1:] - 3.0) * (series[:, :-1] - 3.0)).mean() / 4.0 - 0.8) < 0.05


def test_a_switching_process_approaches_the_mean_of_a_new_regime(draws):
    mean = torch.cat((torch.zeros(2000, 50), 5.0 * torch.ones(2000, 50)), 1)
    series = switching_process(torch.full_like(mean, 0.5), mean, torch.ones_like(mean), draws.normal(2000, 100))
    assert abs(series[:, 49].mean()) < 0.1
    # half of the way after one step
    assert abs(series[:, 50].mean() - 2.5) < 0.1
    assert abs(series[:, 60].mean() - 5.0) < 0.1


def test_an_autoregression_has_its_variance_and_correlation(draws):
    angle = torch.pi * torch.arange(129.0).unsqueeze(0) / 128
    series = filter_noise(1 / one_root(angle, torch.tensor([[0.8]])), draws.normal(3000, 256))
    assert abs(series.var() * (1 - 0.64) - 1.0) < 0.05
    assert abs(correlation(series, 1) - 0.8) < 0.05


def test_two_roots_are_a_product_of_conjugates():
    angle = torch.linspace(0, 3, 7).unsqueeze(0)
    root = torch.polar(torch.tensor([[0.9]]), torch.tensor([[1.1]]))
    expected = one_root(angle, root) * one_root(angle, root.conj())
    torch.testing.assert_close(two_roots(angle, torch.tensor([[0.9]]), torch.tensor([[1.1]])), expected)


def test_seasonal_arma_processes_are_stationary(draws):
    response = sarma_response(draws, 3000, 128, draws.pick((4, 7, 12), 3000, 1))
    assert response.isfinite().all()
    # far from a pole: (1 - 0.98)² (1 - 0.98) (1 - 0.9) bounds the denominator
    assert response.abs().max() < 8 * 1.9 / (0.02**3 * 0.1)
    series = filter_noise(response, draws.normal(3000, 256))
    quarters = local(series / series.std(1, keepdim=True), 64).square().mean((0, 2))
    assert (quarters - 1.0).abs().max() < 0.1


def test_steps_of_random_walks_are_not_correlated(draws):
    walks = SOURCES["random_walk"](draws, 500, 256)
    assert correlation(walks, 1) > 0.8
    assert abs(correlation(walks.diff(dim=1), 1)) < 0.05


# ---- counts


@pytest.mark.parametrize("kind", ["counts", "intermittent"])
def test_counts_are_whole_and_not_negative(kind, draws):
    series = SOURCES[kind](draws, 200, 128)
    assert (series == series.round()).all()
    assert (series >= 0).all()


def test_intermittent_series_are_mostly_zero(draws):
    zeros = (SOURCES["intermittent"](draws, 400, 256) == 0).float().mean(1)
    assert zeros.median() > 0.7
    assert (zeros > 0.4).float().mean() > 0.9
    # the smallest demand is one
    assert (zeros < 1).float().mean() > 0.95
