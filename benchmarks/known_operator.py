"""A table with a known operator between channels, case C of the theory: networks beside linear models, ten seeds.

    python benchmarks/known_operator.py [--channels 24 ...] [--seeds 10] [--device cuda] [--out FILE]

The default is the table of `toa demo`. `--channels 8 32 128 512` shows how the gain changes with the channels.
"""

import argparse
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from toa._console import make_table
from toa_bench.script import command_line, exit_on_error, make_console, make_parser, save
from toa_paper.known_operator import SEEDS, FactorTable, compare


def run(args: argparse.Namespace) -> None:
    console = make_console()
    cases: dict[str, Any] = {}
    rows: list[tuple[str, ...]] = [("channels", "system", "MSE", "lowest to highest", "gap closed")]
    with tempfile.TemporaryDirectory() as folder:
        for channels in args.channels:
            results = []
            for seed in SEEDS[: args.seeds]:
                results.append(compare(FactorTable(channels=channels, seed=seed), Path(folder), device=args.device))
                console.print(f"{channels} channels, seed {seed}: {dict(results[-1].errors)}", soft_wrap=True)
            errors = {name: [result.errors[name] for result in results] for name in results[0].errors}
            cases[str(channels)] = {"seeds": list(SEEDS[: args.seeds]), "mse": errors}
            for name, values in errors.items():
                closed = fmean(result.gap_closed(name) for result in results)
                ends = f"{min(values):.4f} to {max(values):.4f}"
                rows.append((str(channels), name, f"{fmean(values):.4f}", ends, f"{closed:.2f}"))
    console.print(make_table(rows))
    record = {
        "benchmark": "known_operator",
        "settings": {"channels": args.channels, "seeds": args.seeds},
        "cases": cases,
    }
    save(record, args, command_line("benchmarks/known_operator.py", None), console)


def main() -> None:
    parser = make_parser(__doc__, "runs/known_operator.json")
    parser.add_argument("--channels", type=int, nargs="+", default=[FactorTable().channels])
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    with exit_on_error():
        run(parser.parse_args())


if __name__ == "__main__":
    main()
