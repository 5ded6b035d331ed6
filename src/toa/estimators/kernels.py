"""Features of labelled series: convolutional kernels (MultiRocket and Hydra, by aeon) and simple statistics.

    kernels, features = KernelFeatures.fit(align_cases(cases, length), seed=2024)
    kernels.transform(align_cases(others, length))                                  # (n, P)

Alphabet: n cases, C channels, L steps, P features.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from toa._checks import check_shape
from toa.data.panel import Values

Series = Float32[np.ndarray, "n c length"]
Features = Float32[np.ndarray, "n p"]

STATISTICS_PER_CHANNEL = 8
# fewest steps that the kernels and their differences need
_LEAST_STEPS = 10
# kernels of MultiRocket and groups of Hydra; with more cases than `_FEW_CASES`, a linear model needs fewer features
_FULL, _REDUCED, _FEW_CASES = (6_250, 64), (500, 16), 3_000
# cases that are transformed together
_BLOCK = 256
# numbers that describe the kernels in a file, and the largest difference that rounding causes
_DIGEST, _ROUNDING = 64, 1e-2
# numba's threads and the generators that aeon seeds belong to the process
_PROCESS = threading.RLock()


def align_cases(cases: Sequence[Values], length: int) -> Series:
    """Cases (l, C) as one array; those of another length are stretched to it, at least to ten steps."""
    steps = max(length, _LEAST_STEPS)
    aligned = np.empty((len(cases), cases[0].shape[1], steps), dtype=np.float32)
    for row, case in zip(aligned, cases, strict=True):
        if len(case) == steps:
            row[:] = case.T
        else:
            places = np.linspace(0.0, len(case) - 1.0, steps)
            row[:] = [np.interp(places, np.arange(len(case)), channel) for channel in case.T]
    return aligned


def statistics(series: Series) -> Features:
    """Mean, spread, extremes, quartiles, slope and roughness of each channel (n, 8 * C)."""
    steps = np.linspace(-1.0, 1.0, series.shape[2], dtype=np.float32)
    parts = [series.mean(2), series.std(2), series.min(2), series.max(2), *np.quantile(series, (0.25, 0.75), axis=2)]
    parts += [series @ steps / (steps @ steps), np.abs(np.diff(series, axis=2)).mean(2)]
    return np.concatenate(parts, axis=1).astype(np.float32)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class KernelFeatures:
    """MultiRocket and Hydra features, standardised.

    A file holds the seed, the biases of MultiRocket, which depend on the training cases, and the scale of the features.
    The kernels are drawn again from the seed. A digest of the features of two sine waves proves that they are the same.

    Attributes:
        shape: Channels C and steps L.
        sizes: Kernels of MultiRocket and groups of Hydra.
        seed: Seed of the kernels.
        biases: Biases of MultiRocket for the series and for its differences.
        mean: Mean of each feature (P,).
        scale: Scale of each feature (P,).
        transforms: MultiRocket and Hydra of aeon.
    """

    shape: tuple[int, int]
    sizes: tuple[int, int]
    seed: int
    biases: tuple[np.ndarray, np.ndarray]
    mean: Float32[np.ndarray, " p"]
    scale: Float32[np.ndarray, " p"]
    transforms: tuple[Any, Any]

    @classmethod
    def fit(cls, series: Series, *, seed: int) -> tuple["KernelFeatures", Features]:
        """Draw kernels, and return their standardised features of these series too."""
        sizes = _FULL if len(series) <= _FEW_CASES else _REDUCED
        with _own_state():
            transforms = _draw(series, sizes, seed)
            features = _apply(transforms, series)
        mean = features.mean(0)
        # counts of Hydra that are mostly zero have little weight
        scale = features.std(0) + (features == 0).mean(0, dtype=np.float32) ** 4 + 1e-6
        rocket = transforms[0]
        made = cls(
            shape=series.shape[1:],
            sizes=sizes,
            seed=seed,
            biases=(rocket.parameter[-1], rocket.parameter1[-1]),
            mean=mean,
            scale=scale,
            transforms=transforms,
        )
        features -= mean
        features /= scale
        return made, features

    def transform(self, series: Series) -> Features:
        """Standardised features (n, P)."""
        with _own_state():
            return (_apply(self.transforms, series) - self.mean) / self.scale

    def check(self, channels: int, length: int) -> None:
        """Raise ValueError unless the kernels belong to such cases."""
        if self.shape != (channels, max(length, _LEAST_STEPS)):
            raise ValueError(f"kernels must fit {channels} channels and {length} steps, got {self.shape}")

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON values to save."""
        arrays = {"mean": self.mean, "scale": self.scale, "digest": _digest(self.transforms, self.shape)}
        arrays |= {"biases.series": self.biases[0], "biases.differences": self.biases[1]}
        tensors = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in arrays.items()}
        return tensors, {"shape": list(self.shape), "sizes": list(self.sizes), "seed": self.seed}

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> "KernelFeatures":
        """From the result of `state`.

        Raises:
            ValueError: If a tensor has another shape, or this version of aeon draws other kernels.
        """
        (channels, steps), sizes, seed = facts["shape"], tuple(facts["sizes"]), facts["seed"]
        if sizes not in (_FULL, _REDUCED) or steps < _LEAST_STEPS:
            raise ValueError(f"kernels must have sizes {_FULL} or {_REDUCED}, got {sizes} for {steps} steps.")
        with _own_state():
            transforms = _draw(np.zeros((2, channels, steps), dtype=np.float32), sizes, seed)
            rocket = transforms[0]
            drawn = rocket.parameter, rocket.parameter1
            biases = tuple(tensors[f"biases.{name}"] for name in ("series", "differences"))
            for own, stored in zip(drawn, biases, strict=True):
                check_shape("biases", stored, "(B,)", own[-1].shape)
            kept = [stored.numpy().astype(np.float32) for stored in biases]
            rocket.parameter, rocket.parameter1 = (
                (*own[:-1], bias.astype(own[-1].dtype)) for own, bias in zip(drawn, kept, strict=True)
            )
            digest = _digest(transforms, (channels, steps))
        count = len(tensors["mean"])
        for name in ("mean", "scale"):
            check_shape(name, tensors[name], "(P,)", (count,))
        check_shape("digest", tensors["digest"], "(D,)", digest.shape)
        if not np.allclose(digest, tensors["digest"].numpy(), rtol=_ROUNDING, atol=_ROUNDING):
            raise ValueError("its kernels differ from those that this version of aeon draws")
        return cls(
            shape=(channels, steps),
            sizes=sizes,
            seed=seed,
            biases=(kept[0], kept[1]),
            mean=tensors["mean"].numpy(),
            scale=tensors["scale"].numpy(),
            transforms=transforms,
        )


