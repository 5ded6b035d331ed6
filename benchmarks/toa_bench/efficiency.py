"""The paper's efficiency table on ETTh1: time, peak memory and parameters of a training step of its ten systems.

Each system is measured in a process of its own. The systems of Time-Series-Library can be measured in the same run.
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch

from toa._checks import check_at_least, check_choice
from toa._files import check_writable
from toa.data import ForecastData
from toa.experiments.records import Record, config_hash, provenance, write_record
from toa.training.distributed import numerics, resolve_device
from toa.training.forecast import FORECASTING, ForecastRun
from toa_bench.peer import PEER_MODELS, PeerSystem, check_peer, hide_checkouts, missing_packages
from toa_bench.step_cost import MIN_CUDA_STEPS, OwnSystem, StepCost, step_config
from toa_bench.worker import Worker, answering
from toa_paper.published import ROWS

# called with a name when its measurement starts, and again with its cost
Watcher = Callable[[str, Record | None], None]


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


@dataclass(frozen=True, kw_only=True, slots=True)
class EfficiencyRun:
    """Rows to measure, and how.

    Args:
        rows: Names of `toa_paper.published.ROWS`.
        dataset: ETTh1, or the path of a CSV file.
        device: "auto", "cpu", "cuda" or "cuda:N".
        steps: Timed steps; default 100 on CUDA, else 10.
        warmup: Steps before them; default 20 on CUDA, else 2.
        tf32: Allow TF32 for float32 products on CUDA, on both sides.
        peer: Checkout of Time-Series-Library to measure as well.
        data_dir: First folder to search for the dataset.
    """

    rows: tuple[str, ...] = tuple(ROWS)
    dataset: str = "ETTh1"
    device: str = "auto"
    steps: int | None = None
    warmup: int | None = None
    tf32: bool = True
    peer: str | None = None
    data_dir: str | None = None

    def __post_init__(self) -> None:
        for row in self.rows:
            check_choice("row", row, ROWS)
        if self.peer is not None:
            check_peer(Path(self.peer))

    def config(self, row: str) -> ForecastRun:
        """The forecasting run of a row."""
        return row_config(row, dataset=self.dataset, tf32=self.tf32)

    def counts(self) -> tuple[int, int]:
        """Numbers of timed steps and of warm-up steps on the device of the run."""
        on_cuda = resolve_device(self.device).type == "cuda"
        default_steps, default_warmup = (100, 20) if on_cuda else (10, 2)
        steps = default_steps if self.steps is None else self.steps
        warmup = default_warmup if self.warmup is None else self.warmup
        check_at_least("steps on CUDA" if on_cuda else "steps", steps, MIN_CUDA_STEPS if on_cuda else 1)
        check_at_least("warmup", warmup, 0)
        return steps, warmup


def row_config(row: str, *, dataset: str = "ETTh1", tf32: bool = True) -> ForecastRun:
    """The forecasting run of a row: sizes of the library that it is compared with."""
    backbone, _, attention = row.partition("/")
    protocol = "itransformer-96" if backbone == "itransformer" else "tslib-96"
    return replace(step_config(protocol, dataset=dataset, backbone=backbone, attention=attention or None), tf32=tf32)


def measure_row(run: EfficiencyRun, row: str) -> StepCost:
    """Measure our system of a row in this process."""
    config = run.config(row)
    device = resolve_device(run.device)
    data = _load(run, config, device)
    with numerics(device, tf32=config.tf32):
        system = OwnSystem(config, lambda: FORECASTING.batches(config, data, device), len(data.columns), device)
        return system.cost(system.time_steps(*run.counts()))


def measure_peer(run: EfficiencyRun, row: str, channels: int) -> StepCost:
    """Measure the peer's model of a row's backbone, with its own attention, in this process."""
    assert run.peer is not None
    device = resolve_device(run.device)
    with numerics(device, tf32=run.tf32):
        system = PeerSystem(Path(run.peer), run.config(row), channels, device)
        return system.cost(system.time_steps(*run.counts()))


def run_efficiency(
    run: EfficiencyRun, out: Path, *, command: Sequence[str] = (), watch: Watcher = lambda name, cost: None
) -> Record:
    """Measure the rows one after another, each in its own process, and write one record.

    Args:
        run: Run to measure.
        out: File of the record.
        command: Command line stored in the record.
        watch: Called with a name when its measurement starts, and again with its cost.
    """
    steps, warmup = run.counts()
    check_writable(out.parent)
    # fails here if the data are wrong, before any process starts
    data = _load(run, run.config(run.rows[0]), torch.device("cpu"))
    # the peer's model is measured before the first of our rows with the same backbone
    firsts = {ROWS[row].backbone: row for row in reversed(run.rows)} if run.peer is not None else {}
    requests = [
        _Request(row=row, peer_channels=channels)
        for row in run.rows
        for channels in ((len(data.columns), None) if row in firsts.values() else (None,))
    ]
    found: list[Record] = []
    peers: dict[str, Record] = {}
    for request, cost in zip(requests, _measure_all(run, requests, watch), strict=True):
        row = request.row
        if request.peer_channels is not None:
            peers[ROWS[row].backbone] = cost
        else:
            found.append({"name": row, "published_ms": ROWS[row].value, "config": asdict(run.config(row))} | cost)
    record = {
        "task": "efficiency",
        "data_checksum": data.checksum,
        "settings": asdict(run) | {"steps": steps, "warmup": warmup, "peer": run.peer and "CHECKOUT"},
        "rows": found,
        "peer": peers,
        "peer_stand_ins": missing_packages() if peers else [],
        **provenance(resolve_device(run.device), hide_checkouts(command)),
    }
    write_record(out, record)
    return record


def row_records(run: EfficiencyRun, measured: Record) -> list[Record]:
    """Split a record of `run_efficiency` into one record per row, which `toa report` reads."""
    shared = {name: value for name, value in measured.items() if name not in ("rows", "peer", "peer_stand_ins")}
    metrics = {"train_step_ms": "milliseconds", "tenth_ms": "tenth", "ninetieth_ms": "ninetieth"}
    records = []
    for row in measured["rows"]:
        config = StepRun(row=row["name"], dataset=run.dataset, steps=run.steps, warmup=run.warmup, tf32=run.tf32)
        own = {"name": config.row, "config": asdict(config), "config_hash": config_hash(config)}
        own["metrics"] = {name: row[key] for name, key in metrics.items()}
        records.append(shared | own | {name: row[name] for name in ("peak_memory", "parameters", "backend")})
    return records


def _load(run: EfficiencyRun, config: ForecastRun, device: torch.device) -> ForecastData:
    return FORECASTING.load(config, device, None if run.data_dir is None else Path(run.data_dir))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Request:
    """A measurement: our system of a row, or the peer's model on a number of channels."""

    row: str
    peer_channels: int | None = None

    @property
    def name(self) -> str:
        return self.row if self.peer_channels is None else f"{PEER_MODELS[ROWS[self.row].backbone]} of the peer"


