"""What runs of every task share: a finished one is read, another is set up, measured and recorded."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from toa._files import check_writable
from toa.experiments.records import Record, config_hash, make_record, read_record, write_record
from toa.tasks.device import allow_tf32, deterministic, resolve_device
from toa.tasks.training import TrainingState, make_fabric

if TYPE_CHECKING:
    from lightning.fabric import Fabric

Data = TypeVar("Data")

# what every record has, and what those of trained models have besides
_FIELDS = ("task", "name", "config", "wall_s", "device", "command")
_TRAINED = ("devices", "best_epoch", "history")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Measured:
    """What a run has come to.

    Args:
        model: Trained.
        state: How training went.
        data_checksum: Of what it was trained on.
        metrics: By name.
        facts: What else the record holds.
        save: Writes what the run leaves beside its record into the run's folder.
    """

    model: nn.Module
    state: TrainingState
    data_checksum: str
    metrics: Mapping[str, float]
    facts: Record
    save: Callable[[Path], None]


def read_finished(path: Path, key: str, also: Sequence[str] = ()) -> Record:
    """The record of a run that is done.

    Args:
        path: Of the record.
        key: The config's hash.
        also: Fields that it must have besides those of every record.

    Raises:
        ValueError: If it is no record, one of another config, or of an older schema.
    """
    record = read_record(path)
    if record["config_hash"] != key:
        raise ValueError(
            f"{path} must be a record of the config {key}, got one of {record['config_hash']}; delete it, or choose "
            "another output folder."
        )
    lacking = [name for name in (*_FIELDS, *also) if name not in record]
    if lacking:
        raise ValueError(
            f"{path} must be a record of this version of toa, got an older one without {', '.join(lacking)}; move it "
            "away, and the run is done again."
        )
    return record


def carry_out(
    task: str,
    config: Any,
    folder: Path,
    *,
    device: str,
    devices: int,
    num_nodes: int,
    command: Sequence[str],
    load: Callable[[torch.device], Data],
    measure: Callable[[Data, "Fabric", Path], Measured],
) -> Record:
    """The record of a run, read if there is one.

    Args:
        task: Of the run.
        config: The run, with name, seed, precision, tf32 and deterministic.
        folder: The run's own.
        device: "auto", "cpu", "cuda" or "cuda:N".
        devices: How many devices of a machine train together.
        num_nodes: How many machines do.
        command: The command line that the record shall name.
        load: The data, on a device. What is wrong with them is said before anything is written.
        measure: Trains and measures, given the data, the fabric and the checkpoint's place.
    """
    path = folder / "record.json"
    where = resolve_device(device)
    if path.exists():
        return read_finished(path, config_hash(config), _TRAINED)
    fabric = make_fabric(where, precision=config.precision, devices=devices, num_nodes=num_nodes)
    where = fabric.device
    data = load(where)
    check_writable(folder)
    if where.type == "cuda":
        torch.cuda.reset_peak_memory_stats(where)
    with allow_tf32(config.tf32, where), deterministic(config.deterministic):
        measured = measure(data, fabric, folder / "checkpoint.safetensors")
    record = make_record(
        task,
        config.name,
        config,
        seed=config.seed,
        tf32=config.tf32,
        data_checksum=measured.data_checksum,
        model=measured.model,
        wall_s=measured.state.seconds,
        metrics=measured.metrics,
        command=command,
    )
    record |= {
        "devices": fabric.world_size,
        **measured.facts,
        "best_epoch": measured.state.best_epoch,
        "history": measured.state.history,
    }
    if fabric.is_global_zero:
        measured.save(folder)
        write_record(path, record)
    return record
