"""Search the settings of the protocol `toa`: print the runs of a plan, and collect their validation errors.

    python benchmarks/search.py lines [--plan FILE] [--stage NAME ...] [--all] > runs.txt
    toa reproduce --runs runs.txt --executor pool --workers 16 --out runs
    python benchmarks/search.py collect runs [--plan FILE]
    make pages

The plans lie beside this file: search.toml (forecasting), search-classify.toml (classification), the same two for the
backbone two-axis (search-two-axis.toml, search-classify-two-axis.toml), search-signed.toml (signed attentions) and
search-pooled.toml (PatchTST with a pooled head). Stored trials are printed only with `--all`. `--stage confirm` is the
last stage, further horizons and seeds of the best trials. The last command writes the tables and the choice into
results/search/README.md.
"""

import argparse
import json
from pathlib import Path

from toa._files import write_atomically
from toa.experiments.records import RECORD, read_record, record_line
from toa_bench.search import PLAN, ROOT, Plan, read_plan, read_trial, read_trials, reused_trials


def collect(plan: Plan, folder: Path, target: Path) -> int:
    """Add the finished trials of a folder to a file, whose other lines stay; a trial run again replaces its line."""
    stored = target.read_text(encoding="utf-8").splitlines(keepends=True) if target.exists() else []
    lines = {json.loads(line)["config_hash"]: line for line in stored}
    # the file is complete without the search that it reuses
    lines |= {row["config_hash"]: record_line(row) for row in reused_trials(plan)}
    for path in sorted(folder.rglob(RECORD)):
        row = read_trial(plan, read_record(path), str(path))
        lines[row["config_hash"]] = record_line(row)
    write_atomically(target, "".join(lines.values()).encode())
    return len(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("lines", "collect"))
    parser.add_argument("folder", nargs="?", type=Path, help="collect: folder of finished runs")
    parser.add_argument(
        "--stage", action="append", help="lines: stage of the plan, or confirm; all but that if not given"
    )
    parser.add_argument("--all", action="store_true", help="lines: also the trials that are stored, to repeat them")
    parser.add_argument("--plan", type=Path, default=PLAN, help="file of the plan")
    parser.add_argument("--out", type=Path, help="collect: file to add the trials to; that of the plan if not given")
    options = parser.parse_args()
    plan = read_plan(options.plan)
    if options.action == "lines":
        found = read_trials(plan)
        stored = {} if options.all else found
        if options.stage == ["confirm"]:
            lines = plan.confirm_lines(found, stored)
        else:
            lines = plan.run_lines(options.stage or list(plan.stages), found, stored)
        for line in lines:
            print(line)
    elif options.folder is None:
        parser.error("collect needs the folder of the runs")
    else:
        target = options.out or ROOT / plan.records
        print(f"{collect(plan, options.folder, target)} trials in {target}")


if __name__ == "__main__":
    main()
