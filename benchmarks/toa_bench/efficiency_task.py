"""The rows of the paper's efficiency table as a task: one run times the training step of one row."""

import time
from collections.abc import Iterable, Mapping
from typing import Any

from toa.experiments.base import EXPERIMENTS, Experiment
from toa.experiments.settings import Protocol
from toa.training import Evaluation, RunOptions, Task
from toa.training.distributed import resolve_device
from toa.training.forecast import FORECASTING
from toa_bench import efficiency
from toa_bench.efficiency import EfficiencyRun, StepRun, row_records


class Efficiency(Task):
    """Time the training step of one row in its own process. Other work on the device affects the result.

    That process loads the data itself; the catalogue is that of forecasting.
    """

    config = StepRun
    parts: Mapping[str, type[Any]] = {}
    record_fields = ()
    catalogue = FORECASTING.catalogue
    locate = FORECASTING.locate
    model_file = ""

    def measure(self, config: StepRun, options: RunOptions) -> Evaluation:
        """Time the steps of the row, and leave the full measurement in efficiency.json."""
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
        measured = efficiency.run_efficiency(run, options.folder / "efficiency.json", command=options.command)
        (record,) = row_records(run, measured)
        return Evaluation(
            data_checksum=str(record.get("data_checksum")),
            metrics=record["metrics"],
            facts=record,
            device=resolve_device(options.device),
            seconds=time.perf_counter() - begin,
        )


class EfficiencyExperiment(Experiment):
    """Rows of the efficiency table; see `Experiment` for the methods."""

    subcommand = "bench efficiency"
    names = ("backbone", "attention")
    summary_metrics: Mapping[str, str] = {"train_step_ms": "ms per step"}

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


# an entry point registers it as a task
EFFICIENCY = Efficiency()
EXPERIMENTS.register("efficiency")(EfficiencyExperiment(EFFICIENCY))
