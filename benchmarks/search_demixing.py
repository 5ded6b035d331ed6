"""Search the settings of demixing by its error on validation signals; demixing-trials.toml is the plan.

    python benchmarks/search_demixing.py run --workers 6 --out runs/search-demixing
    python benchmarks/search_demixing.py collect --out runs/search-demixing
    make pages

Finished trials are loaded, interrupted ones resume. `collect` stores them in the file that the plan names.
"""

import argparse
import multiprocessing
import tomllib
from functools import partial
from pathlib import Path

from toa._files import write_atomically
from toa.experiments.protocols import resolve
from toa.experiments.records import RECORD, read_record, record_line
from toa.experiments.run import run_folder, run_task
from toa_paper.demixing import DemixingConfig

ROOT = Path(__file__).parents[1]
PLAN = tomllib.loads((ROOT / "benchmarks" / "demixing-trials.toml").read_text(encoding="utf-8"))
TRIALS = [trial for family in PLAN["trials"].values() for trial in family]


def config_of(trial: str) -> DemixingConfig:
    """The config of a trial: it never reads the test signals."""
    attention, *changes = [*trial.split(), "test=false"]
    config: DemixingConfig = resolve(
        "demixing", PLAN["protocol"], attention=attention, seed=PLAN["seed"], changes=changes
    )
    return config


def run(out: Path, device: str, trial: str) -> str:
    """Run a trial, and describe its result in one line."""
    command = ["python", "benchmarks/search_demixing.py", "run"]
    record = run_task(config_of(trial), out, device=device, command=command)
    return f"{record['metrics']['val_mse']:.5f}  {trial}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("run", "collect"))
    parser.add_argument("--out", type=Path, default=Path("runs/search-demixing"), help="folder of the runs")
    parser.add_argument("--workers", type=int, default=1, help="run: number of trials at a time")
    parser.add_argument("--device", default="auto", help="run: auto, cpu or cuda")
    options = parser.parse_args()
    if options.action == "run":
        with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
            for line in pool.imap_unordered(partial(run, options.out, options.device), TRIALS):
                print(line, flush=True)
    else:
        folders = [run_folder(config_of(trial), options.out) for trial in TRIALS]
        lines = [record_line(read_record(folder / RECORD)) for folder in folders]
        write_atomically(ROOT / PLAN["records"], "".join(lines).encode())
        print(f"{len(lines)} trials in {PLAN['records']}")


if __name__ == "__main__":
    main()
