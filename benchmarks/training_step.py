"""The training step: ours with every attention against Time-Series-Library's own model and loop, in one run.

    python benchmarks/training_step.py --peer CHECKOUT [--cases patchtst-128 …] [--attentions softmax toa-gated …]
        [--channels 7 32 …] [--batch 32 …] [--device auto] [--out FILE]

Ours is the step that training takes: windows gathered on the device, one CUDA graph, fused optimizer. The peer's is
eager, with Adam, batches from the host and the loss read at every step; its loader is left out. Sizes are the same on
both sides, the series are random, and TF32 is on or off for both. Each system has a process of its own; they take
turns, block by block, and a ratio is the median over the turns of a block's median over the peer's of the same turn.
A system whose attention is not as accurate as the reference is not timed, and the exit code is 1. `--channels` and
`--batch` vary every case, which shows how the cost grows.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from toa._checks import check_at_least, check_choice
from toa.data import Windows, mark_names
from toa.experiments.efficiency import LEAST_CUDA_STEPS
from toa.experiments.op_cost import OpCase, check_accuracy
from toa.experiments.peer import PEER_MODELS, PeerSystem, check_peer, missing_packages, peer_arguments
from toa.experiments.protocols import resolve
from toa.experiments.records import Record, provenance, write_record
from toa.experiments.step_cost import PeakMemory, StepCost
from toa.nn import Attention
from toa.tasks.device import allow_tf32, resolve_device
from toa.tasks.distributed import make_fabric
from toa.tasks.forecast import ForecastRun, WindowBatches, build_model, forecast_loss
from toa.tasks.graph import free_workspaces
from toa.tasks.training import time_steps

PEER = "peer"
ATTENTIONS = ("softmax", "toa-softmax", "toa-relu", "toa-gated")
HORIZON = 96
# batches in an epoch
BATCHES = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCase:
    """Sizes of a training step, the same on both sides.

    Args:
        backbone: A model that the peer has as well.
        protocol: Whose settings it has but for sizes.
        lookback, channels, batch_size: Sizes of the data.
        model: Sizes of the model.
    """

    backbone: str
    protocol: str
    lookback: int
    channels: int
    batch_size: int
    model: dict[str, Any] = field(default_factory=dict)

    def config(self, attention: str, *, tf32: bool, compiled: bool, seed: int) -> ForecastRun:
        """The run whose steps are timed, the attention as `toa-paper` sets it."""

        def settings_of(protocol: str) -> ForecastRun:
            # no such file is read: a file of one's own gets the backbone's defaults
            names = {"dataset": "random.csv", "backbone": self.backbone, "attention": attention}
            return resolve("forecast", protocol, horizon=HORIZON, seed=seed, **names)

        config = settings_of(self.protocol)
        return replace(
            config,
            lookback=self.lookback,
            batch_size=self.batch_size,
            model={**config.model, **self.model},
            attention=settings_of("toa-paper").attention,
            training=replace(config.training, compile=compiled),
            tf32=tf32,
        )


def _patchtst(width: int, heads: int, ff_width: int) -> StepCase:
    sizes = {"embed_dim": width, "num_heads": heads, "num_layers": 3, "ff_dim": ff_width}
    return StepCase(backbone="patchtst", protocol="tslib-96", lookback=336, channels=7, batch_size=128, model=sizes)


def _itransformer(width: int, layers: int, channels: int, batch_size: int) -> StepCase:
    sizes = {"embed_dim": width, "num_layers": layers, "ff_dim": width}
    return StepCase(
        backbone="itransformer",
        protocol="itransformer-96",
        lookback=96,
        channels=channels,
        batch_size=batch_size,
        model=sizes,
    )


CASES = {
    "patchtst-128": _patchtst(128, 8, 256),
    "patchtst-16": _patchtst(16, 4, 128),
    "itransformer-256": _itransformer(256, 2, 7, 32),
    "itransformer-512": _itransformer(512, 4, 862, 16),
}


class OwnSystem:
    """One of our models under our loop."""

    def __init__(self, config: ForecastRun, channels: int, device: torch.device) -> None:
        self._config = config
        self._fabric = make_fabric(device, precision=config.precision)
        generator = torch.Generator().manual_seed(config.seed)
        rows = config.lookback + config.horizon + BATCHES * config.batch_size - 1
        self._memory = PeakMemory(device)
        series = torch.randn(rows, channels, generator=generator).to(device)
        marks = torch.randn(rows, len(mark_names()), generator=generator).to(device) if config.marks else None
        windows = Windows(series, marks, (0, rows), config.lookback, config.horizon, device=device)
        self._batches = WindowBatches(windows, config.batch_size, seed=config.seed)
        self.model = build_model(config, channels)

    def time_steps(self, steps: int, warmup: int) -> list[float]:
        """Seconds of each of `steps` steps, after `warmup` of them that are not counted."""
        loss = forecast_loss(self._config.loss, autocast=self._fabric.autocast)
        return time_steps(
            self.model,
            self._batches,
            loss,
            self._config.training,
            fabric=self._fabric,
            steps=steps,
            warmup=warmup,
        )

    def cost(self, seconds: Sequence[float]) -> StepCost:
        """What so many steps came to."""
        return StepCost.of(self.model, seconds, self._memory)


def objection_to(config: ForecastRun, channels: int, device: torch.device) -> str | None:
    """What of the attention of a run is less accurate than the reference allows; None if nothing."""
    model = build_model(config, channels).to(device)
    layer = next(module for module in model.modules() if isinstance(module, Attention))
    case = OpCase(
        system=layer.chosen_backend(),
        activation=layer.activation,
        tokens=layer.num_tokens,
        heads=layer.num_heads,
        width=layer.qk_dim,
        dtype="float32",
        tf32=config.tf32,
        score_norm=getattr(layer, "score_norm", "none"),
        gate_norm=getattr(layer, "gate_norm", "none"),
    )
    return check_accuracy(case, device)


def work(request: Record, answers: IO[str]) -> None:
    """One system's side: build it, then time a block whenever a line of stdin asks for one, and tell its cost last."""

    def answer(content: Record) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    case, device = StepCase(**request["case"]), resolve_device(request["device"])
    name, seed = request["system"], request["seed"]
    attention = "softmax" if name == PEER else name
    config = case.config(attention, tf32=request["tf32"], compiled=request["compile"], seed=seed)
    with allow_tf32(config.tf32, device):
        system: PeerSystem | OwnSystem
        if name == PEER:
            system = PeerSystem(
                Path(request["peer"]),
                PEER_MODELS[case.backbone],
                peer_arguments(config, case.channels),
                batch_size=case.batch_size,
                num_marks=len(mark_names()),
                learning_rate=config.training.learning_rate,
                device=device,
                seed=seed,
            )
        else:
            objection = objection_to(config, case.channels, device)
            if objection is not None:
                answer({"refused": f"refused, its attention is not as accurate as the reference: {objection}"})
                return
            # the peer has had nothing checked before
            free_workspaces()
            system = OwnSystem(config, case.channels, device)
        seconds: list[float] = []
        answer({"ready": True})
        for line in sys.stdin:
            block = system.time_steps(**json.loads(line))
            seconds += block
            answer({"seconds": block})
        answer(asdict(system.cost(seconds)))


