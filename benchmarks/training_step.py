"""The training step: our models with every attention against Time-Series-Library's models and loop, in one run.

    python benchmarks/training_step.py --peer CHECKOUT [--cases patchtst-128 …] [--attentions softmax toa-gated …]
        [--channels 7 32 …] [--batch 32 …] [--device auto] [--out FILE]

Our step is the one that training runs: windows gathered on the device, one CUDA graph, fused optimizer. The peer's
step is eager, with Adam, batches from the host and the loss read at every step; its loader is left out. `peer-
compiled` is the same model under `torch.compile`, with fused Adam, batches on the device and one CUDA graph. All have
the same sizes, random series, and the same TF32 setting. Each system has its own process. Systems are timed in turns,
block by block; a ratio is the median over turns of our block's median over the peer's block of the same turn. A
system whose attention is less accurate than the reference is not timed, and the exit code is 1. `--channels` and
`--batch` vary every case, which shows how the cost grows. The peer has no two-axis: its cases show our systems alone.
"""

import argparse
import json
import statistics
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from toa import ops
from toa._checks import ArgumentError, check_at_least, check_choice
from toa._console import make_table
from toa.data import Windows, mark_names
from toa.experiments.records import Record
from toa.nn import Attention
from toa.training.distributed import numerics, resolve_device
from toa.training.forecast import FORECASTING, ForecastRun, ForecastWindows
from toa.training.step import ShuffledBatches, free_workspaces
from toa_bench.op_cost import OpCase, check_accuracy
from toa_bench.peer import PeerSystem, check_peer, missing_packages
from toa_bench.script import command_line, exit_on_error, make_console, make_parser, save
from toa_bench.step_cost import MIN_CUDA_STEPS, OwnSystem, step_config
from toa_bench.tables import steps
from toa_bench.worker import Worker, answering