def _measure_all(run: EfficiencyRun, requests: Sequence[_Request], watch: Watcher) -> Iterator[Record]:
    """Costs of the requests in order.

    Imports take longer than the steps, so several processes start together; only one measures at a time.
    """
    together = max(1, (os.cpu_count() or 1) // 2)
    for first in range(0, len(requests), together):
        with contextlib.ExitStack() as stack:
            command = [sys.executable, "-m", "toa_bench.efficiency"]
            part = [(one, stack.enter_context(Worker(one.name, command))) for one in requests[first : first + together]]
            for _, worker in part:
                worker.answer()
            for request, worker in part:
                watch(request.name, None)
                cost = worker.ask({"run": asdict(run), **asdict(request)})
                watch(request.name, cost)
                yield cost


def main() -> None:
    """In a child of `_measure_all`: answer once the imports are done, then measure the requested row."""
    answer = answering()
    # imported now, because training imports it late
    import lightning.fabric  # noqa: F401

    answer({"ready": True})
    request = json.loads(sys.stdin.readline())
    run = EfficiencyRun(**request["run"] | {"rows": tuple(request["run"]["rows"])})
    row, channels = request["row"], request["peer_channels"]
    answer(asdict(measure_row(run, row) if channels is None else measure_peer(run, row, channels)))


if __name__ == "__main__":
    main()
