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


def last_steps(past: Tensor, label_len: int, rest: Tensor) -> Tensor:
    """The last `label_len` steps of (B, L, C), none for 0, and after them (B, P, C): shape (B, label_len + P, C)."""
    return torch.cat((past[:, past.shape[1] - label_len :], rest), 1)