# the authors' code
PEER = "peer"
# the same, compiled by PyTorch
COMPILED_PEER = "peer-compiled"
ATTENTIONS = ("softmax", *(f"toa-{activation}" for activation in ops.ACTIVATIONS))
# batches per epoch
BATCHES = 64
# backbones that the peer has as well
PEER_BACKBONES = ("patchtst", "itransformer")


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCase:
    """Sizes of a training step, the same on both sides.

    Args:
        backbone: A model, timed beside the peer's if it is one of `PEER_BACKBONES`.
        protocol: Protocol with all other settings.
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
        """The run whose steps are timed."""
        # this file is never read: user data get the defaults of the backbone
        config = step_config(
            self.protocol, dataset="random.csv", backbone=self.backbone, attention=attention, seed=seed
        )
        return replace(
            config,
            lookback=self.lookback,
            batch_size=self.batch_size,
            model={**config.model, **self.model},
            training=replace(config.training, compile=compiled),
            tf32=tf32,
        )


def _patchtst(
    width: int, heads: int, ff_width: int, *, layers: int = 3, lookback: int = 336, batch_size: int = 128
) -> StepCase:
    sizes = {"embed_dim": width, "num_heads": heads, "num_layers": layers, "ff_dim": ff_width}
    data = {"lookback": lookback, "channels": 7, "batch_size": batch_size}
    return StepCase(backbone="patchtst", protocol="tslib-96", model=sizes, **data)


def _itransformer(width: int, layers: int, channels: int, batch_size: int) -> StepCase:
    sizes = {"embed_dim": width, "num_layers": layers, "ff_dim": width}
    data = {"lookback": 96, "channels": channels, "batch_size": batch_size}
    return StepCase(backbone="itransformer", protocol="itransformer-96", model=sizes, **data)


def _two_axis(channels: int, batch_size: int) -> StepCase:
    return StepCase(backbone="two-axis", protocol="two-axis", lookback=512, channels=channels, batch_size=batch_size)


CASES = {
    "patchtst-128": _patchtst(128, 8, 256),
    "patchtst-16": _patchtst(16, 4, 128),
    # the sizes of the paper's table of efficiency, as are those of itransformer-256
    "patchtst-512": _patchtst(512, 2, 2048, layers=1, lookback=96, batch_size=32),
    "itransformer-256": _itransformer(256, 2, 7, 32),
    "itransformer-512": _itransformer(512, 4, 862, 16),
    "two-axis-7": _two_axis(7, 32),
    "two-axis-862": _two_axis(862, 16),
}


def random_batches(config: ForecastRun, channels: int, device: torch.device) -> ShuffledBatches:
    """Windows of a random series."""
    generator = torch.Generator().manual_seed(config.seed)
    length = config.lookback + config.horizon + BATCHES * config.batch_size - 1
    series = torch.randn(length, channels, generator=generator).to(device)
    marks = torch.randn(length, len(mark_names()), generator=generator).to(device) if config.marks else None
    windows = Windows(series, marks, (0, length), config.lookback, config.horizon, device=device)
    return ShuffledBatches(windows, config.batch_size, seed=config.seed)


def objection_to(config: ForecastRun, channels: int, device: torch.device) -> str | None:
    """How the attention of a run is less accurate than the reference; None if it is not."""
    model = FORECASTING.build(config, ForecastWindows(channels=channels)).to(device)
    # two-axis has others along time, before it
    *_, layer = (module for module in model.modules() if isinstance(module, Attention))
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


def work(request: Record) -> None:
    """In the process of a system: build it, time one block of steps per line of stdin, then answer with its cost."""
    answer = answering()
    case = StepCase(**request["case"])
    device = resolve_device(request["device"])
    name, seed = request["system"], request["seed"]
    attention = "softmax" if name in (PEER, COMPILED_PEER) else name
    config = case.config(attention, tf32=request["tf32"], compiled=request["compile"], seed=seed)
    with numerics(device, tf32=config.tf32):
        system: PeerSystem | OwnSystem
        if name in (PEER, COMPILED_PEER):
            compiled = name == COMPILED_PEER
            system = PeerSystem(Path(request["peer"]), config, case.channels, device, seed=seed, compiled=compiled)
        else:
            if objection := objection_to(config, case.channels, device):
                answer({"refused": f"refused, its attention is not as accurate as the reference: {objection}"})
                return
            # the peer ran no check before either
            free_workspaces()
            make_batches = lambda: random_batches(config, case.channels, device)  # noqa: E731
            system = OwnSystem(config, make_batches, case.channels, device)
        seconds: list[float] = []
        answer({"ready": True})
        for line in sys.stdin:
            block = system.time_steps(**json.loads(line))
            seconds += block
            answer({"seconds": block})
        answer(asdict(system.cost(seconds)))


def start(request: Record) -> Worker:
    """The process of a system."""
    return Worker(request["system"], [sys.executable, __file__, "--worker", json.dumps(request)])


def measure(case: StepCase, args: argparse.Namespace) -> Record:
    """Time all systems on a case, in turns."""
    request = {"case": asdict(case), "peer": str(args.peer)}
    request |= {name: getattr(args, name) for name in ("device", "tf32", "seed", "compile")}
    found: dict[str, Record] = {}
    with ExitStack() as stack:
        workers: list[Worker] = []
        peers = (PEER, COMPILED_PEER) if args.compiled_peer else (PEER,)
        for name in (*(peers if case.backbone in PEER_BACKBONES else ()), *args.attentions):
            workers.append(stack.enter_context(start(request | {"system": name})))
            if resolve_device(args.device).type != "cuda":
                # few cores: start one after another
                found[name] = workers[-1].answer()
        for worker in workers:
            if worker.name not in found:
                found[worker.name] = worker.answer()
        timed = [worker for worker in workers if "refused" not in found[worker.name]]
        blocks: dict[str, list[float]] = {worker.name: [] for worker in timed}
        for _ in range(args.rounds):
            for worker in timed:
                seconds = worker.ask({"steps": args.steps, "warmup": args.warmup})["seconds"]
                blocks[worker.name].append(1e3 * statistics.median(seconds))
        for worker in timed:
            found[worker.name] = {"blocks_ms": blocks[worker.name]} | worker.finish()
    for worker in timed if PEER in found else ():
        found[worker.name] |= _over_peer(found[worker.name], found[PEER])
        if args.compiled_peer:
            found[worker.name]["time_over_compiled"] = _time_over(found[worker.name], found[COMPILED_PEER])
    return {"case": asdict(case), "systems": found}


def _over_peer(system: Record, peer: Record) -> Record:
    """Ratios to the peer: of time, turn by turn, and of memory."""
    memory = system["peak_memory"] and peer["peak_memory"] and system["peak_memory"] / peer["peak_memory"]
    return {"time_over_peer": _time_over(system, peer), "memory_over_peer": memory}


def _time_over(system: Record, other: Record) -> float:
    """Median over turns of the ratio of two systems' times."""
    return statistics.median(
        ours / theirs for ours, theirs in zip(system["blocks_ms"], other["blocks_ms"], strict=True)
    )


