"""Write every table and every measured number on every page from the stored records: none is typed by hand.

    python docs/page_tables.py [--check]

A table stands between `<!-- generated: NAME -->` and `<!-- end -->`, a number of a sentence between
`<!-- value: NAME -->` and `<!-- end -->` (page_values.py); the text around them is kept. With `--check` nothing is
written, and the exit code is 1 if a page differs from its records.
"""

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path

import classification_tables
import demixing_tables
import detection_tables
import forecasting_tables
import leaderboard_tables
import many_channels_tables
import paper_tables
import performance_tables
import pretraining_tables
import properties_tables
import reliability_tables
import repeat_tables
import search_tables
import settings_tables
import two_axis_tables
import use_table
from page_values import VALUES
from performance_tables import table
from stored_results import RESULTS, ROOT, stored_records
from toa.estimators.effort import EFFORTS, Effort

# each of them has TABLES: the functions that make tables, by the name on a page
MODULES = (
    classification_tables,
    demixing_tables,
    detection_tables,
    forecasting_tables,
    leaderboard_tables,
    many_channels_tables,
    paper_tables,
    performance_tables,
    pretraining_tables,
    properties_tables,
    reliability_tables,
    repeat_tables,
    search_tables,
    settings_tables,
    two_axis_tables,
    use_table,
)
MARKER = re.compile(r"<!-- (generated|value): ([\w.-]+) -->.*?<!-- end -->", re.DOTALL)


def agreement_table() -> str:
    """Differences between our backbones and their authors' code, and the command."""
    records = stored_records("agreement/agreement.jsonl")
    rows = []
    for r in records:
        differences = (f"{r[part]:.0e}" for part in ("output", "gradient"))
        rows.append([r["backbone"], f"{r['peer']} at {r['peer_commit'][:12]}", r["dtype"], *differences])
    titles = ["backbone", "authors' code", "dtype", "output", "gradient of the weights"]
    return f"{table(titles, rows, left=3)}\n\nCommit {records[0]['commit']}: `{records[0]['command']}`"


def efforts_table() -> str:
    """What each effort limits, from the code."""
    levels = [EFFORTS[name] for name in ("quick", "thorough")]
    rows = []
    for field in fields(Effort):
        meaning = str(field.metadata["limits"])
        rows.append([meaning, *(f"{getattr(level, field.name):,}" for level in levels)])
    return table(("limit", "`quick` (default)", "`thorough`"), rows)


def findings() -> str:
    """What the report's summary states first and last: many channels and few, and what was not tested."""
    text = (RESULTS / "report" / "summary.md").read_text(encoding="utf-8")
    first, *_, tested = text.split("## What was found")[1].split("##")[0].strip().splitlines()
    return f"{first}\n{tested}"


TABLES: Mapping[str, Callable[[], str]] = {
    "agreement": agreement_table,
    "efforts": efforts_table,
    "findings": findings,
    **{name: make for module in MODULES for name, make in module.TABLES.items()},
}


def written_pages(root: Path = ROOT) -> list[Path]:
    """Pages with a table or a value, without those that building the site makes."""
    folders = (root / "docs", root / "docs" / "howto", root / "results")
    pages = [root / "README.md", *(path for folder in folders[:2] for path in sorted(folder.glob("*.md")))]
    pages += sorted(folders[2].rglob("*.md"))
    return [page for page in pages if page.exists() and MARKER.search(page.read_text(encoding="utf-8"))]


def rendered(page: str) -> str:
    """The page with every table and every value made again.

    Raises:
        ValueError: If the page names an unknown one.
    """

    def replace(match: re.Match[str]) -> str:
        kind, name = match.groups()
        if kind == "generated":
            return f"<!-- {kind}: {name} -->\n\n{made('table', name, TABLES)}\n\n<!-- end -->"
        return f"<!-- {kind}: {name} -->{made('value', name, VALUES)}<!-- end -->"

    return MARKER.sub(replace, page)


def made(kind: str, name: str, makers: Mapping[str, Callable[[], str]]) -> str:
    """The text of a table or a value."""
    if name not in makers:
        raise ValueError(f"{kind} {name!r} on the page must be one of {', '.join(makers)}.")
    return makers[name]()


def main(words: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page would change")
    args = parser.parse_args(words)
    changed = 0
    for path in written_pages(root):
        before = path.read_text(encoding="utf-8")
        after = rendered(before)
        changed += before != after
        if not args.check:
            path.write_text(after, encoding="utf-8")
    return int(args.check and changed > 0)


if __name__ == "__main__":
    sys.exit(main())
