"""What each fused row kernel gains: one training step of PatchTST (d = 128) with each kernel switched off in turn.

    python benchmarks/row_kernels.py [--attention toa-gated] [--kernels layer_norm …] [--rounds 5] [--out FILE]

Needs a CUDA device. Every round times all settings once, after each other; a gain is the median over the rounds of the
time without the kernel divided by the time with all kernels in the same round, minus 1. A kernel should stay only if it
gains at least 3 %.
"""

import argparse
import statistics
import sys
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from toa.experiments.records import Record, provenance, write_record
from toa.ops._backend import SWITCHABLE_KERNELS, disable_kernels
from toa.tasks.distributed import numerics
from toa_bench.step_cost import OwnSystem
from training_step import ATTENTIONS, CASES, random_batches

ALL_ON = "all kernels"
LEAST_GAIN = 0.03


def time_block(args: argparse.Namespace, disabled: tuple[str, ...]) -> float:
    """Median milliseconds of a step without some kernels, in a new model and CUDA graph."""
    case, device = CASES["patchtst-128"], torch.device("cuda")
    config = case.config(args.attention, tf32=True, compiled=False, seed=args.seed)
    disable_kernels(*disabled)
    try:
        with numerics(device, tf32=config.tf32):
            make_batches = partial(random_batches, config, case.channels, device)
            system = OwnSystem(config, make_batches, case.channels, device)
            return 1e3 * statistics.median(system.time_steps(args.steps, args.warmup))
    finally:
        disable_kernels()


def measure(args: argparse.Namespace) -> dict[str, list[float]]:
    """Milliseconds of each setting in each round."""
    settings: dict[str, tuple[str, ...]] = {ALL_ON: ()} | {name: (name,) for name in args.kernels}
    times: dict[str, list[float]] = {name: [] for name in settings}
    for name, disabled in settings.items():
        # compiles the kernels of the setting
        time_block(args, disabled)
        print(f"warm: {name}", flush=True)
    for _ in range(args.rounds):
        for name, disabled in settings.items():
            times[name].append(time_block(args, disabled))
    return times


def summarise(times: dict[str, list[float]]) -> list[Record]:
    """One row per kernel: the time without it, and its gain."""
    rows = []
    for name, found in times.items():
        gains = [without / all_on - 1.0 for without, all_on in zip(found, times[ALL_ON], strict=True)]
        row = {"switched_off": name, "milliseconds": statistics.median(found), "rounds": found}
        rows.append(row | ({} if name == ALL_ON else {"gain": statistics.median(gains), "gains": gains}))
    return rows


def show(rows: list[Record], console: Console) -> None:
    table = Table(title="PatchTST d=128, one training step")
    for column in ("switched off", "ms", "gain of the kernel", "at least 3 %"):
        table.add_column(column, justify="left" if column == "switched off" else "right")
    for row in rows:
        gain = row.get("gain")
        words = ("", "") if gain is None else (f"{100 * gain:+.1f} %", "yes" if gain >= LEAST_GAIN else "no")
        table.add_row("nothing" if gain is None else row["switched_off"], f"{row['milliseconds']:.3f}", *words)
    console.print(table)


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attention", choices=ATTENTIONS, default="toa-gated")
    parser.add_argument("--kernels", nargs="+", choices=SWITCHABLE_KERNELS, default=list(SWITCHABLE_KERNELS))
    parser.add_argument("--steps", type=int, default=60, help="timed per round and setting")
    parser.add_argument("--warmup", type=int, default=10, help="untimed steps before them")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=2024)
    parser.add_argument("--out", type=Path, default=Path("runs/row_kernels.json"))
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> None:
    args = parse(words)
    if not torch.cuda.is_available():
        raise SystemExit("error: row kernels are timed on a CUDA device, got a machine without one.")
    rows = summarise(measure(args))
    console = Console(width=None if sys.stdout.isatty() else 110)
    show(rows, console)
    where = provenance(torch.device("cuda"), [Path(sys.executable).name, *sys.argv])
    write_record(
        args.out, {"task": "row_kernels", "settings": vars(args) | {"out": str(args.out)}, "rows": rows, **where}
    )
    console.print(f"record: {args.out}", soft_wrap=True)


if __name__ == "__main__":
    main()
