"""The primitive, forward and backward: time and memory of every backend beside PyTorch's own attention, in one run.

    python benchmarks/operator_attention.py [--tokens 16 128 1024] [--systems triton folded reference] [--batch 8]
        [--heads 8] [--width 64] [--dtype bfloat16] [--activations relu gated] [--out FILE]

`sdpa` is `scaled_dot_product_attention` on the same queries, keys and values, without operators. A backend that is not
as accurate as the reference in the same precision is not timed, and the exit code is 1. Times are medians in ms;
`graph` is the same as one CUDA graph, without the launches. `peak` is of memory in MiB, `extra` what of it is beyond
inputs, operators, output and all gradients, and the last column a token's share of that in KiB: where it stays the
same, memory grows linearly.
"""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from toa import ops
from toa.experiments.op_cost import DTYPES, SDPA, OpCase, measure_cases
from toa.experiments.records import Record, provenance, write_record
from toa.tasks.device import resolve_device


def make_cases(args: argparse.Namespace) -> list[OpCase]:
    """For each length PyTorch's attention, then every activation with every backend."""
    shared = {name: getattr(args, name) for name in ("batch", "heads", "width", "dtype", "tf32", "causal", "seed")}
    cases = []
    for tokens in args.tokens:
        cases.append(OpCase(system=SDPA, activation="softmax", tokens=tokens, **shared))
        cases += [
            OpCase(
                system=system,
                activation=activation,
                tokens=tokens,
                score_norm=args.score_norm,
                gate_norm=args.gate_norm if activation == "gated" else "none",
                **shared,
            )
            for activation in args.activations
            for system in args.systems
        ]
    return cases


def with_ratios(rows: Iterable[Record]) -> list[Record]:
    """Every cost over that of PyTorch's attention on as many tokens."""
    rows = list(rows)
    base = {row["tokens"]: row["cost"] for row in rows if row["system"] == SDPA}

    def ratio(row: Record, key: str) -> float | None:
        cost, other = row["cost"], base[row["tokens"]]
        return cost[key] / other[key] if cost and other and cost[key] and other[key] else None

    keys = {"milliseconds": "time", "graph_ms": "graph", "peak_bytes": "peak"}
    return [row | {"over_sdpa": {short: ratio(row, key) for key, short in keys.items()}} for row in rows]


def show(rows: list[Record], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    titles = ("N", "system", "ms", "/ sdpa", "graph", "/ sdpa", "peak", "extra", "a token's")
    for title in titles:
        table.add_column(title, justify="left" if title == "system" else "right", no_wrap=True)
    for row in rows:
        cost, over = row["cost"], row["over_sdpa"]
        name = f"{row['name']}{' *' if row['system'] == row['auto'] else ''}"
        if cost is None:
            table.add_row(str(row["tokens"]), name, "-", *[""] * 6)
            continue
        table.add_row(
            str(row["tokens"]),
            name,
            _cell(cost["milliseconds"], 3),
            _cell(over["time"], 2),
            _cell(cost["graph_ms"], 3),
            _cell(over["graph"], 2),
            *(_cell(cost[key], 1, 2**20) for key in ("peak_bytes", "extra_bytes")),
            _cell(cost["extra_bytes"], 2, 2**10 * row["tokens"]),
        )
    console.print(table)
    console.print("* the backend that `auto` takes")
    missing: dict[str, list[str]] = {}
    for row in rows:
        if row["reason"]:
            missing.setdefault(row["reason"], []).append(f"{row['name']} N={row['tokens']}")
    for reason, names in missing.items():
        console.print(f"{', '.join(names)}: {reason}", soft_wrap=True)


def _cell(value: float | None, digits: int, unit: float = 1.0) -> str:
    return "" if value is None else f"{value / unit:.{digits}f}"


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 128, 512])
    parser.add_argument("--systems", nargs="+", default=list(ops.BACKENDS), choices=list(ops.BACKENDS))
    parser.add_argument("--activations", nargs="+", default=["relu", "gated"], choices=ops.ACTIVATIONS)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--width", type=int, default=64, help="of a head")
    parser.add_argument("--dtype", choices=list(DTYPES), help="bfloat16 on CUDA, float32 elsewhere, if not given")
    parser.add_argument("--tf32", action=argparse.BooleanOptionalAction, default=True, help="in float32 on CUDA")
    parser.add_argument("--score-norm", default="none", choices=ops.SCORE_NORMS)
    parser.add_argument("--gate-norm", default="none", choices=ops.GATE_NORMS)
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--seconds", type=float, default=0.3, help="about so long each is timed")
    parser.add_argument("--budget", type=float, help="GiB that the reference may take; 32 on CUDA, 1 elsewhere")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/operator_attention.json"))
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    args = parse(words)
    # a table is not cut where no terminal says how wide it is
    console = Console(width=None if sys.stdout.isatty() else 100)
    try:
        device = resolve_device(args.device)
        args.dtype = args.dtype or ("bfloat16" if device.type == "cuda" else "float32")
        args.budget = args.budget or (32.0 if device.type == "cuda" else 1.0)
        cases = make_cases(args)
    except ValueError as error:
        raise SystemExit(f"error: {error}") from None
    rows = []
    with console.status("starting") as status:
        for row in measure_cases(cases, device, seconds=args.seconds, budget=int(args.budget * 2**30)):
            rows.append(row)
            status.update(f"measured {row['name']}, N={row['tokens']}")
    rows = with_ratios(rows)
    show(rows, console)
    settings: dict[str, Any] = vars(args) | {"out": str(args.out)}
    command = [Path(sys.executable).name, *(sys.argv if words is None else [__file__, *words])]
    write_record(
        args.out, {"task": "operator_attention", "settings": settings, "rows": rows, **provenance(device, command)}
    )
    console.print(f"record: {args.out}", soft_wrap=True)
    return int(any((row["reason"] or "").startswith("refused") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
