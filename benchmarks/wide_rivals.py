"""Rivals without a network on the data sets of the protocol toa-wide, on one CPU.

    python benchmarks/wide_rivals.py [--set NAME] [--system NAME] [--out FILE]

    seasonal-naive    repeats the last season of the look-back
    own-lags          ridge regression of each channel on its own look-back
    all-channels      the same with principal components of the last rows of all channels
    boosted-trees     gradient boosting on lags (needs the package lightgbm)

Splits, scales and windows are those of benchmarks/wide.py, and validation chooses the settings. What is random has a
fixed seed: the start of the search for components, and the rows that are drawn for the trees. Each result is added to
the file at once; one that is there is not computed again.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import toa_bench.wide_boosting  # noqa: F401 (registers the trees)
from toa.experiments.records import provenance, record_line
from toa.training.distributed import resolve_device
from toa_bench.script import command_line, exit_on_error, make_parser
from toa_bench.wide import ROOT, horizons, read_wide_plan
from toa_bench.wide_results import here
from toa_bench.wide_rivals import RIVALS, load_data

OUT = ROOT / "results" / "many_channels" / "rivals.jsonl"


def main() -> None:
    parser = make_parser(__doc__, str(OUT.relative_to(ROOT)))
    parser.add_argument("--set", action="append", dest="sets", help="data set; all that are here if not given")
    parser.add_argument("--system", action="append", choices=list(RIVALS), help="all if not given")
    parser.add_argument("--data-dir", type=Path)
    with exit_on_error():
        run(parser.parse_args())


def run(args: argparse.Namespace) -> None:
    """Compute what is missing in the file."""
    plan = read_wide_plan()
    done = {key_of(record) for record in read_rivals(args.out)}
    facts = provenance(resolve_device("cpu"), command_line("benchmarks/wide_rivals.py", None))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for dataset in here(plan, args.sets, args.data_dir):
        for horizon in horizons(plan, dataset):
            missing = [name for name in args.system or RIVALS if (dataset, horizon, name) not in done]
            if not missing:
                continue
            data = load_data(plan, dataset, horizon, args.data_dir)
            for name in missing:
                begin = time.process_time()
                found = RIVALS[name](data)
                record: dict[str, Any] = {
                    "benchmark": "wide_rivals",
                    "protocol": plan.protocol,
                    "dataset": dataset,
                    "horizon": horizon,
                    "system": name,
                    "data_checksum": data.windows.checksum,
                    "cpu_s": round(time.process_time() - begin, 1),
                    **found,
                    **facts,
                }
                with args.out.open("a", encoding="utf-8") as file:
                    file.write(record_line(record))
                metrics = record["metrics"]
                errors = f"MSE {metrics['mse']:.4f}, validation {metrics['val_mse']:.4f}"
                print(f"{dataset} {horizon} {name}: {errors}, {record['cpu_s']} s of CPU", flush=True)


def read_rivals(path: Path) -> list[dict[str, Any]]:
    """Results of a file; none if it does not exist."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def key_of(record: dict[str, Any]) -> tuple[str, int, str]:
    """What a result is of."""
    return record["dataset"], record["horizon"], record["system"]


if __name__ == "__main__":
    main()
