"""Normalisation of a series over time, by one kernel.

Alphabet: B batch, L length, C channels.
"""

import torch
from torch import Tensor

from toa.ops._backend import runs_kernels

# a series of some channels is held whole
MAX_LENGTH = 1024
_COLUMNS = 16


def takes_series(series: Tensor) -> bool:
    """Whether `series_norm` takes a series (B, L, C): one that kernels run on and that needs no gradient."""
    fits = series.dtype == torch.float32 and 0 < series.shape[1] <= MAX_LENGTH and series.numel() > 0
    return fits and runs_kernels(series) and not (series.requires_grad and torch.is_grad_enabled())


def series_norm(series: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """(x - mean) / sqrt(var + eps) over time, with mean and standard deviation, each (B, 1, C).

    Values of a channel lie one after another in what comes out, (B, L, C) like the series: every model here goes on
    with channels.
    """
    out, mean, std = _series_norm(series, eps)
    return out.mT, mean, std


@torch.library.custom_op("toa::series_norm", mutates_args=())
def _series_norm(series: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    # importing the kernels imports Triton
    import triton

    from toa.ops import row_kernels

    batch, length, channels = series.shape
    results = _empty_results(series)
    columns = min(_COLUMNS, triton.next_power_of_2(channels))
    # Triton launches on the current device, wherever the tensors are
    with torch.cuda.device_of(series):
        row_kernels.series_norm_kernel[(batch, triton.cdiv(channels, columns))](
            *(series, *results),
            *(*series.stride(), length, channels, eps),
            LENGTH=triton.next_power_of_2(length),
            COLUMNS=columns,
            num_warps=4,
        )
    return results


@_series_norm.register_fake
def _(series: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_results(series)


def _empty_results(series: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    batch, length, channels = series.shape
    mean, std = (series.new_empty(batch, 1, channels) for _ in range(2))
    return series.new_empty(batch, channels, length), mean, std
