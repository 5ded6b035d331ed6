"""Where the values of a series live: on the training device, or in a file that is mapped into memory."""

import hashlib
import os
import tempfile
from pathlib import Path

import numpy as np
import pooch
import torch
from jaxtyping import Float
from torch import Tensor

from toa._checks import check_at_least

# every benchmark series fits many times over; PEMS07, the widest, takes 0.1 GiB
DEFAULT_BUDGET = 2 << 30
_CHUNK_BYTES = 16 << 20


def place_series(
    values: Float[np.ndarray, "t c"],
    *,
    device: str | torch.device = "cpu",
    budget_bytes: int = DEFAULT_BUDGET,
    cache_dir: str | Path | None = None,
) -> Tensor | np.memmap:
    """Float32 values (T, C) on `device` if they take at most `budget_bytes` there, else as a memory-mapped file."""
    check_at_least("budget_bytes", budget_bytes, 0)
    if values.ndim != 2:
        raise ValueError(f"values must have 2 axes (T, C), got shape {values.shape}.")
    if values.size * 4 <= budget_bytes:
        # a copy of its own: no writer elsewhere can change it
        return torch.from_numpy(np.array(values, dtype=np.float32, order="C")).to(device)
    return write_mapped(values, cache_dir)


def write_mapped(values: Float[np.ndarray, "t c"], cache_dir: str | Path | None = None) -> np.memmap:
    """Write values (T, C) as float32 under the name of their sha256, whole or not at all, and map them read-only.

    Such files lie in `cache_dir`, by default a folder in the user's cache.
    """
    folder = Path(pooch.os_cache("toa")) / "series" if cache_dir is None else Path(cache_dir)
    folder.mkdir(parents=True, exist_ok=True)
    rows, channels = values.shape
    digest = hashlib.sha256(f"{rows}x{channels}".encode())
    step = max(1, _CHUNK_BYTES // (4 * max(1, channels)))
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".part", delete=False) as file:
        try:
            header = {"descr": "<f4", "fortran_order": False, "shape": (rows, channels)}
            np.lib.format.write_array_header_1_0(file, header)
            for start in range(0, rows, step):
                piece = np.ascontiguousarray(values[start : start + step], dtype="<f4").tobytes()
                digest.update(piece)
                file.write(piece)
            file.close()
            path = folder / f"{digest.hexdigest()}.npy"
            if not path.exists():
                os.replace(file.name, path)
        finally:
            # a full disk or a stopped program leaves nothing behind
            file.close()
            Path(file.name).unlink(missing_ok=True)
    return open_mapped(path)


def open_mapped(path: str | Path) -> np.memmap:
    """Map an .npy file of float32 values (T, C) read-only."""
    mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(mapped, np.memmap) or mapped.dtype != np.float32 or mapped.ndim != 2:
        raise ValueError(
            f"{path} must be an .npy file of float32 (T, C), got {mapped.dtype} of shape {mapped.shape}; "
            "make it with toa.data.write_mapped."
        )
    return mapped
