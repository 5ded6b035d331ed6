"""The tables of the paper (arXiv:2605.11287): published numbers, and rows of its efficiency table as runs.

The runs that reproduce the other tables are in `tables`. The package `toa_bench` measures the efficiency.
"""

import csv
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, ClassVar

from toa._checks import check_choice
from toa.tasks import TASKS, Evaluation, Protocol, RunOptions, Task
from toa.tasks.distributed import resolve_device
from toa.tasks.forecast import FORECASTING


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedNumber:
    """One number of a table.

    Attributes:
        horizon: Number of steps, "avg" for a mean over horizons, "" if there is none.
        variant: The attention; "-nosor" means without stochastic operator regularization.
        text: The number as printed.
    """

    table: str
    dataset: str
    horizon: str
    backbone: str
    variant: str
    metric: str
    text: str

    @property
    def value(self) -> float:
        """The number."""
        return float(self.text)


@cache
def published_numbers() -> tuple[PublishedNumber, ...]:
    """Every number, in the order of the file."""
    content = (files("toa.experiments.paper") / "published.csv").read_text(encoding="utf-8")
    return tuple(PublishedNumber(text=row.pop("value"), **row) for row in csv.DictReader(content.splitlines()))


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
    """

    task: ClassVar[str] = "efficiency"

    row: str
    dataset: str = "ETTh1"
    steps: int | None = None
    warmup: int | None = None
    tf32: bool = True

    @property
    def name(self) -> str:
        """Name of the row."""
        return self.row

    def __post_init__(self) -> None:
        check_choice("row", self.row, ROWS)


class Efficiency(Task):
    """Time the training step of one row in its own process. Other work on the device affects the result.

    That process loads the data itself; the catalogue is that of forecasting.
    """

    config = StepRun
    parts: Mapping[str, type[Any]] = {}
    subcommand = "bench efficiency"
    names = ("backbone", "attention")
    summary_metrics: Mapping[str, str] = {"train_step_ms": "ms per step"}
    record_fields = ()
    catalogue = FORECASTING.catalogue
    locate = FORECASTING.locate
    model_file = ""

    def resolve(  # type: ignore[override]
        self,
        protocol: Protocol | None,
        *,
        backbone: str,
        attention: str | None = None,
        seed: int | None = None,
        changes: Iterable[str] = (),
    ) -> StepRun:
        """The config of a row; it has neither protocol nor seed."""
        return StepRun(row=backbone if attention is None else f"{backbone}/{attention}")

    def folder_name(self, config: StepRun) -> str:
        """The row, without slashes."""
        return config.row.replace("/", "-")

    def title(self, config: StepRun) -> str:
        """Title of the progress bar."""
        return f"step of {config.row}"

    def command(self, protocol: str, names: Mapping[str, Any]) -> list[str]:
        """The command line that times the row."""
        return ["toa", "bench", "efficiency", "--rows", self.resolve(None, **names).row]

    def measure(self, config: StepRun, options: RunOptions) -> Evaluation:
        """Time the steps of the row, and leave the full measurement in efficiency.json."""
        from toa_bench.efficiency import EfficiencyRun, row_records, run_efficiency

        run = EfficiencyRun(
            rows=(config.row,),
            dataset=config.dataset,
            device=options.device,
            steps=config.steps,
            warmup=config.warmup,
            tf32=config.tf32,
            data_dir=None if options.data_dir is None else str(options.data_dir),
        )
        begin = time.perf_counter()
        measured = run_efficiency(run, options.folder / "efficiency.json", command=options.command)
        (record,) = row_records(run, measured)
        return Evaluation(
            data_checksum=str(record.get("data_checksum")),
            metrics=record["metrics"],
            facts=record,
            device=resolve_device(options.device),
            seconds=time.perf_counter() - begin,
        )


TASKS.register("efficiency")(Efficiency())
