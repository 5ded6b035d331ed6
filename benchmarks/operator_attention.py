"""Operator attention, forward and backward: time and memory per backend, beside PyTorch's own attention, in one run.

    python benchmarks/operator_attention.py [--tokens 16 128 1024] [--systems triton folded reference] [--batch 8]
        [--heads 8] [--width 64] [--dtype bfloat16] [--activations relu gated] [--window 256]
        [--structure toeplitz] [--out FILE]

`sdpa` is `scaled_dot_product_attention` on the same queries, keys and values, without operators. A backend that is less
accurate than the reference in the same dtype is not timed, and the exit code is 1. `flex` is FlexAttention on mixed
keys and values, with ReLU by logarithms; `compiled` is `torch.compile` of the folded form; both run on CUDA only. Times
are medians in ms; `graph` is one CUDA graph, without launch overhead. `peak` is peak memory in MiB, `extra` is peak
memory minus inputs, operators, output and all gradients, and `per token` is `extra` per token in KiB: memory grows
linearly if it is constant.
"""

import argparse
import sys
from dataclasses import fields
from typing import Any

from rich.console import Console

from toa import ops
from toa._console import make_table
from toa.experiments.records import Record
from toa_bench.op_cost import DTYPES, STRUCTURES
from toa_bench.op_run import OpRun, refusals, run_ops
from toa_bench.rivals import RIVALS
from toa_bench.script import command_line, exit_on_error, make_console, make_parser
from toa_bench.tables import MEASURED, number


def show(record: Record, console: Console) -> None:
    rows: list[tuple[str, ...]] = [("N", "system", "ms", "/ sdpa", "graph", "/ sdpa", "peak", "extra", "per token")]
    for row in record["rows"]:
        cost, over = row["cost"], row["over_sdpa"]
        cells = ["-", *[""] * 6]
        if cost is not None:
            cells = [number(cost["milliseconds"], 3), number(over["time"]), number(cost["graph_ms"], 3)]
            cells += [number(over["graph"]), *(number(cost[key], 1, 2**20) for key in ("peak_bytes", "extra_bytes"))]
            cells.append(number(cost["extra_bytes"], 2, 2**10 * row["tokens"]))
        rows.append((str(row["tokens"]), f"{row['name']}{' *' if row['system'] == row['auto'] else ''}", *cells))
    console.print(make_table(rows, left=2))
    console.print("* the backend that `auto` selects")
    for reason, names in refusals(record).items():
        console.print(f"{', '.join(names)}: {reason}", soft_wrap=True)


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = make_parser(__doc__, "runs/operator_attention.json")
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 128, 512])
    parser.add_argument("--systems", nargs="+", default=[*ops.BACKENDS, *RIVALS], choices=[*ops.BACKENDS, *RIVALS])
    parser.add_argument("--activations", nargs="+", default=list(MEASURED), choices=ops.ACTIVATIONS)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--width", type=int, default=64, help="per head")
    parser.add_argument("--dtype", choices=list(DTYPES), help="default: bfloat16 on CUDA, else float32")
    for option, norms in (("--score-norm", ops.SCORE_NORMS), ("--gate-norm", ops.GATE_NORMS)):
        formulas = "; ".join(f"{name}: {entry.formula}" for name, entry in norms.items())
        parser.add_argument(option, default="none", choices=norms, help=formulas)
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--window", type=int, help="keys further away are hidden; not for sdpa")
    parser.add_argument("--structure", default="dense", choices=STRUCTURES, help="of all operators")
    parser.add_argument("--seconds", type=float, default=0.3, help="approximate time per case")
    parser.add_argument("--budget", type=float, help="GiB that the reference may use; default: 32 on CUDA, else 1")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    args = parse(words)
    console = make_console(100)
    given: dict[str, Any] = {field.name: getattr(args, field.name) for field in fields(OpRun)}
    given |= {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    command = command_line(__file__, words)
    with exit_on_error(), console.status("starting") as status:
        record = run_ops(
            OpRun(**given), args.out, command=command, watch=lambda name: status.update(f"measured {name}")
        )
    show(record, console)
    console.print(f"record: {args.out}", soft_wrap=True)
    return int(any(reason.startswith("refused") for reason in refusals(record)))


if __name__ == "__main__":
    sys.exit(main())
