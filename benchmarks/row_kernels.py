"""What the fused kernels beside attention gain: a training step with each switched off alone, and all of them together.

    python benchmarks/row_kernels.py [--cases patchtst-128 itransformer-256 …] [--kernels layer_norm …]
        [--attention toa-gated] [--rounds 5] [--out FILE]

Needs a CUDA device. Every round times all settings of a case once, after each other, each in a new model and CUDA
graph. A gain is the median over the rounds of the time without the kernels divided by the time with all kernels in the
same round, minus 1. Memory is the peak of the setting's first block. "row kernels" are layer_norm and
add_norm: they stay as a group if switching all of them off costs at least 3 %.
"""

import argparse
import gc
import statistics
import sys
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial

import torch
from rich.console import Console

from toa._checks import ArgumentError, check_at_least
from toa._console import make_table
from toa.experiments.records import Record
from toa.ops._backend import SWITCHABLE_KERNELS, disable_kernels
from toa.training.distributed import numerics, resolve_device
from toa_bench.script import command_line, exit_on_error, make_console, make_parser, save
from toa_bench.step_cost import OwnSystem, StepCost
from toa_bench.tables import kernel_gains
from training_step import ATTENTIONS, CASES, StepCase, random_batches

ALL_ON = "nothing"
# switched off one by one they gain little, together more
ROW_KERNELS = ("layer_norm", "add_norm")
# the case of width 512 has 862 channels: a second name for it
MEASURED = {name: CASES[name] for name in ("patchtst-128", "itransformer-256", "itransformer-512")}
CHOICES = MEASURED | {"itransformer-862": CASES["itransformer-512"]}


def settings_of(kernels: list[str]) -> dict[str, tuple[str, ...]]:
    """Which kernels each setting switches off, by its name: none, each alone, the row kernels, all."""
    together = {"row kernels": tuple(name for name in ROW_KERNELS if name in kernels), "all kernels": tuple(kernels)}
    found: dict[str, tuple[str, ...]] = {ALL_ON: ()} | {name: (name,) for name in kernels}
    return found | {name: group for name, group in together.items() if len(group) > 1 and group not in found.values()}


def time_block(case: StepCase, disabled: tuple[str, ...], args: argparse.Namespace) -> StepCost:
    """Cost of a step without some kernels, in a new model and CUDA graph."""
    device = resolve_device(args.device)
    config = case.config(args.attention, tf32=args.tf32, compiled=False, seed=args.seed)
    # what the block before has left must not count as memory of this one
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    disable_kernels(*disabled)
    try:
        with numerics(device, tf32=config.tf32):
            make_batches = partial(random_batches, config, case.channels, device)
            system = OwnSystem(config, make_batches, case.channels, device)
            return system.cost(system.time_steps(args.steps, args.warmup))
    finally:
        disable_kernels()


def measure(case: StepCase, args: argparse.Namespace, console: Console) -> dict[str, list[StepCost]]:
    """Costs of each setting: first a block that compiles its kernels, then one per round."""
    settings = settings_of(args.kernels)
    costs: dict[str, list[StepCost]] = {name: [] for name in settings}
    for turn in range(1 + args.rounds):
        for name, disabled in settings.items():
            costs[name].append(time_block(case, disabled, args))
            if turn == 0:
                console.print(f"compiled: {name} switched off")
    return costs


def summarise(costs: Mapping[str, list[StepCost]], kernels: list[str]) -> list[Record]:
    """One row per setting: its time and memory, and what the kernels that it switches off gain."""
    rows: list[Record] = []
    base = costs[ALL_ON]
    for name, found in costs.items():
        times = [cost.milliseconds for cost in found[1:]]
        gains = [time / other.milliseconds - 1.0 for time, other in zip(times, base[1:], strict=True)]
        row = {"switched_off": name, "kernels": settings_of(kernels)[name], "milliseconds": statistics.median(times)}
        row |= {"rounds": times, "peak_memory": found[0].peak_memory}
        memory = found[0].peak_memory and base[0].peak_memory and found[0].peak_memory / base[0].peak_memory
        gained = {"gain": statistics.median(gains), "gains": gains, "memory_ratio": memory}
        rows.append(row if name == ALL_ON else row | gained)
    return rows


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = make_parser(__doc__, "runs/row_kernels.json")
    parser.add_argument("--cases", nargs="+", choices=CHOICES, default=list(MEASURED))
    parser.add_argument("--attention", choices=ATTENTIONS, default="toa-gated")
    parser.add_argument("--kernels", nargs="+", choices=SWITCHABLE_KERNELS, default=list(SWITCHABLE_KERNELS))
    parser.add_argument("--steps", type=int, default=60, help="timed per round and setting")
    parser.add_argument("--warmup", type=int, default=10, help="untimed steps before them")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=2024)
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    args = parse(words)
    console = make_console()
    rows: list[Record] = []
    with exit_on_error():
        for name, least in (("steps", 1), ("warmup", 0), ("rounds", 1)):
            check_at_least(name, getattr(args, name), least)
        if resolve_device(args.device).type != "cuda":
            raise ArgumentError("device", "be a CUDA device", repr(args.device), "these kernels run nowhere else")
        for name in args.cases:
            console.print(f"measuring {name} …")
            found = summarise(measure(CHOICES[name], args, console), args.kernels)
            rows += [{"case": name, "sizes": asdict(CHOICES[name])} | row for row in found]
    record = {"task": "row_kernels", "settings": vars(args), "rows": rows}
    console.print(make_table(kernel_gains(record), left=2))
    save(record, args, command_line(__file__, words), console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
