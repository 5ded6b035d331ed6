"""Features of labelled series: convolutional kernels (MultiRocket and Hydra, by aeon) and simple features.

    series = align_cases(cases, length)                              # (n, C, L)
    kernels, features = KernelFeatures.fit(series, FULL, seed=2024)
    kernels.transform(series)                                        # (n, P)
    FEATURES["statistics"](series)                                   # (n, P)

Alphabet: n cases, C channels, L steps, P features.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from toa._checks import ArgumentError, check_shape
from toa.data.panel import Values

# cases of one length
CaseArray = Float32[np.ndarray, "n c length"]
Features = Float32[np.ndarray, "n p"]

# fewest steps that the kernels and their differences need
_LEAST_STEPS = 10
# fewest kernels that MultiRocket has
_LEAST_KERNELS = 84
# with more cases, a linear model needs fewer features
_FEW_CASES = 3_000
# fewest steps of a part that has statistics of its own
_LEAST_PART = 4
# parts of a channel that have a local mean
_PARTS = 64
# bands of a spectrum
_BANDS = 16
# channels that have covariances
_COVARIANCES = 32
# added before a logarithm
_SMALL = 1e-3
# cases that are transformed together
_BLOCK = 256
# numbers that describe the kernels in a file
_DIGEST = 64
# largest difference of these numbers that rounding causes
_ROUNDING = 1e-2
# numba's threads and the generators that aeon seeds belong to the process
_PROCESS = threading.RLock()


class KernelSizes(NamedTuple):
    """Kernels of MultiRocket, and groups of kernels of Hydra."""

    kernels: int
    groups: int

    def reduced(self) -> "KernelSizes":
        """For many cases or values: 2 of 25 kernels, and a quarter of the groups."""
        return KernelSizes(max(_LEAST_KERNELS, 2 * self.kernels // 25), max(1, self.groups // 4))


# the most that a classifier has
FULL = KernelSizes(kernels=6_250, groups=64)
# the fewest
_LEAST = KernelSizes(kernels=_LEAST_KERNELS, groups=1)


def align_cases(cases: Sequence[Values], length: int, *, pad: bool = False) -> CaseArray:
    """Cases (l, C) as one array; shorter ones get zeros behind, or are stretched, and all to at least ten steps."""
    steps = max(length, _LEAST_STEPS)
    aligned = np.empty((len(cases), cases[0].shape[1], steps), dtype=np.float32)
    for row, case in zip(aligned, cases, strict=True):
        whole = np.pad(case, ((0, length - len(case)), (0, 0))) if pad else case
        if len(whole) == steps:
            row[:] = whole.T
        else:
            places = np.linspace(0.0, len(whole) - 1.0, steps)
            row[:] = [np.interp(places, np.arange(len(whole)), channel) for channel in whole.T]
    return aligned


def statistics(series: CaseArray, parts: int = 1) -> Features:
    """Mean, spread, extremes, quartiles, slope and roughness of each channel, in 1, 2, 4, … up to `parts` parts."""
    columns = []
    for part in np.array_split(series, min(parts, series.shape[2] // _LEAST_PART), axis=2):
        steps = np.linspace(-1.0, 1.0, part.shape[2], dtype=np.float32)
        columns += [part.mean(2), part.std(2), part.min(2), part.max(2), *np.quantile(part, (0.25, 0.75), axis=2)]
        columns += [part @ steps / (steps @ steps), np.abs(np.diff(part, axis=2)).mean(2)]
    features = np.concatenate(columns, axis=1).astype(np.float32)
    return features if parts == 1 else np.concatenate((statistics(series, parts // 2), features), axis=1)


def local_means(series: CaseArray) -> Features:
    """Means of up to 64 parts of each channel."""
    parts = np.array_split(series, min(_PARTS, series.shape[2]), axis=2)
    return np.concatenate([part.mean(2) for part in parts], axis=1)


def spectrum(series: CaseArray) -> Features:
    """Logarithm of the amplitude in up to 16 bands of each channel, whose widths grow with the frequency."""
    amplitude = np.abs(np.fft.rfft(series, axis=2))[:, :, 1:]
    edges = np.unique(np.geomspace(1, amplitude.shape[2] + 1, _BANDS + 1).astype(int)) - 1
    bands = [np.log(amplitude[:, :, low:high].mean(2) + _SMALL) for low, high in pairwise(edges)]
    return np.concatenate(bands, axis=1).astype(np.float32)


def covariances(series: CaseArray) -> Features:
    """Matrix logarithm of the covariance of up to 32 channels, upper triangle."""
    centred = torch.from_numpy(series[:, :_COVARIANCES]).double()
    centred = centred - centred.mean(2, keepdim=True)
    matrix = centred @ centred.mT / centred.shape[2]  # (n, C, C)
    level = matrix.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] + _SMALL
    values, vectors = torch.linalg.eigh(matrix + _SMALL * level * torch.eye(matrix.shape[1]))
    logarithm = (vectors * values.clamp(min=1e-12).log()[:, None]) @ vectors.mT
    row, column = torch.triu_indices(matrix.shape[1], matrix.shape[1])
    return logarithm[:, row, column].float().numpy()


# each is the base of a linear classifier
FEATURES: Mapping[str, Callable[[CaseArray], Features]] = {
    "statistics": statistics,
    "statistics of quarters": partial(statistics, parts=4),
    "statistics of eighths": partial(statistics, parts=8),
    "values": local_means,
    "spectrum": spectrum,
    "covariances": covariances,
}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class KernelFeatures:
    """MultiRocket and Hydra features.

    A file holds the seed and the biases of MultiRocket, which depend on the training cases. The kernels are drawn again
    from the seed. A digest of the features of two sine waves proves that they are the same.

    Attributes:
        shape: Channels C and steps L.
        rocket: The fitted MultiRocket of aeon.
        hydra: The fitted Hydra of aeon.
    """

    shape: tuple[int, int]
    sizes: KernelSizes
    seed: int
    rocket: Any
    hydra: Any

    @classmethod
    def fit(
        cls,
        series: CaseArray,
        sizes: KernelSizes,
        *,
        seed: int,
        most_values: int | None = None,
        most_cases: int = _FEW_CASES,
    ) -> tuple["KernelFeatures", Features]:
        """Draw kernels, and return their features of these series too; fewer kernels for more cases or values."""
        is_large = len(series) > most_cases or (most_values is not None and series.size > most_values)
        compile_kernels()
        with _process_state_kept():
            drawn = _draw(series, sizes.reduced() if is_large else sizes, seed)
            return drawn, drawn.transform(series)

    def transform(self, series: CaseArray) -> Features:
        """Features (n, P), block by block."""
        blocks = []
        with _process_state_kept():
            for start in range(0, len(series), _BLOCK):
                block = _several_channels(series[start : start + _BLOCK])
                counts = np.sqrt(np.maximum(self.hydra.transform(block), 0.0))
                blocks.append(np.concatenate((self.rocket.transform(block), counts), axis=1).astype(np.float32))
        return np.concatenate(blocks)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON values to save."""
        arrays = {"digest": self._digest(), "biases.series": self.rocket.parameter[-1]}
        arrays["biases.differences"] = self.rocket.parameter1[-1]
        tensors = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in arrays.items()}
        return tensors, {"shape": list(self.shape), "sizes": list(self.sizes), "seed": self.seed}

    @classmethod
    def from_state(
        cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], channels: int, steps: int
    ) -> "KernelFeatures":
        """From the result of `state`, for cases of this shape.

        Raises:
            ValueError: If the state is one of another shape, or this version of aeon draws other kernels.
        """
        sizes = KernelSizes(*facts["sizes"])
        fits = all(
            type(size) is int and least <= size <= most for least, size, most in zip(_LEAST, sizes, FULL, strict=True)
        )
        if not fits or facts["shape"] != [channels, steps]:
            raise ArgumentError(
                "kernels",
                f"have sizes from {tuple(_LEAST)} to {tuple(FULL)} for {channels} channels and {steps} steps",
                f"{tuple(sizes)} for {facts['shape']}",
            )
        drawn = _draw(np.zeros((2, channels, steps), dtype=np.float32), sizes, facts["seed"])
        for name, attribute in (("series", "parameter"), ("differences", "parameter1")):
            stored = tensors[f"biases.{name}"]
            *others, biases = getattr(drawn.rocket, attribute)
            check_shape("biases", stored, "(B,)", biases.shape)
            setattr(drawn.rocket, attribute, (*others, stored.numpy().astype(biases.dtype)))
        digest = drawn._digest()
        check_shape("digest", tensors["digest"], "(D,)", digest.shape)
        if not np.allclose(digest, tensors["digest"].numpy(), rtol=_ROUNDING, atol=_ROUNDING):
            raise ValueError("its kernels differ from those that this version of aeon draws")
        return drawn

    def _digest(self) -> Float32[np.ndarray, " d"]:
        """Means of groups of features of two sine waves."""
        channels, steps = self.shape
        phase = np.arange(channels)[:, None] + np.linspace(0.0, 20.0, steps)
        features = self.transform(np.sin(np.stack((phase, 2.5 * phase))).astype(np.float32))
        scaled = features / (1.0 + np.abs(features))
        return np.stack([part.mean() for part in np.array_split(scaled.ravel(), _DIGEST)]).astype(np.float32)


