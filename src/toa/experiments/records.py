"""The record of a run: JSON with config, data, versions and metrics."""

import hashlib
import json
import platform
import shlex
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch

import toa
from toa._checks import Argument, ArgumentError, MissingFileError
from toa._files import parse_json, read_text, seal, unseal, write_atomically
from toa._limits import shorten
from toa.nn import Attention
from toa.nn.registry import ADDED_LATER
from toa.training.base import Evaluation
from toa.training.base import Record as Record

# file of the record in the folder of a run
RECORD = "record.json"


def hashed_values(value: Any) -> Any:
    """Return a config as plain values, without fields added later that have their default value."""
    if not is_dataclass(value):
        return value
    pairs = ((f, getattr(value, f.name)) for f in fields(value))
    return {f.name: hashed_values(v) for f, v in pairs if not (f.metadata == ADDED_LATER and v == f.default)}


def config_hash(config: Any) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of a config, or of its plain values, as canonical JSON.

    Fields that were added later are left out at their default: a config from before keeps its hash.
    """
    text = json.dumps(hashed_values(config), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def make_record(config: Any, result: Evaluation, command: Sequence[str]) -> Record:
    """Assemble the record of a run; peak memory is in bytes, None if it was not measured."""
    record = {
        "task": config.task,
        "name": config.name,
        # as read from a file: tuples become lists
        "config": json.loads(json.dumps(hashed_values(config))),
        "config_hash": config_hash(config),
        "data_checksum": result.data_checksum,
        "metrics": dict(result.metrics),
        "wall_s": round(result.seconds, 2),
        **provenance(result.device, command, result.facts.get("threads")),
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
    return record | result.facts


def provenance(device: torch.device, command: Sequence[str], threads: int | None = None) -> Record:
    """Device, versions, commit and command; `threads` is the number that a run used, None for the current one.

    Of an absolute path after --out only the file name is recorded: folders of one machine tell others nothing.
    """
    name = f"{device.type} ({platform.machine()}, {threads or torch.get_num_threads()} threads)"
    words: list[str] = []
    for word in command:
        option, mark, path = word.partition("=") if word.startswith("--out=") else ("", "", word)
        own = mark or words[-1:] == ["--out"]
        words.append(f"{option}{mark}{Path(path).name}" if own and Path(path).is_absolute() else word)
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else name,
        "versions": {"toa": toa.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "commit": checkout_commit(),
        "command": shlex.join(words),
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


_NO_RECORD = "name a record.json, a .jsonl file or a folder of runs; if it is a damaged record, delete it"


def read_record(path: Path) -> Record:
    """Read a record."""
    try:
        content = parse_json(read_text(path), str(path))
    except ValueError as error:
        raise ArgumentError(path, "be a record of toa", f"a file that is not ({error})", _NO_RECORD) from error
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
        raise ArgumentError(where, "be a record of toa", f"something else ({shorten(error)})", _NO_RECORD) from error


def read_records(paths: Iterable[Path]) -> list[Record]:
    """Read record.json and .jsonl files, or all of them below folders; every one must be valid."""
    paths = list(paths)
    records: list[Record] = []
    for path in paths:
        check_results_exist(path)
        for file in sorted([*path.rglob(RECORD), *path.rglob("*.jsonl")]) if path.is_dir() else [path]:
            if file.suffix == ".jsonl":
                for line, text in enumerate(read_text(file).splitlines(), 1):
                    where = name_line(file, line)
                    records.append(check_record(parse_json(text, where), where))
            else:
                records.append(read_record(file))
    if not records:
        raise ArgumentError(
            "results", "contain records", f"none in {', '.join(map(str, paths))}", "run `toa run` first"
        )
    return records


def check_results_exist(path: Path) -> None:
    """Raise FileNotFoundError for a path of results that does not exist."""
    if not path.exists():
        raise MissingFileError(Argument("results"), f" must be files or folders, got {path}, which does not exist.")


def name_line(path: Path, line: int) -> str:
    """File and line, for messages; line 0 means the complete file."""
    return f"line {line} of {path}" if line else str(path)


def checkout_commit() -> str | None:
    """Commit of the checkout of toa, with a mark if it has changes; None outside of one."""
    outputs = []
    for words in (
        ("ls-files", "--full-name", "--error-unmatch", __file__),
        ("describe", "--always", "--dirty", "--abbrev=12"),
    ):
        command = ["git", *words]
        folder = Path(__file__).parent
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        outputs.append(done.stdout.strip())
    own_file, commit = outputs
    # installed inside another project, git would describe that project
    if own_file != f"src/toa/experiments/{Path(__file__).name}":
        return None
    return commit or None
