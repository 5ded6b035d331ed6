"""Draws of synthetic series: settings, changes, repeatability."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support import ROOT, message
from toa.data.synthetic import CHANGES, SOURCES, Draws, SyntheticSettings, draw_series
from toa.data.synthetic.mixture import resample_ends, share_out
from toa.estimators.pretrained_forecasts import resample

CPU = torch.device("cpu")
# operations that wait for the device, or whose result has a size that depends on values
WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero", "equal")


def seasonal_rows(count, length):
    """Series without noise, and their spread."""
    series = torch.sin(torch.arange(float(length))).expand(count, length)
    return series, series.std(1, keepdim=True)


@pytest.fixture
def draws(request) -> Draws:
    return Draws.of(request.node.name, device=CPU)


# ---- draws


def test_draws_depend_on_seed_and_step_alone():
    first = draw_series(40, 64, seed=3, step=7)
    state = torch.get_rng_state()
    torch.manual_seed(1)
    again = draw_series(40, 64, seed=3, step=7)
    torch.set_rng_state(state)
    assert torch.equal(first.isnan(), again.isnan())
    assert torch.equal(first.nan_to_num(), again.nan_to_num())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("other", [{"seed": 4, "step": 7}, {"seed": 3, "step": 8}])
def test_another_seed_or_step_draws_other_series(other):
    first = draw_series(40, 64, seed=3, step=7).nan_to_num()
    assert (first != draw_series(40, 64, **other).nan_to_num()).any(1).all()


@pytest.mark.parametrize("length", [16, 65, 300])
def test_series_are_finite_or_missing_and_mostly_observed(length):
    series = draw_series(300, length, seed=0, step=0)
    assert series.shape == (300, length)
    assert series.dtype == torch.float32
    assert not series.isinf().any()
    missing = series.isnan().float().mean(1)
    assert 0.05 < (missing > 0).float().mean() < 0.25
    assert missing.max() < 0.75
    assert series.nan_to_num().abs().max() < 1e10


def test_units_of_series_span_seven_decades():
    spreads = draw_series(500, 64, seed=0, step=0, settings=SyntheticSettings(changes={})).std(1)
    assert spreads.quantile(0.9) / spreads.quantile(0.1) > 1e3


def test_drawing_never_waits_for_the_device():
    called = set()

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            called.add(func.__name__.split(".")[0])
            # a mask as an index has a result of unknown size
            if func.__name__.startswith("index.Tensor"):
                assert all(index is None or index.dtype != torch.bool for index in args[1])
            return func(*args, **(kwargs or {}))

    # constants are copied to the device once
    draw_series(40, 32, seed=0, step=0)
    with Recorder():
        draw_series(40, 32, seed=0, step=1)
    # the number of series per kind is computed on the host
    assert "rand" in called
    assert called & set(WAITING) <= {"_local_scalar_dense"}


# ---- sampling rates


@pytest.mark.parametrize("rate", ["quarterly", "daily", "monthly", "hourly"])
def test_main_seasons_have_the_same_number_of_steps_at_every_rate(rate):
    settings = SyntheticSettings(weights={"sawtooth": 1.0}, changes={}, season_steps=24, rates={rate: 1.0})
    series = draw_series(200, 336, seed=0, step=0, settings=settings)
    assert series.shape == (200, 336)
    centred = series - series.mean(1, keepdim=True)
    correlation = [
        ((centred[:, :-lag] * centred[:, lag:]).mean(1) / centred.square().mean(1)).median() for lag in (12, 24, 36)
    ]
    others = max(float(correlation[0]), float(correlation[2]), 0.5)
    assert float(correlation[1]) > others


def test_all_rates_are_drawn_with_missing_values_and_without_bias_in_their_order():
    settings = SyntheticSettings(season_steps=24)
    series = draw_series(400, 100, seed=0, step=0, settings=settings)
    assert series.shape == (400, 100)
    assert not series.isinf().any()
    # only interpolated series have steps on a line through their neighbours
    on_line = (series.diff(n=2).abs() < 1e-3 * series.diff().abs().mean(1, keepdim=True)).float().mean(1) > 0.4
    assert 0.2 < on_line[:200].float().mean() < 0.8
    assert (on_line[:200].float().mean() - on_line[200:].float().mean()).abs() < 0.15


def test_series_are_resampled_as_they_are_for_a_forecast():
    series = torch.arange(20.0).square()
    series[7] = torch.nan
    expected = resample(series.double().numpy(), 3.0)[-48:]
    got = resample_ends(series[None], 48, 3.0)[0]
    assert got.isnan().numpy().tolist() == np.isnan(expected).tolist()
    # beside a gap, an interpolation for a forecast uses the value after it, too
    near_gap = np.abs(np.arange(-47, 1) / 3.0 + 19 - 7) < 1
    np.testing.assert_allclose(got.numpy()[~near_gap], expected[~near_gap], rtol=1e-5)
    assert got[-1] == series[-1]


def test_wrong_rates_raise():
    with pytest.raises(ValueError, match=message("season_steps must be an integer of at least 24, got 12")):
        SyntheticSettings(season_steps=12)
    assert SyntheticSettings(season_steps=12, rates={"monthly": 1.0}).season_steps == 12
    with pytest.raises(ValueError, match="sampling rate"):
        SyntheticSettings(season_steps=24, rates={"weekly": 1.0})
    with pytest.raises(ValueError, match="rates must have a positive weight"):
        SyntheticSettings(rates={"daily": 0.0})


# ---- shares


def test_shares_are_rounded_and_without_bias():
    weights = {"a": 1.0, "b": 2.5, "c": 0.0, "d": 0.1}
    totals = dict.fromkeys(weights, 0)
    for step in range(300):
        shares = share_out(weights, 10, (0, step))
        assert sum(shares.values()) == 10
        for name, weight in weights.items():
            assert abs(shares[name] - 10 * weight / 3.6) <= 1
            totals[name] += shares[name]
    assert totals["c"] == 0
    assert abs(totals["d"] / 3000 - 0.1 / 3.6) < 0.01


def test_a_kind_without_weight_is_not_drawn():
    settings = SyntheticSettings(
        weights={"counts": 1.0, "trend": 0.0}, changes={}, largest_offset=0.0, largest_unit=1e-3
    )
    series = draw_series(50, 32, seed=0, step=0, settings=settings) * 1e3
    torch.testing.assert_close(series, series.round(), rtol=0, atol=1e-3)


def test_mixtures_differ_from_their_parts():
    settings = SyntheticSettings(weights={"counts": 1e-9, "mixture": 1.0}, changes={})
    series = draw_series(50, 64, seed=0, step=0, settings=settings)
    assert series.isfinite().all()
    # sums of scaled counts have more different values than counts
    assert min(len(row.unique()) for row in series) > 8


# ---- changes


def test_level_shifts_change_the_level_a_few_times(draws):
    series, spread = seasonal_rows(400, 128)
    moved = (CHANGES["level_shifts"](draws, series, spread) - series).diff(dim=1).abs() > 1e-4
    assert 1.5 < moved.sum(1).float().mean() < 2.5


def test_outliers_are_few_and_large(draws):
    series, spread = seasonal_rows(400, 128)
    added = (CHANGES["outliers"](draws, series, spread) - series).abs() / spread
    outlying = added > 0
    assert 0.002 < outlying.float().mean() < 0.02
    assert added[outlying].min() > 2.9
    assert added.max() < 20.1


def test_clipping_cuts_one_side_or_both(draws):
    series, spread = seasonal_rows(300, 128)
    clipped = CHANGES["clipping"](draws, series, spread)
    low = clipped.amin(1) > series.amin(1)
    high = clipped.amax(1) < series.amax(1)
    assert (low & high).any()
    assert (low & ~high).any()
    assert (high & ~low).any()
    inside = (clipped > clipped.amin(1, keepdim=True)) & (clipped < clipped.amax(1, keepdim=True))
    assert torch.equal(clipped[inside], series[inside])


def test_quantisation_leaves_few_values(draws):
    series, spread = draws.normal(100, 500), torch.ones(100, 1)
    rounded = CHANGES["quantisation"](draws, series, spread)
    assert (rounded - series).abs().max() <= 0.51
    assert torch.tensor([len(row.unique()) for row in rounded]).float().median() < 120


def test_missing_values_form_stretches(draws):
    series, spread = seasonal_rows(300, 128)
    missing = CHANGES["missing"](draws, series, spread).isnan()
    share = missing.float().mean(1)
    assert 0.02 < share.mean() < 0.3
    assert share.max() < 0.75
    # the next step of a missing one is mostly missing too
    assert (missing[:, 1:] & missing[:, :-1]).sum() > 0.5 * missing[:, :-1].sum()


@pytest.mark.parametrize("change", CHANGES)
def test_changes_keep_constant_series_finite_or_missing(change, draws):
    changed = CHANGES[change](draws, torch.full((50, 32), 3.0), torch.zeros(50, 1))
    assert torch.equal(changed.nan_to_num(nan=3.0), torch.full((50, 32), 3.0))


# ---- settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weights": {"trends": 1.0}}, "unknown kind of series 'trends'"),
        ({"weights": {"trend": -1.0}}, "at least 0"),
        ({"weights": {"trend": 0.0}}, "weight at least one kind"),
        ({"weights": {"mixture": 1.0}}, "another kind than 'mixture'"),
        ({"changes": {"noise": 0.1}}, "unknown change of series 'noise'"),
        ({"changes": {"missing": 1.5}}, r"must lie in \[0, 1\]"),
        ({"largest_unit": 1e-6}, "largest_unit must be at least"),
        ({"largest_offset": float("nan")}, "largest_offset must be at least"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        SyntheticSettings(**settings)


@pytest.mark.parametrize("wrong", [{"count": 0}, {"length": 15}, {"seed": -1}, {"step": -1}])
def test_wrong_arguments_are_named(wrong):
    arguments = {"count": 2, "length": 16, "seed": 0, "step": 0} | wrong
    with pytest.raises(ValueError, match=next(iter(wrong))):
        draw_series(**arguments)


def test_default_settings_weight_all_kinds_equally():
    assert dict(SyntheticSettings().weights) == dict.fromkeys((*SOURCES, "mixture"), 1.0)


# ---- the page


@pytest.mark.parametrize("name", [*SOURCES, "mixture", *CHANGES])
def test_the_page_describes_and_shows(name):
    page = (ROOT / "docs" / "synthetic.md").read_text(encoding="utf-8")
    assert f"### `{name}`\n" in page
    assert f"(images/synthetic_{name}.png)" in page
    assert (ROOT / "docs" / "images" / f"synthetic_{name}.png").is_file()