class Worker:
    """A system in a process of its own, from outside."""

    def __init__(self, request: Record) -> None:
        self.name = request["system"]
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        command = [sys.executable, __file__, "--worker", json.dumps(request)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )

    def answer(self) -> Record:
        """Its next line.

        Raises:
            ValueError: If it ended without one.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._log.seek(0)
            said = self._log.read().strip().splitlines() or ["nothing on stderr"]
            raise ValueError(f"{self.name} must run to its end, got exit code {code}: {said[-1]}")
        found: Record = json.loads(line)
        return found

    def time_block(self, steps: int, warmup: int) -> list[float]:
        """Seconds of a block of steps."""
        assert self._process.stdin is not None
        # of one that has died, reading says what of
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"steps": steps, "warmup": warmup}) + "\n")
            self._process.stdin.flush()
        seconds: list[float] = self.answer()["seconds"]
        return seconds

    def finish(self) -> Record:
        """Its cost; it ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self.answer()

    def close(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()  # type: ignore[union-attr]


def measure(case: StepCase, args: argparse.Namespace) -> Record:
    """All systems on a case, in turns."""
    request = {"case": asdict(case), "device": args.device, "tf32": args.tf32, "seed": args.seed}
    request |= {"compile": args.compile}
    request["peer"] = str(args.peer)
    workers: list[Worker] = []
    found: dict[str, Record] = {}
    try:
        for name in (PEER, *args.attentions):
            workers.append(Worker(request | {"system": name}))
            if resolve_device(args.device).type != "cuda":
                # few cores: they start one after another
                _welcome(workers[-1], found)
        for worker in workers:
            if worker.name not in found:
                _welcome(worker, found)
        timed = [worker for worker in workers if "refused" not in found[worker.name]]
        for _ in range(args.rounds):
            for worker in timed:
                seconds = worker.time_block(args.steps, args.warmup)
                found[worker.name]["blocks_ms"].append(1e3 * statistics.median(seconds))
        for worker in timed:
            found[worker.name] |= worker.finish()
    finally:
        for worker in workers:
            worker.close()
    for system in found.values():
        if "refused" not in system:
            system |= _over_peer(system, found[PEER])
    return {"case": asdict(case), "systems": found}


def _welcome(worker: Worker, found: dict[str, Record]) -> None:
    said = worker.answer()
    found[worker.name] = {"refused": said["refused"]} if "refused" in said else {"blocks_ms": []}


def _over_peer(system: Record, peer: Record) -> Record:
    """Time by turns and memory over the peer's."""
    ratios = [ours / theirs for ours, theirs in zip(system["blocks_ms"], peer["blocks_ms"], strict=True)]
    memory = system["peak_memory"] and peer["peak_memory"] and system["peak_memory"] / peer["peak_memory"]
    return {"time_over_peer": statistics.median(ratios), "memory_over_peer": memory}


def show(rows: list[Record], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("case", "system", "backend", "ms", "/ peer", "MiB", "/ peer", "parameters"):
        left = title in ("case", "system", "backend")
        table.add_column(title, justify="left" if left else "right", no_wrap=True)
    for row in rows:
        for name, system in row["systems"].items():
            if "refused" in system:
                table.add_row(row["name"], name, "-", *[""] * 5)
                continue
            table.add_row(
                row["name"],
                name,
                system["backend"] or "",
                f"{system['milliseconds']:.2f}",
                f"{system['time_over_peer']:.3f}",
                "" if system["peak_memory"] is None else f"{system['peak_memory'] / 2**20:.0f}",
                "" if not system["memory_over_peer"] else f"{system['memory_over_peer']:.2f}",
                f"{system['parameters']:,}",
            )
    console.print(table)
    for row in rows:
        for name, system in row["systems"].items():
            if "refused" in system:
                console.print(f"{row['name']}, {name}: {system['refused']}", soft_wrap=True)


def chosen_cases(args: argparse.Namespace) -> dict[str, StepCase]:
    """The cases by name, each with every number of channels and every batch size asked for."""
    chosen = {}
    for name in args.cases:
        check_choice("case", name, CASES)
        for channels in args.channels or [None]:
            for batch_size in args.batch or [None]:
                given = {"channels": channels, "batch_size": batch_size}
                given = {key: value for key, value in given.items() if value is not None}
                for key, value in given.items():
                    check_at_least(key, value, 1)
                label = " ".join([name, *(f"{key[0].upper()}={value}" for key, value in given.items())])
                chosen[label] = replace(CASES[name], **given)
    return chosen


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=lambda text: Path(text).resolve(), help="its checkout")
    parser.add_argument("--cases", nargs="+", default=list(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--attentions", nargs="+", default=list(ATTENTIONS), choices=ATTENTIONS)
    parser.add_argument("--channels", type=int, nargs="+", help="instead of each case's own")
    parser.add_argument("--batch", type=int, nargs="+", help="instead of each case's own")
    parser.add_argument("--steps", type=int, help="of a block; 60 on CUDA, 5 elsewhere, if not given")
    parser.add_argument("--rounds", type=int, help="blocks of each system; 1 on CUDA, 5 elsewhere, if not given")
    parser.add_argument("--warmup", type=int, help="steps before a block; 10 on CUDA, 1 elsewhere, if not given")
    parser.add_argument("--tf32", action=argparse.BooleanOptionalAction, default=True, help="on both sides")
    parser.add_argument("--compile", action="store_true", help="ours, by torch.compile; the peer is left as it is")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=2024)
    parser.add_argument("--out", type=Path, default=Path("runs/training_step.json"))
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args(words)


def settle(args: argparse.Namespace) -> dict[str, StepCase]:
    """Fill in what depends on the device, check all, and return the cases."""
    if args.peer is None:
        raise ValueError("--peer must name a checkout of Time-Series-Library, got nothing.")
    check_peer(args.peer)
    on_cuda = resolve_device(args.device).type == "cuda"
    for name, there, elsewhere in (("steps", 60, 5), ("rounds", 1, 5), ("warmup", 10, 1)):
        if getattr(args, name) is None:
            setattr(args, name, there if on_cuda else elsewhere)
    check_at_least("rounds", args.rounds, 1)
    check_at_least("warmup", args.warmup, 0)
    least = LEAST_CUDA_STEPS if on_cuda else 1
    check_at_least("steps of all rounds on CUDA" if on_cuda else "steps", args.steps * args.rounds, least)
    return chosen_cases(args)


def main(words: list[str] | None = None) -> int:
    args = parse(words)
    if args.worker is not None:
        # what a library prints is no answer
        answers, sys.stdout = sys.stdout, sys.stderr
        work(json.loads(args.worker), answers)
        return 0
    # a table is not cut where no terminal says how wide it is
    console = Console(width=None if sys.stdout.isatty() else 110)
    rows: list[Record] = []
    try:
        for name, case in settle(args).items():
            console.print(f"measuring {name} …")
            rows.append({"name": name} | measure(case, args))
    except ValueError as error:
        raise SystemExit(f"error: {error}") from None
    show(rows, console)
    settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
    command = [Path(sys.executable).name, *(sys.argv if words is None else [__file__, *words])]
    where = provenance(resolve_device(args.device), command)
    record = {"task": "training_step", "settings": settings, "rows": rows, "stood_in": missing_packages(), **where}
    write_record(args.out, record)
    console.print(f"record: {args.out}", soft_wrap=True)
    return int(any("refused" in system for row in rows for system in row["systems"].values()))


if __name__ == "__main__":
    sys.exit(main())