def show(record: Record, console: Console) -> None:
    console.print(make_table(steps(record), left=3))
    for row in record["rows"]:
        for name, system in row["systems"].items():
            if "refused" in system:
                console.print(f"{row['name']}, {name}: {system['refused']}", soft_wrap=True)


def chosen_cases(args: argparse.Namespace) -> dict[str, StepCase]:
    """The requested cases by name, each with every requested number of channels and batch size."""
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
    parser = make_parser(__doc__, "runs/training_step.json")
    parser.add_argument("--peer", type=lambda text: Path(text).resolve(), help="checkout of Time-Series-Library")
    parser.add_argument("--cases", nargs="+", default=list(CASES), help=f"any of {', '.join(CASES)}")
    parser.add_argument("--attentions", nargs="+", default=list(ATTENTIONS), choices=ATTENTIONS)
    parser.add_argument("--channels", type=int, nargs="+", help="replaces the channels of each case")
    parser.add_argument("--batch", type=int, nargs="+", help="replaces the batch size of each case")
    parser.add_argument("--steps", type=int, help="steps per block; default: 20 on CUDA, else 5")
    parser.add_argument("--rounds", type=int, help="blocks per system; default: 5")
    parser.add_argument("--warmup", type=int, help="steps before each block; default: 10 on CUDA, else 1")
    parser.add_argument("--compile", action="store_true", help="apply torch.compile to our models")
    parser.add_argument(
        "--compiled-peer", action=argparse.BooleanOptionalAction, default=True, help="measure the compiled peer as well"
    )
    parser.add_argument("--seed", type=int, default=2024)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args(words)


def resolve_arguments(args: argparse.Namespace) -> dict[str, StepCase]:
    """Fill in the defaults of the device, check all arguments, and return the cases."""
    cases = chosen_cases(args)
    if any(case.backbone in PEER_BACKBONES for case in cases.values()):
        if args.peer is None:
            raise ArgumentError("--peer", "name a checkout of Time-Series-Library", "nothing")
        check_peer(args.peer)
    on_cuda = resolve_device(args.device).type == "cuda"
    for name, there, elsewhere in (("steps", 20, 5), ("rounds", 5, 5), ("warmup", 10, 1)):
        if getattr(args, name) is None:
            setattr(args, name, there if on_cuda else elsewhere)
    check_at_least("rounds", args.rounds, 1)
    check_at_least("warmup", args.warmup, 0)
    least = MIN_CUDA_STEPS if on_cuda else 1
    check_at_least("steps of all rounds on CUDA" if on_cuda else "steps", args.steps * args.rounds, least)
    return cases


def main(words: list[str] | None = None) -> int:
    args = parse(words)
    if args.worker is not None:
        work(json.loads(args.worker))
        return 0
    console = make_console()
    rows: list[Record] = []
    with exit_on_error():
        for name, case in resolve_arguments(args).items():
            console.print(f"measuring {name} …")
            rows.append({"name": name} | measure(case, args))
    settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
    settings["peer"] = "CHECKOUT"
    record = {"task": "training_step", "settings": settings, "rows": rows, "stood_in": missing_packages()}
    show(record, console)
    save(record, args, command_line(__file__, words), console)
    return int(any("refused" in system for row in rows for system in row["systems"].values()))


if __name__ == "__main__":
    sys.exit(main())
