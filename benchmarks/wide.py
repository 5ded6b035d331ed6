"""Run the protocol toa-wide: sizes of the sets, trials and final runs on one machine, and the decision.

    python benchmarks/wide.py sizes                                # facts of the data sets
    python benchmarks/wide.py lines tune > runs.txt                # the runs that can start now
    python benchmarks/wide.py cost all                             # operations of the runs that can start now
    python benchmarks/wide.py run tune --records all.jsonl         # trials of all stages, each result added to the file
    python benchmarks/wide.py run final --records all.jsonl        # final runs of the systems whose settings are chosen
    python benchmarks/wide.py run all --records all.jsonl          # both, final runs as soon as they can start
    python benchmarks/wide.py collect all.jsonl                    # store the results and the choices in results/
    python benchmarks/wide.py decide                               # the rule of docs/many_channels.md

The plan is wide.toml, that of the decision; --plan names another: wide-rivals.toml or wide-scaling.toml. `decide`
also writes results/many_channels/decision.json, which the report reads. `run` needs the data in a data folder
(--data-dir, $TOA_DATA); a set that is not there is left out. It can be stopped and repeated: a run with a result in
--records, --stored or --results is not repeated.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from toa._files import write_atomically
from toa.experiments.records import RECORD, Record, checkout_commit, hashed_values, read_record, record_line
from toa.experiments.run import Job
from toa.experiments.sweep import Event, RunContext, sweep
from toa_bench.wide import (
    DIVERGED,
    PLAN,
    ROOT,
    WidePlan,
    choose_setting,
    pending_jobs,
    read_results,
    read_wide_plan,
)
from toa_bench.wide_cost import memory_hungry, run_cost
from toa_bench.wide_results import (
    checked_commit,
    decision_lines,
    decision_record,
    describe_sets,
    here,
    progress_line,
    slim_trial,
)

# facts of the data sets, below the folder of results
SETS = "many_channels/sets.json"
DECISION = "many_channels/decision.json"


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    for name in ("sizes", "lines", "cost", "run", "collect", "decide"):
        action = actions.add_parser(name)
        action.add_argument("--plan", type=Path, default=PLAN)
        action.add_argument(
            "--set", action="append", dest="sets", help="data set or case; all that are here if not given"
        )
        action.add_argument("--data-dir", type=Path)
        action.add_argument("--results", type=Path, default=ROOT / "results", help="folder of stored results")
        if name in ("lines", "cost", "run"):
            action.add_argument("stage", choices=("tune", "final", "all"))
            action.add_argument("--stored", type=Path, action="append", default=[], help="further files of results")
        if name == "run":
            action.add_argument("--records", type=Path, required=True, help="file that gets all results, old and new")
            action.add_argument(
                "--out", type=Path, default=Path("runs"), help="folder of the runs; weights are deleted"
            )
            action.add_argument("--workers", type=int, default=2)
            action.add_argument("--hungry-workers", type=int, default=1, help="of runs that take much memory")
            action.add_argument("--device", default="auto")
            action.add_argument(
                "--sources", type=Path, help="commit and git ids of the sources, for a copy without git"
            )
        if name == "collect":
            action.add_argument("files", type=Path, nargs="+")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    plan = read_wide_plan(options.plan)
    folder = options.results
    match options.action:
        case "sizes":
            facts = describe_sets(plan, options.data_dir)
            write_atomically(folder / SETS, (json.dumps(facts, indent=2) + "\n").encode())
            print(f"sizes of {len(facts)} data sets in {folder / SETS}")
        case "lines" | "cost":
            results = read_results([folder / plan.stored.trials, folder / plan.stored.runs, *options.stored])
            jobs = pending_jobs(plan, options.stage, here(plan, options.sets, options.data_dir), results)
            if options.action == "cost":
                operations = sum(run_cost(job.config) for job in jobs)
                print(f"{len(jobs)} runs, {operations / 1e15:.1f} PFLOP")
            else:
                for job in jobs:
                    print(job.label)
        case "run":
            run(plan, options)
        case "collect":
            collect(plan, options.files, folder)
        case "decide":
            results = read_results([folder / plan.stored.trials, folder / plan.stored.runs])
            record = decision_record(plan, results, json.loads((folder / SETS).read_text("utf-8")))
            write_atomically(folder / DECISION, (json.dumps(record, indent=2) + "\n").encode())
            for line in decision_lines(record):
                print(line)


def run(plan: WidePlan, options: argparse.Namespace) -> None:
    """Run a stage until nothing is left to do, or until a signal stops it."""
    datasets = here(plan, options.sets, options.data_dir)
    # a copy may lie in the checkout of another commit: the ids of its sources decide
    commit = checkout_commit() if options.sources is None else checked_commit(options.sources)
    print(f"{len(datasets)} data sets, stage {options.stage}, commit {commit}", flush=True)
    stored = [
        options.results / plan.stored.trials,
        options.results / plan.stored.runs,
        *options.stored,
        options.records,
    ]
    results = read_results(stored)
    write_atomically(options.records, "".join(map(record_line, results.values())).encode())
    context = RunContext(out=options.out, data_dir=options.data_dir, device=options.device)
    counts: Counter[str] = Counter()
    broken: dict[str, str] = {}
    begin = time.monotonic()
    try:
        while jobs := [job for job in pending_jobs(plan, options.stage, datasets, results) if job.key not in broken]:
            hungry = [job for job in jobs if memory_hungry(job.config)]
            others = [job for job in jobs if not memory_hungry(job.config)]
            # few of the runs that take much memory fit on a GPU: they wait until nothing else is left
            group = others or hungry
            known = {job.key: job for job in group}

            def watch(event: Event, known: dict[str, Job] = known) -> None:
                if event.kind in ("begin", "step", "waiting", "died"):
                    return
                job = known[event.key]
                record = ended_run(job, event, options.out, commit)
                counts[event.kind] += 1
                if record is None:
                    broken[event.key] = event.message
                else:
                    results[event.key] = record
                    with options.records.open("a", encoding="utf-8") as file:
                        file.write(record_line(record))
                print(progress_line(job, event, counts, len(known), time.monotonic() - begin), flush=True)

            sweep(
                group,
                context,
                executor="pool",
                workers=options.workers if others else options.hungry_workers,
                watch=watch,
            )
    except KeyboardInterrupt:
        print("stopped; repeat the command for the rest", flush=True)
    for key, text in broken.items():
        print(f"not finished, {key}: {text}", file=sys.stderr)
    left = len(pending_jobs(plan, options.stage, datasets, results))
    print(f"{counts['done'] + counts['found']} finished, {counts['failed']} failed, {left} left that can start now")


def ended_run(job: Job, event: Event, out: Path, commit: str | None) -> Record | None:
    """The record of a run that ended; one without metrics if it diverged; None if it failed for another reason."""
    folder = job.folder(out)
    for file in folder.glob("*.safetensors"):
        # hundreds of runs would fill the disk
        file.unlink()
    if event.kind in ("done", "found"):
        record = read_record(folder / RECORD)
        return {**record, "commit": commit or record["commit"]}
    if not event.message.startswith(DIVERGED):
        return None
    return {
        "task": job.task,
        "name": job.config.name,
        "config": json.loads(json.dumps(hashed_values(job.config))),
        "config_hash": job.key,
        "seed": job.config.seed,
        "command": " ".join(job.command),
        "commit": commit,
        "metrics": {},
        "error": event.message,
    }


def collect(plan: WidePlan, files: list[Path], folder: Path) -> None:
    """Store results, those of trials without history, and the chosen settings."""
    results = read_results([folder / plan.stored.trials, folder / plan.stored.runs, *files])
    trials: list[Record] = []
    finals: list[Record] = []
    for record in results.values():
        if record["config"].get("test", True):
            finals.append(record)
        else:
            trials.append(slim_trial(record))
    for path, records in ((folder / plan.stored.trials, trials), (folder / plan.stored.runs, finals)):
        ordered = sorted(records, key=lambda record: str(record["command"]))
        write_atomically(path, "".join(map(record_line, ordered)).encode())
        print(f"{len(ordered)} records in {path}")
    choices: dict[str, dict[str, Any]] = {}
    for unit, members in plan.units.items():
        for dataset in members:
            for system in plan.systems:
                if (choice := choose_setting(plan, dataset, system, results)) is not None:
                    choices.setdefault(dataset, {})[system] = {
                        "unit": unit,
                        "learning_rate": choice.setting.rate,
                        "instance_norm": choice.setting.instance_norm,
                        "at_edge": choice.at_edge,
                        "validation": {
                            f"{one.rate:g}{' with' if one.instance_norm else ' without'} instance norm": value
                            for one, value in choice.validation.items()
                        },
                    }
    write_atomically(folder / plan.stored.choices, (json.dumps(choices, indent=2) + "\n").encode())
    print(f"settings of {sum(map(len, choices.values()))} systems and data sets in {folder / plan.stored.choices}")


if __name__ == "__main__":
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")
    main()
