"""Series with seasons: harmonics, pulses, saw-teeth, spikes with a plateau, and patterns of the calendar."""

import math

import torch
from torch import Tensor

from toa.data.synthetic.draws import DAYS_PER_YEAR, SOURCES, Draws
from toa.data.synthetic.sequences import phase_of, standardise, steps_of
from toa.data.synthetic.trends import any_trend, some_noise

# harmonics of a season
HARMONICS = 5
# most seasons of a series
MOST_SEASONS = 3
DAYS_PER_WEEK = 7
HOURS_PER_DAY = 24
MONTHS_PER_YEAR = 12


def harmonics(draws: Draws, count: int, length: int, period: Tensor) -> Tensor:
    """A sum of sines of a period (B, 1) and of its fractions, with falling amplitudes; its variance is 1."""
    angle = 2 * math.pi * steps_of(draws, length) / period  # (B, L)
    # between a smooth season and one with all harmonics alike
    decline = draws.uniform(count, 1, low=0.5, high=3.0)
    order = torch.arange(1, HARMONICS + 1, device=draws.device)
    # the first one always counts; the period would be a fraction of the stated one without it
    kept = (order == 1) | draws.coin(count, HARMONICS, probability=0.6)
    # harmonics above half of the sampling rate would appear at another period
    kept = kept & (order <= period / 2)
    spread = draws.uniform(count, HARMONICS, low=0.5, high=1.0)
    amplitude = kept * spread * order.pow(-decline)  # (B, HARMONICS)
    amplitude = amplitude * (2.0 / amplitude.square().sum(1, keepdim=True)).sqrt()
    phase = draws.uniform(count, HARMONICS, high=2 * math.pi)
    season = torch.zeros_like(angle)
    for number in range(HARMONICS):
        wave = torch.sin(angle * (number + 1) + phase[:, number, None])
        season = torch.addcmul(season, wave, amplitude[:, number, None])
    return season


def several_seasons(draws: Draws, count: int, length: int) -> Tensor:
    """One to three seasons of different periods and weights."""
    number = draws.integers(count, 1, high=MOST_SEASONS) + 1
    total = harmonics(draws, count, length, draws.periods(count))
    for place in range(1, MOST_SEASONS):
        weight = draws.uniform(count, 1, low=0.2, high=1.0) * (place < number)
        total = torch.addcmul(total, weight, harmonics(draws, count, length, draws.periods(count)))
    return total


@SOURCES.register("seasons")
def seasons(draws: Draws, count: int, length: int) -> Tensor:
    """One to three seasons whose amplitude may drift, on a trend in half of the series, with noise."""
    total = several_seasons(draws, count, length)
    drift = 0.5 * standardise(any_trend(draws, count, length)) * draws.coin(count, 1, probability=0.3)
    trend = standardise(any_trend(draws, count, length)) * draws.uniform(count, 1, high=2.0)
    trend = trend * draws.coin(count, 1, probability=0.5)
    return total * (1 + drift) + trend + some_noise(draws, count, length)


@SOURCES.register("multiplicative")
def multiplicative(draws: Draws, count: int, length: int) -> Tensor:
    """A positive level times seasons times noise: the spread grows with the level."""
    level = standardise(any_trend(draws, count, length)) * draws.uniform(count, 1, low=0.1, high=1.0)
    season = several_seasons(draws, count, length) * draws.uniform(count, 1, low=0.1, high=0.6)
    noise = draws.log_uniform(count, 1, low=0.01, high=0.3) * draws.normal(count, length)
    return (level + season + noise).exp()


@SOURCES.register("pulses")
def pulses(draws: Draws, count: int, length: int) -> Tensor:
    """A bump or a rectangle once per period, and rest between."""
    phase, _ = phase_of(draws, count, length, draws.periods(count))
    width = draws.log_uniform(count, 1, low=0.05, high=0.5)
    rectangle = (phase < width).float()
    bump = torch.exp(-0.5 * ((phase - 0.5) / (0.4 * width)).square())
    pulse = torch.where(draws.coin(count, 1, probability=0.5), rectangle, bump)
    return standardise(pulse) + some_noise(draws, count, length)


@SOURCES.register("sawtooth")
def sawtooth(draws: Draws, count: int, length: int) -> Tensor:
    """A line up and a line down per period; the turn may be at its end, as of a stock that is filled at once."""
    phase, _ = phase_of(draws, count, length, draws.periods(count))
    turn = draws.uniform(count, 1, low=0.02, high=0.98)
    turn = torch.where(draws.coin(count, 1, probability=0.5), 0.98, turn)
    tooth = torch.minimum(phase / turn, (1 - phase) / (1 - turn))
    direction = torch.where(draws.coin(count, 1, probability=0.5), 1.0, -1.0)
    return standardise(tooth) * direction + some_noise(draws, count, length)


@SOURCES.register("spikes")
def spikes(draws: Draws, count: int, length: int) -> Tensor:
    """Spikes with a rise, a plateau and a fall, once per period; some are left out, and heights differ."""
    phase, cycle = phase_of(draws, count, length, draws.periods(count))
    width = draws.log_uniform(count, 1, low=0.03, high=0.3)
    plateau = draws.uniform(count, 1, low=0.1, high=0.9)
    distance = (phase - 0.5).abs() / (width / 2)
    shape = ((1 - distance) / (1 - plateau)).clamp(0.0, 1.0)
    cycles = length // 4 + 3
    left_out = draws.coin(count, cycles, probability=draws.uniform(count, 1, high=0.3))
    variation = draws.uniform(count, 1, high=0.5) * draws.normal(count, cycles)
    height = torch.where(left_out, 0.0, variation.exp())
    direction = torch.where(draws.coin(count, 1, probability=0.8), 1.0, -1.0)
    return direction * shape * height.gather(1, cycle) + 0.2 * some_noise(draws, count, length)


def _table(draws: Draws, count: int, entries: int, place: Tensor) -> Tensor:
    """A random value per hour, weekday or month, of random weight."""
    values = draws.normal(count, entries) * draws.uniform(count, 1)
    return values.gather(1, place.long() % entries)


def calendar_pattern(draws: Draws, count: int, length: int, steps_per_day: Tensor) -> Tensor:
    """Sums of a value per hour, weekday and month (B, L); patterns shorter than a step are left out."""
    day = draws.uniform(count, 1, high=4 * DAYS_PER_YEAR) + steps_of(draws, length) / steps_per_day
    hours = _table(draws, count, HOURS_PER_DAY, (day * HOURS_PER_DAY).floor())
    weekdays = _table(draws, count, DAYS_PER_WEEK, day.floor())
    months = _table(draws, count, MONTHS_PER_YEAR, (day * MONTHS_PER_YEAR / DAYS_PER_YEAR).floor())
    return months + weekdays * (steps_per_day >= 1.0) + hours * (steps_per_day > 1.0)


@SOURCES.register("calendar")
def calendar(draws: Draws, count: int, length: int) -> Tensor:
    """Patterns of the hour, the weekday and the month, added or multiplied, at a sampling rate of practice."""
    pattern = calendar_pattern(draws, count, length, draws.pick(draws.rate.steps_per_day, count, 1))
    is_product = draws.coin(count, 1, probability=0.5)
    pattern = torch.where(is_product, (0.5 * pattern).exp(), pattern)
    trend = standardise(any_trend(draws, count, length)) * draws.uniform(count, 1)
    return pattern + trend + some_noise(draws, count, length)
