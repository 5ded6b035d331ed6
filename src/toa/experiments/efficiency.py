"""The paper's table of training steps on ETTh1: time, peak memory and parameters of its ten systems.

Each system is measured in a process of its own, so that its memory is its own, in the steps that training takes. Beside
ours may stand Time-Series-Library's systems, as that library runs them, measured in the same run.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from toa._checks import check_at_least, check_choice
from toa._files import check_writable
from toa.data import ForecastData, mark_names
from toa.experiments.peer import PEER_MODELS, PeerSystem, check_peer, missing_packages, peer_arguments
from toa.experiments.protocols import resolve
from toa.experiments.records import Record, provenance, write_record
from toa.experiments.step_cost import PeakMemory, StepCost
from toa.tasks.device import allow_tf32, resolve_device
from toa.tasks.distributed import make_fabric
from toa.tasks.forecast import FORECASTING, ForecastRun
from toa.tasks.training import time_steps

HORIZON = 96
# a median of fewer says little where a step takes a millisecond
LEAST_CUDA_STEPS = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class EfficiencyRow:
    """A row of the table.

    Attributes:
        attention: None for a model that has none to choose.
        protocol: Whose sizes and optimizer it has: those of the library that it is compared with, where it has any.
        published_ms: The paper's time of a step, on one H200.
    """

    backbone: str
    attention: str | None
    protocol: str
    published_ms: float

    @property
    def name(self) -> str:
        """The model, as a forecasting run names it."""
        return self.backbone if self.attention is None else f"{self.backbone}/{self.attention}"


_TABLE = (
    ("autoformer", "tslib-96", {None: 45.55}),
    ("informer", "tslib-96", {None: 19.57}),
    ("patchtst", "tslib-96", {"softmax": 10.57, "toa-softmax": 13.67, "toa-relu": 18.88, "toa-gated": 18.88}),
    ("itransformer", "itransformer-96", {"softmax": 6.58, "toa-softmax": 9.31, "toa-relu": 12.92, "toa-gated": 12.92}),
)
ROWS = {
    row.name: row
    for row in (
        EfficiencyRow(backbone=backbone, attention=attention, protocol=protocol, published_ms=published)
        for backbone, protocol, published_of in _TABLE
        for attention, published in published_of.items()
    )
}


# the name of what is measured, and its cost once it is known
Watcher = Callable[[str, Record | None], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class EfficiencyRun:
    """What is measured, and how.

    Args:
        rows: Names of `ROWS`.
        dataset: ETTh1, or the path of a CSV file.
        device: "auto", "cpu", "cuda" or "cuda:N".
        steps: Steps that are timed; 100 on CUDA and 10 elsewhere if None.
        warmup: Steps before them; 20 on CUDA and 2 elsewhere if None.
        tf32: Whether CUDA may round factors of float32 products to TF32. A peer is left as it is.
        peer: A checkout of Time-Series-Library to measure beside ours.
        data_dir: Where the dataset is looked for first.
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

    def counts(self) -> tuple[int, int]:
        """How many steps are timed, and how many come before, on the device found."""
        on_cuda = resolve_device(self.device).type == "cuda"
        steps = (100 if on_cuda else 10) if self.steps is None else self.steps
        warmup = (20 if on_cuda else 2) if self.warmup is None else self.warmup
        check_at_least("steps on CUDA" if on_cuda else "steps", steps, LEAST_CUDA_STEPS if on_cuda else 1)
        check_at_least("warmup", warmup, 0)
        return steps, warmup


def row_config(run: EfficiencyRun, row: EfficiencyRow) -> ForecastRun:
    """The run whose steps a row is about: sizes of the row's protocol, the attention as `toa-paper` sets it."""

    def settings_of(protocol: str) -> ForecastRun:
        names = {"dataset": run.dataset, "backbone": row.backbone, "attention": row.attention}
        return resolve("forecast", protocol, horizon=HORIZON, **names)

    config = replace(settings_of(row.protocol), tf32=run.tf32)
    if row.attention is None:
        return config
    return replace(config, attention=settings_of("toa-paper").attention)


def measure_row(run: EfficiencyRun, row: EfficiencyRow) -> StepCost:
    """Time and memory of the steps that training takes, in this process."""
    steps, warmup = run.counts()
    config = row_config(run, row)
    fabric = make_fabric(resolve_device(run.device), precision=config.precision)
    data = _load(run, config, fabric.device)
    with allow_tf32(config.tf32, fabric.device):
        memory = PeakMemory(fabric.device)
        model = FORECASTING.build(config, data)
        seconds = time_steps(
            model,
            FORECASTING.batches(config, data, fabric.device),
            FORECASTING.loss(config, fabric),
            config.training,
            fabric=fabric,
            steps=steps,
            warmup=warmup,
        )
        return StepCost.of(model, seconds, memory)


