"""What rounding may change in the result of a kernel."""

import torch


def unit_of_rounding(dtype: torch.dtype, *, tf32: bool) -> float:
    """Relative rounding error of the factors of a product."""
    # TF32 keeps ten mantissa bits and truncates; cuBLAS runs small products without tensor cores
    return max(torch.finfo(dtype).eps, 2.0**-9 if tf32 else 0.0)


def share_past_zero(scores: int, eps: float) -> float:
    """Weighted share of scores that rounding may move past zero: eps plus three standard deviations.

    A weight is a squared gradient, the square of a product of two normal numbers, whose second moment is nine. Returns
    zero if the expected number of such scores is below one half.
    """
    mean = eps * scores
    return 0.0 if mean + 3.0 * mean**0.5 < 0.5 else (mean + 9.0 * mean**0.5) / scores
