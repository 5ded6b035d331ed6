"""Search the settings of the protocol `toa`: print the runs of the plan, and collect their validation errors.

    python benchmarks/search.py lines [--stage NAME ...] > runs.txt
    toa reproduce --runs runs.txt --executor pool --workers 16 --out runs
    python benchmarks/search.py collect runs [--out results/search/trials.jsonl]
    make pages

The plan is search.toml beside this file; `--stage confirm` is its last stage, further horizons and seeds of the best
trials. The last command writes the tables and the choice into results/search/README.md.
"""

import argparse
import json
from pathlib import Path

from toa.experiments.records import RECORD, read_record, write_records
from toa_bench.search import TRIALS, read_plan, read_trial, read_trials


def collect(folder: Path, target: Path) -> int:
    """Add the finished trials of a folder to a file; a trial that runs again replaces the stored one."""
    lines = target.read_text(encoding="utf-8").splitlines() if target.exists() else []
    rows = {row["config_hash"]: row for row in map(json.loads, lines)}
    for path in sorted(folder.rglob(RECORD)):
        row = read_trial(read_record(path), str(path))
        rows[row["config_hash"]] = row
    write_records(target, rows.values())
    return len(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("lines", "collect"))
    parser.add_argument("folder", nargs="?", type=Path, help="collect: folder of finished runs")
    parser.add_argument(
        "--stage", action="append", help="lines: stage of the plan, or confirm; all but that if not given"
    )
    parser.add_argument("--out", type=Path, default=TRIALS, help="collect: file to add the trials to")
    options = parser.parse_args()
    if options.action == "lines":
        plan = read_plan()
        if options.stage == ["confirm"]:
            print("\n".join(plan.confirm_lines(read_trials())))
        else:
            print("\n".join(plan.run_lines(options.stage or list(plan.stages))))
    elif options.folder is None:
        parser.error("collect needs the folder of the runs")
    else:
        print(f"{collect(options.folder, options.out)} trials in {options.out}")


if __name__ == "__main__":
    main()