def _draw(series: Series, sizes: tuple[int, int], seed: int) -> tuple[Any, Any]:
    """MultiRocket and Hydra with kernels from the seed; only the biases of MultiRocket depend on the series."""
    # imported on use: aeon takes seconds to import
    from aeon.transformations.collection.convolution_based import HydraTransformer, MultiRocket

    jobs, seed, series = torch.get_num_threads(), seed % 2**31, _several_channels(series)
    rocket = MultiRocket(n_kernels=sizes[0], n_jobs=jobs, random_state=seed).fit(series)
    hydra = HydraTransformer(n_groups=sizes[1], n_jobs=jobs, random_state=seed, output_type="numpy").fit(series)
    return rocket, hydra


def _apply(transforms: tuple[Any, Any], series: Series) -> Features:
    """Features before standardising, block by block."""
    rocket, hydra = transforms
    blocks = []
    for start in range(0, len(series), _BLOCK):
        block = _several_channels(series[start : start + _BLOCK])
        counts = np.sqrt(np.maximum(hydra.transform(block), 0.0))
        blocks.append(np.concatenate((rocket.transform(block), counts), axis=1).astype(np.float32))
    return np.concatenate(blocks)


def _several_channels(series: Series) -> Series:
    """A single channel twice: aeon has other functions for one channel, which would have to be compiled too."""
    return np.repeat(series, 2, axis=1) if series.shape[1] == 1 else series


def _digest(transforms: tuple[Any, Any], shape: tuple[int, int]) -> Float32[np.ndarray, " d"]:
    """Means of groups of features of two sine waves."""
    channels, steps = shape
    phase = np.arange(channels)[:, None] + np.linspace(0.0, 20.0, steps)
    with _own_state():
        features = _apply(transforms, np.sin(np.stack((phase, 2.5 * phase))).astype(np.float32))
    scaled = features / (1.0 + np.abs(features))
    return np.stack([part.mean() for part in np.array_split(scaled.ravel(), _DIGEST)]).astype(np.float32)


@contextmanager
def _own_state() -> Iterator[None]:
    """Restore the generators and the number of threads that aeon changes; other threads wait."""
    with _PROCESS, torch.random.fork_rng(devices=[]):
        state, threads = np.random.get_state(), torch.get_num_threads()  # noqa: NPY002  aeon seeds the global one
        try:
            yield
        finally:
            np.random.set_state(state)  # noqa: NPY002
            torch.set_num_threads(threads)