def measure_peer_row(run: EfficiencyRun, row: EfficiencyRow, channels: int) -> StepCost:
    """The same of the peer's model of a row's backbone, with its own attention, in this process."""
    assert run.peer is not None
    steps, warmup = run.counts()
    config = row_config(run, row)
    system = PeerSystem(
        Path(run.peer),
        PEER_MODELS[row.backbone],
        peer_arguments(config, channels),
        batch_size=config.batch_size,
        num_marks=len(mark_names()),
        learning_rate=config.training.learning_rate,
        device=resolve_device(run.device),
    )
    return system.cost(system.time_steps(steps, warmup))


def run_efficiency(
    run: EfficiencyRun, out: Path, *, command: Sequence[str] = (), watch: Watcher | None = None
) -> Record:
    """Measure the rows one after another, each in a process of its own, and write one record of them all.

    Args:
        run: What is measured.
        out: The record's file.
        command: The command line that the record shall name.
        watch: Told the name of what is measured next, and again with its cost once it is known.
    """
    steps, warmup = run.counts()
    check_writable(out.parent)
    chosen = [ROWS[name] for name in run.rows]
    # wrong data are found here, before a process starts
    data = _load(run, row_config(run, chosen[0]), torch.device("cpu"))
    firsts = {row.backbone: row for row in reversed(chosen)} if run.peer is not None else {}
    asked = [(row, channels) for row in chosen for channels in _sides(row, firsts, len(data.columns))]
    costs = _in_children(run, asked, watch or (lambda name, cost: None))
    found: list[Record] = []
    peers: dict[str, Record] = {}
    for (row, channels), cost in zip(asked, costs, strict=True):
        if channels is not None:
            peers[row.backbone] = cost
            continue
        config = asdict(row_config(run, row))
        found.append({"name": row.name, "published_ms": row.published_ms, "config": config} | cost)
    record = {
        "task": "efficiency",
        "data_checksum": data.checksum,
        "settings": asdict(run) | {"steps": steps, "warmup": warmup},
        "rows": found,
        "peer": peers,
        "peer_stand_ins": missing_packages() if peers else [],
        **provenance(resolve_device(run.device), command),
    }
    write_record(out, record)
    return record


def _load(run: EfficiencyRun, config: ForecastRun, device: torch.device) -> ForecastData:
    return FORECASTING.load(config, device, None if run.data_dir is None else Path(run.data_dir))


def _sides(row: EfficiencyRow, firsts: Mapping[str, EfficiencyRow], channels: int) -> list[int | None]:
    """What is measured of a row, as `_Child` has it: ours, and before the first of a backbone the peer's."""
    return [channels, None] if firsts.get(row.backbone) is row else [None]


def _in_children(
    run: EfficiencyRun, asked: Sequence[tuple[EfficiencyRow, int | None]], watch: Watcher
) -> Iterator[Record]:
    """Costs, each of a process of its own; with a number of channels, of the peer's model.

    As many as there are cores for start together and wait: imports take longer than the steps, but one at a time is
    measured, with nothing beside it.
    """
    together = max(1, (os.cpu_count() or 1) // 2)
    for first in range(0, len(asked), together):
        with contextlib.ExitStack() as stack:
            part = [(row, channels, stack.enter_context(_Child())) for row, channels in asked[first : first + together]]
            for *_, child in part:
                child.wait()
            for row, channels, child in part:
                name = row.name if channels is None else f"{PEER_MODELS[row.backbone]} of the peer"
                watch(name, None)
                cost = child.ask(name, {"run": asdict(run), "row": row.name, "channels": channels})
                watch(name, cost)
                yield cost


# what a process says when it may be asked
_READY = "ready\n"


class _Child:
    """A process that has imported what it needs and measures when it is asked to."""

    def __enter__(self) -> "_Child":
        command = [sys.executable, "-m", "toa.experiments.efficiency"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()

    def wait(self) -> None:
        """Until it is ready, whatever a library prints before; if it never is, asking tells why."""
        assert self._process.stdout is not None
        while self._process.stdout.readline() not in (_READY, ""):
            pass

    def ask(self, name: str, request: Record) -> Record:
        """What `main` finds.

        Raises:
            ValueError: If the process fails.
        """
        out, errors = self._process.communicate(json.dumps(request))
        if self._process.returncode:
            last = (errors.strip().splitlines() or ["nothing on stderr"])[-1]
            raise ValueError(f"{name} must run to its end, got exit code {self._process.returncode}: {last}")
        # a library may print before
        cost: Record = json.loads(out.splitlines()[-1])
        return cost


def main() -> None:
    """Say that imports are done, measure what the request on stdin asks for, and print the cost as JSON."""
    # training imports it when it starts
    import lightning.fabric  # noqa: F401

    sys.stdout.write(_READY)
    sys.stdout.flush()
    request = json.load(sys.stdin)
    run = EfficiencyRun(**request["run"] | {"rows": tuple(request["run"]["rows"])})
    row, channels = ROWS[request["row"]], request["channels"]
    cost = measure_row(run, row) if channels is None else measure_peer_row(run, row, channels)
    sys.stdout.write(json.dumps(asdict(cost)) + "\n")


if __name__ == "__main__":
    main()
