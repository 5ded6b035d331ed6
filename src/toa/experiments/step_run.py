"""A row of the efficiency table as a run of its own: one config in, one record out."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from toa._checks import check_choice
from toa.experiments.carry_out import read_finished
from toa.experiments.efficiency import ROWS, EfficiencyRun, run_efficiency
from toa.experiments.records import Record, config_hash, write_record
from toa.tasks.training import Observer


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRun:
    """The time of a row's training step.

    Args:
        row: A name of `toa.experiments.efficiency.ROWS`.
        dataset: ETTh1, or the path of a CSV file.
        steps: Steps that are timed; as many as the device wants if None.
        warmup: Steps before them, likewise.
        tf32: Whether CUDA may round factors of float32 products to TF32.
    """

    row: str
    dataset: str = "ETTh1"
    steps: int | None = None
    warmup: int | None = None
    tf32: bool = True

    def __post_init__(self) -> None:
        check_choice("row", self.row, ROWS)


def step_folder(config: StepRun, out: Path) -> Path:
    """Where a run keeps its record: a name to read and the config's hash."""
    return out / f"{config.row.replace('/', '-')}-{config_hash(config)[:8]}"


def run_step(
    config: StepRun,
    out: Path,
    *,
    data_dir: Path | None = None,
    device: str = "auto",
    command: Sequence[str] = (),
    observe: Observer | None = None,
) -> Record:
    """Time a row's steps in a process of its own; what else runs on the device meanwhile is in the number.

    Args:
        config: The run.
        out: Folder of all of them.
        data_dir: Where the dataset is looked for first.
        device: "auto", "cpu", "cuda" or "cuda:N".
        command: The command line that the record shall name.
        observe: Not told of anything: a row has no progress to speak of.
    """
    path = step_folder(config, out) / "record.json"
    if path.exists():
        return read_finished(path, config_hash(config))
    run = EfficiencyRun(
        rows=(config.row,),
        dataset=config.dataset,
        device=device,
        steps=config.steps,
        warmup=config.warmup,
        tf32=config.tf32,
        data_dir=None if data_dir is None else str(data_dir),
    )
    begin = time.perf_counter()
    measured = run_efficiency(run, path.with_name("efficiency.json"), command=command)
    (record,) = row_records(run, measured)
    record["wall_s"] = round(time.perf_counter() - begin, 2)
    write_record(path, record)
    return record


def row_records(run: EfficiencyRun, measured: Record) -> list[Record]:
    """A record for each row of one of all rows, with what every record has."""
    shared = {name: value for name, value in measured.items() if name not in ("rows", "peer", "peer_stand_ins")}
    return [shared | _row_record(run, row) for row in measured["rows"]]


def _row_record(run: EfficiencyRun, row: Record) -> Record:
    config = StepRun(row=row["name"], dataset=run.dataset, steps=run.steps, warmup=run.warmup, tf32=run.tf32)
    return {
        "name": config.row,
        "config": asdict(config),
        "config_hash": config_hash(config),
        "metrics": {"train_step_ms": row["milliseconds"], "tenth_ms": row["tenth"], "ninetieth_ms": row["ninetieth"]},
        "peak_memory": row["peak_memory"],
        "parameters": row["parameters"],
        "backend": row["backend"],
    }
