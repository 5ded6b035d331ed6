"""Operations along time that need no loop over steps.

Alphabet: B series, L steps. All tensors are (B, L) unless a shape is given.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from toa.data.synthetic.draws import Draws

# smallest spread that a series is divided by
LEAST_SPREAD = 1e-6


def steps_of(draws: Draws, length: int) -> Tensor:
    """0, 1, …, L - 1 as floats (1, L)."""
    return torch.arange(length, device=draws.device, dtype=torch.float32).unsqueeze(0)


def standardise(series: Tensor) -> Tensor:
    """Each series with mean 0 and spread 1; a constant one becomes zero."""
    centred = series - series.mean(1, keepdim=True)
    return centred / centred.square().mean(1, keepdim=True).sqrt().clamp_min(LEAST_SPREAD)


def scan(decay: Tensor, inputs: Tensor) -> Tensor:
    """The recursion y[t] = decay[t] y[t-1] + inputs[t] with y[-1] = 0, in log2(L) passes over all steps."""
    length = inputs.shape[1]
    step = 1
    while step < length:
        # after this pass, an entry holds the last 2 * step terms of its sum
        inputs = torch.cat((inputs[:, :step], torch.addcmul(inputs[:, step:], decay[:, step:], inputs[:, :-step])), 1)
        decay = torch.cat((decay[:, :step], decay[:, step:] * decay[:, :-step]), 1)
        step *= 2
    return inputs


def hold(values: Tensor, changes: Tensor) -> Tensor:
    """At each step the value of the last step at which `changes` is true, or of step 0."""
    steps = torch.arange(values.shape[1], device=values.device)
    last = torch.where(changes, steps, 0).cummax(1).values
    return values.gather(1, last)


def seasonal_sum(series: Tensor, period: Tensor, longest: int) -> Tensor:
    """The recursion y[t] = y[t - s] + x[t] for periods s (B, 1), integers of at most `longest`."""
    count, length = series.shape
    steps = torch.arange(length, device=series.device)
    cycles = (length + period - 1) // period  # (B, 1)
    # steps of the same phase beside each other
    phase = steps % period
    place = phase * cycles + steps // period
    sorted_series = series.new_zeros(count, length + longest).scatter_(1, place, series)
    sums = F.pad(sorted_series.cumsum(1), (1, 0))
    return sums.gather(1, place + 1) - sums.gather(1, phase * cycles)


def filter_noise(response: Tensor, noise: Tensor) -> Tensor:
    """White noise (B, 2F - 2) on a circle, filtered by its response (B, F) at the frequencies of `rfft`."""
    return torch.fft.irfft(response * torch.fft.rfft(noise), n=noise.shape[1])


def phase_of(draws: Draws, count: int, length: int, period: Tensor) -> tuple[Tensor, Tensor]:
    """Position inside the period, in [0, 1), and the number of the period, from a random start."""
    turns = (steps_of(draws, length) / period) + draws.uniform(count, 1)
    cycle = turns.floor()
    return turns - cycle, cycle.long()