@cache
def compile_kernels() -> None:
    """Compile the kernels, which takes a minute when the machine first uses them; later calls return at once."""
    zeros = np.zeros((2, 2, _LEAST_STEPS), dtype=np.float32)
    _draw(zeros, FULL.reduced(), 0).transform(zeros)


def _draw(series: CaseArray, sizes: KernelSizes, seed: int) -> KernelFeatures:
    """Kernels from the seed; only the biases of MultiRocket depend on the series."""
    # imported on use: aeon takes seconds to import
    from aeon.transformations.collection.convolution_based import HydraTransformer, MultiRocket

    with _process_state_kept():
        options = {"n_jobs": torch.get_num_threads(), "random_state": seed % 2**31}
        cases = _several_channels(series)
        rocket = MultiRocket(n_kernels=sizes.kernels, **options).fit(cases)
        hydra = HydraTransformer(n_groups=sizes.groups, output_type="numpy", **options).fit(cases)
    return KernelFeatures(shape=series.shape[1:], sizes=sizes, seed=seed, rocket=rocket, hydra=hydra)


def _several_channels(series: CaseArray) -> CaseArray:
    """A single channel twice: aeon has other functions for one channel, which would have to be compiled too."""
    return np.repeat(series, 2, axis=1) if series.shape[1] == 1 else series


@contextmanager
def _process_state_kept() -> Iterator[None]:
    """Restore the generators and the number of threads that aeon changes; other threads wait."""
    with _PROCESS, torch.random.fork_rng(devices=[]):
        state = np.random.get_state()  # noqa: NPY002  aeon seeds the global one
        threads = torch.get_num_threads()
        try:
            yield
        finally:
            np.random.set_state(state)  # noqa: NPY002
            torch.set_num_threads(threads)
