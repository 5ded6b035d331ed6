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
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from toa import ops
from toa.experiments.op_cost import DTYPES
from toa.experiments.op_run import OpRun, refusals, run_ops
from toa.experiments.records import Record
from toa.ops.attention.definitions import describe


def show(record: Record, console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    titles = ("N", "system", "ms", "/ sdpa", "graph", "/ sdpa", "peak", "extra", "a token's")
    for title in titles:
        table.add_column(title, justify="left" if title == "system" else "right", no_wrap=True)
    for row in record["rows"]:
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
    for reason, names in refusals(record).items():
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
    parser.add_argument(
        "--score-norm", default="none", choices=ops.SCORE_NORMS, help=f"divisor of a row: {describe(ops.SCORE_NORMS)}"
    )
    parser.add_argument(
        "--gate-norm", default="none", choices=ops.GATE_NORMS, help=f"divisor of a row: {describe(ops.GATE_NORMS)}"
    )
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
    given: dict[str, Any] = {field.name: getattr(args, field.name) for field in fields(OpRun)}
    given |= {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    command = [Path(sys.executable).name, *(sys.argv if words is None else [__file__, *words])]
    try:
        with console.status("starting") as status:
            record = run_ops(
                OpRun(**given), args.out, command=command, watch=lambda name: status.update(f"measured {name}")
            )
    except ValueError as error:
        raise SystemExit(f"error: {error}") from None
    show(record, console)
    console.print(f"record: {args.out}", soft_wrap=True)
    return int(any(reason.startswith("refused") for reason in refusals(record)))


if __name__ == "__main__":
    sys.exit(main())
