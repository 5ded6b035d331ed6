"""A row of the paper's efficiency table as a run. The measurement itself is in the package `toa_bench`."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toa._checks import check_choice
from toa.experiments.carry_out import read_finished
from toa.experiments.published import published_numbers
from toa.experiments.records import Record, config_hash, write_record
from toa.tasks.training import Observer

# these backbones have an attention of their own
_WITHOUT_CHOICE = ("autoformer", "informer")
# the rows of the table by name; the name is that of the model in a forecasting run
ROWS = {
    row.backbone if row.backbone in _WITHOUT_CHOICE else f"{row.backbone}/{row.variant}": row
    for row in published_numbers()
    if row.table == "efficiency"
}


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRun:
    """Time of a training step of one row.

    Args:
        row: A name of `ROWS`.
        dataset: ETTh1, or the path of a CSV file.
        steps: Timed steps; None: the default of the device.
        warmup: Steps before them; None: the default of the device.
        tf32: Allow TF32 for float32 products on CUDA.
    """

    row: str
    dataset: str = "ETTh1"
    steps: int | None = None
    warmup: int | None = None
    tf32: bool = True

    def __post_init__(self) -> None:
        check_choice("row", self.row, ROWS)


def step_folder(config: StepRun, out: Path) -> Path:
    """Folder of a run: the row and the hash of its config."""
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
    """Time the steps of a row in a separate process. Other work on the device distorts the result.

    Args:
        config: The run.
        out: Folder of all efficiency runs.
        data_dir: First folder to search for the dataset.
        device: "auto", "cpu", "cuda" or "cuda:N".
        command: Command line stored in the record.
        observe: Not called: the measurement reports no progress.
    """
    path = step_folder(config, out) / "record.json"
    if path.exists():
        return read_finished(path, config_hash(config))
    from toa_bench.efficiency import EfficiencyRun, row_records, run_efficiency

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
