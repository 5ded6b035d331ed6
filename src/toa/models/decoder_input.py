"""What a decoder that forecasts in one pass starts from: the end of the past, and room for the steps to come."""

import torch
from torch import Tensor

from toa._checks import check_at_least


def check_label_len(label_len: int, lookback: int) -> None:
    """Refuse a start that is longer than the past it is taken from."""
    check_at_least("label_len", label_len, 0)
    if label_len > lookback:
        raise ValueError(
            f"label_len must be at most lookback={lookback}, got {label_len}; use {lookback // 2}, for instance."
        )


def decoder_start(
    series: Tensor, marks: Tensor | None, future_marks: Tensor | None, label_len: int, horizon: int
) -> tuple[Tensor, Tensor | None]:
    """The last `label_len` steps of a series (B, L, C), `horizon` zeros after them, and the marks of both, if any."""
    unknown = series.new_zeros(series.shape[0], horizon, series.shape[2])
    known = None if marks is None or future_marks is None else last_steps(marks, label_len, future_marks)
    return last_steps(series, label_len, unknown), known


def last_steps(past: Tensor, label_len: int, rest: Tensor) -> Tensor:
    """The last `label_len` steps of (B, L, C), none for 0, and after them (B, P, C): shape (B, label_len + P, C)."""
    return torch.cat((past[:, past.shape[1] - label_len :], rest), 1)
