"""Write the tables of docs/performance.md from the records in results/performance.

    python benchmarks/performance_page.py [--check]

A table stands between `<!-- table NAME -->` and `<!-- end -->`; the text around it does not change. With `--check`
nothing is written, and the exit code is 1 if the page differs from the records.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

from toa.experiments.records import Record
from toa.report.tables import markdown_table
from toa_bench.tables import Table, complete_run, efficiency, growth, memory, primitive, steps

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
RECORDS = ROOT / "results" / "performance"

# each table of the page: the function that makes it, and its record
TABLES: dict[str, tuple[Callable[[Record], Table], str]] = {
    "primitive": (primitive, "operator_attention.json"),
    "primitive-tf32": (primitive, "operator_attention_tf32.json"),
    "memory": (memory, "operator_attention.json"),
    "steps": (steps, "training_step.json"),
    "steps-cpu": (steps, "training_step_cpu.json"),
    "steps-cpu-compiled": (steps, "training_step_cpu_compiled.json"),
    "efficiency": (efficiency, "efficiency.json"),
    "growth-channels": (growth, "growth_channels.json"),
    "growth-channels-cpu": (growth, "growth_channels_cpu.json"),
    "growth-batch": (growth, "growth_batch.json"),
    "run": (complete_run, "training_run.json"),
}


def made(name: str, folder: Path) -> str:
    """A table with the origin of its numbers, or a note that they are missing."""
    make, file = TABLES[name]
    path = folder / file
    if not path.exists():
        return f"Not measured yet: `results/performance/{file}` does not exist."
    record = json.loads(path.read_text(encoding="utf-8"))
    table = "\n".join(markdown_table(make(record), left=3 if make is steps else 1))
    versions = f"{record['device']}, PyTorch {record['versions']['torch']}, commit {record['commit']}"
    return f"{table}\n\n{versions}: `{record['command']}`"


def rendered(page: str, folder: Path = RECORDS) -> str:
    """The page with all tables made from the records."""

    def replace(match: re.Match[str]) -> str:
        name = match[1]
        if name not in TABLES:
            raise SystemExit(f"error: unknown table {name!r} on the page; known: {', '.join(TABLES)}.")
        return f"<!-- table {name} -->\n\n{made(name, folder)}\n\n<!-- end -->"

    return re.sub(r"<!-- table ([\w-]+) -->.*?<!-- end -->", replace, page, flags=re.DOTALL)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page would change")
    args = parser.parse_args(words)
    before = PAGE.read_text(encoding="utf-8")
    after = rendered(before)
    if not args.check:
        PAGE.write_text(after, encoding="utf-8")
    return int(args.check and before != after)


if __name__ == "__main__":
    sys.exit(main())
