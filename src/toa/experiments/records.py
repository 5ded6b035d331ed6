"""One JSON record a run: what was run, on what, with what, and what came out."""

import hashlib
import json
import platform
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import toa
from toa._config import hashed_values
from toa._files import write_atomically
from toa.nn import Attention

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = dict[str, Any]


def config_hash(config: "DataclassInstance") -> str:
    """The first 16 hexadecimal digits of the SHA-256 of a config as canonical JSON.

    Fields that were added later are left out at their default: a config from before keeps its hash.
    """
    text = json.dumps(hashed_values(config), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def make_record(
    task: str,
    name: str,
    config: "DataclassInstance",
    *,
    seed: int,
    tf32: bool,
    data_checksum: str,
    model: nn.Module,
    wall_s: float,
    metrics: Mapping[str, float],
    command: Sequence[str],
) -> Record:
    """Assemble a record of a model where it was trained; peak memory is in bytes, None where it is not measured."""
    device = next(model.parameters()).device
    on_cuda = device.type == "cuda"
    return {
        "task": task,
        "name": name,
        # as a file gives it back: tuples become lists
        "config": json.loads(json.dumps(asdict(config))),
        "config_hash": config_hash(config),
        "seed": seed,
        "data_checksum": data_checksum,
        "metrics": dict(metrics),
        "wall_s": round(wall_s, 2),
        "peak_memory": torch.cuda.max_memory_allocated(device) if on_cuda else None,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "backend": next((m.chosen_backend() for m in model.modules() if isinstance(m, Attention)), None),
        "tf32": tf32 and on_cuda,
        **provenance(device, command),
    }


def provenance(device: torch.device, command: Sequence[str]) -> Record:
    """Where numbers come from: device, versions, commit and command."""
    return {
        "device": device_name(device),
        "versions": {"toa": toa.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "commit": _commit(),
        "command": shlex.join(command),
    }


def write_record(path: Path, record: Record) -> None:
    """Write a record whole or not at all."""
    write_atomically(path, (json.dumps(record, indent=2, sort_keys=True) + "\n").encode())


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write records, one a line, whole or not at all."""
    lines = (json.dumps(record, sort_keys=True, separators=(",", ":")) + "\n" for record in records)
    write_atomically(path, "".join(lines).encode())


def read_record(path: Path) -> Record:
    """Read a record.

    Raises:
        ValueError: If the file is not one.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} must be a record of toa, got a file that is not ({error!r}); delete it.") from error
    return check_record(content, str(path))


def check_record(content: object, where: str) -> Record:
    """A record as it was read, if it is one.

    Raises:
        ValueError: If it is none.
    """
    record: Any = content
    try:
        metrics = {str(name): float(value) for name, value in record["metrics"].items()}
        return {**record, "metrics": metrics, "config_hash": str(record["config_hash"])}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{where} must be a record of toa, got something else ({error!r}); delete it.") from error


def device_name(device: torch.device) -> str:
    """What the device calls itself."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({platform.machine()}, {torch.get_num_threads()} threads)"


def _commit() -> str | None:
    """The commit of a checkout, with a mark if it was changed since; None outside of one."""
    try:
        result = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None
