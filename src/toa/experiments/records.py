"""One JSON record per run: config, data, versions and metrics."""

import hashlib
import json
import platform
import shlex
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import toa
from toa._checksums import parse_json, seal, unseal
from toa._files import write_atomically
from toa.nn import Attention
from toa.nn.registry import ADDED_LATER
from toa.tasks.base import Record as Record
from toa.tasks.base import Result, Task

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# file of the record in the folder of a run
RECORD = "record.json"


def hashed_values(value: Any) -> Any:
    """Return a config as plain values, without fields added later that have their default value."""
    if not is_dataclass(value):
        return value
    pairs = ((f, getattr(value, f.name)) for f in fields(value))
    return {f.name: hashed_values(v) for f, v in pairs if not (f.metadata == ADDED_LATER and v == f.default)}


def config_hash(config: "DataclassInstance") -> str:
    """The first 16 hexadecimal digits of the SHA-256 of a config as canonical JSON.

    Fields that were added later are left out at their default: a config from before keeps its hash.
    """
    text = json.dumps(hashed_values(config), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def make_record(task: Task, config: Any, result: Result, command: Sequence[str]) -> Record:
    """Assemble the record of a run; peak memory is in bytes, None if it was not measured."""
    record = {
        "task": config.task,
        "name": config.name,
        # as read from a file: tuples become lists
        "config": json.loads(json.dumps(hashed_values(config))),
        "config_hash": config_hash(config),
        "data_checksum": result.evaluation.data_checksum,
        "metrics": dict(result.evaluation.metrics),
        "wall_s": round(result.seconds, 2),
        **provenance(result.device, command, result.evaluation.facts.get("threads")),
    }
    if result.model is not None:
        on_cuda = result.device.type == "cuda"
        attentions = (module for module in result.model.modules() if isinstance(module, Attention))
        record |= {
            "seed": config.seed,
            "peak_memory": torch.cuda.max_memory_allocated(result.device) if on_cuda else None,
            "parameters": sum(parameter.numel() for parameter in result.model.parameters()),
            "backend": next((attention.chosen_backend() for attention in attentions), None),
            "tf32": config.tf32 and on_cuda,
        }
    return record | result.evaluation.facts


def provenance(device: torch.device, command: Sequence[str], threads: int | None = None) -> Record:
    """Device, versions, commit and command; `threads` is the number that a run used, None for the current one."""
    name = f"{device.type} ({platform.machine()}, {threads or torch.get_num_threads()} threads)"
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else name,
        "versions": {"toa": toa.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "commit": _commit(),
        "command": shlex.join(command),
    }


def write_record(path: Path, record: Record) -> None:
    """Write a record atomically."""
    write_atomically(path, (json.dumps(seal(record), indent=2, sort_keys=True) + "\n").encode())


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write records atomically, one per line."""
    write_atomically(path, "".join(map(record_line, records)).encode())


def record_line(record: Record) -> str:
    """A record as one line, with its checksum."""
    return json.dumps(seal(record), sort_keys=True, separators=(",", ":")) + "\n"


def read_record(path: Path) -> Record:
    """Read a record."""
    try:
        content = parse_json(path.read_text(encoding="utf-8"), str(path))
    except ValueError as error:
        raise ValueError(f"{path} must be a record of toa, got a file that is not ({error}); delete it.") from error
    return check_record(content, str(path))


def check_record(content: object, where: str) -> Record:
    """Check the content of a file, and return it as a record, without its checksum."""
    record: Any = content
    if isinstance(content, dict):
        record, _ = unseal(content, where)
    try:
        metrics = {str(name): float(value) for name, value in record["metrics"].items()}
        return {**record, "metrics": metrics, "config_hash": str(record["config_hash"])}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"{where} must be a record of toa, got something else ({error!r}); delete it.") from error


def _commit() -> str | None:
    """Commit of the checkout of toa, with a mark if it has changes; None outside of one."""
    folder = Path(__file__).parent
    # installed inside another project, git would describe that project
    own = _git(folder, "ls-files", "--full-name", "--error-unmatch", __file__)
    if own != f"src/toa/experiments/{Path(__file__).name}":
        return None
    return _git(folder, "describe", "--always", "--dirty", "--abbrev=12")


def _git(folder: Path, *words: str) -> str | None:
    try:
        result = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None
