"""Devices by name, TF32 rounding, and deterministic mode."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def resolve_device(name: str) -> torch.device:
    """Find a device by name; "auto" is CUDA if available, else the CPU.

    Raises:
        ValueError: If the name is unknown or the device is missing.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or (index and not (kind == "cuda" and index.isdecimal())) or name.endswith(":"):
        raise ValueError(f"device must be auto, cpu, cuda or cuda:N, got {name!r}.")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {name!r} must be present, got a machine without CUDA; use --device cpu.")
    if index and int(index) >= torch.cuda.device_count():
        raise ValueError(f"device {name!r} must be present, got {torch.cuda.device_count()} CUDA devices.")
    return torch.device(name)


@contextmanager
def allow_tf32(allowed: bool, device: torch.device) -> Iterator[None]:
    """Set whether CUDA rounds factors of float32 products to TF32, inside the context; other devices never do."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if allowed and device.type == "cuda" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """If wanted, raise an error on nondeterministic operations inside the context."""
    before = torch.are_deterministic_algorithms_enabled()
    if wanted:
        # cuBLAS reads it at its start
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
