"""Tables of docs/paper.md: every item of the paper, where it is here, what was found and what differs.

`paper_items.toml` has the rows in words. What was found for published numbers comes from the stored report, and for a
lemma from the matrices of its case.
"""

import functools
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from performance_tables import table
from settings_tables import TASKS, count_departures
from stored_results import RESULTS
from toa._checks import ArgumentError
from toa.ops import simplex_distance
from toa.training.config import build_config
from toa_paper.settings import Stated, paper_settings
from toa_paper.theory import CASES, multihead_distance

ITEMS = Path(__file__).with_name("paper_items.toml")
# columns of the report's table of progress, without that of the name
PROGRESS = "numbers, measured, partial, failed, not run, no data, no settings, as good or better, median difference"


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperItem:
    """A row; `paper_items.toml` explains the fields."""

    labels: tuple[str, ...]
    name: str
    about: str
    where: str
    published: str = ""
    case: str = ""
    found: str = ""
    differs: str = ""

    def __post_init__(self) -> None:
        stated = [name for name in ("published", "case", "found") if getattr(self, name)]
        if len(stated) != 1:
            raise ArgumentError(self.name, "have one of published, case and found", stated)

    def finding(self) -> str:
        """What was found."""
        if self.published:
            return measured_text(self.published)
        if self.case:
            return case_text(self.case)
        return self.found


@functools.cache
def paper_items() -> Mapping[str, tuple[PaperItem, ...]]:
    """The rows by the table of the page that has them."""
    content = tomllib.loads(ITEMS.read_text(encoding="utf-8"))
    return {
        kind: tuple(build_config(PaperItem, entry, f"{kind} of {ITEMS.name}") for entry in entries)
        for kind, entries in content.items()
    }


@functools.cache
def progress() -> Mapping[str, Mapping[str, str]]:
    """The report's table of progress: a row for each table of published numbers."""
    text = (RESULTS / "report" / "summary.md").read_text(encoding="utf-8").split("## Progress")[1]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", text, re.M)]
    columns = PROGRESS.split(", ")
    if rows[0][1:] != columns:
        raise ArgumentError("the report's table of progress", f"have the columns {PROGRESS}", ", ".join(rows[0]))
    return {row[0]: dict(zip(columns, row[1:], strict=True)) for row in rows[2:]}


def measured_text(name: str) -> str:
    """How many numbers of a published table were measured, and how they compare."""
    row = progress()[name]
    measured = row["measured"] or "none"
    text = f"{measured} of {row['numbers']} numbers measured"
    if row["partial"]:
        text += f", {row['partial']} over a part of the sets"
    if row["no data"]:
        text += f"; no data for {row['no data']}"
    if row["as good or better"]:
        text += f"; as good or better: {row['as good or better']}"
    if row["median difference"]:
        text += f"; median difference {row['median difference']}"
    return text


def case_text(name: str) -> str:
    """Whether the claims of a lemma hold for its matrices, and how far softmax is from them."""
    case = CASES[name]()
    failed = [claim for claim, holds in case.facts.items() if not holds]
    verdict = f"fails: {', '.join(failed)}" if failed else f"holds ({', '.join(case.facts)})"
    one_head = float(simplex_distance(case.operators).max())
    many_heads = float(multihead_distance(case.operators).max())
    return f"{verdict}; distance from one softmax head {one_head:.2f}, from many {many_heads:.2f}"


def item_table(kind: str) -> str:
    """One row per item of a kind."""
    rows = [[item.name, item.about, item.where, item.finding(), item.differs] for item in paper_items()[kind]]
    return table(["in the paper", "what it states", "here", "what was found", "what differs"], rows, left=5)


def setting_list() -> str:
    """Every setting that the paper or the code that it follows states: a row for each name."""
    by_key: dict[str, list[Stated]] = {}
    for entry in paper_settings().stated:
        by_key.setdefault(entry.key, []).append(entry)
    rows = []
    for key, entries in by_key.items():
        tasks = dict.fromkeys(TASKS[name] for entry in entries for name in entry.tables)
        values = dict.fromkeys(stated_text(entry) for entry in entries)
        rows.append([f"`{key}`", ", ".join(tasks) or "all", "; ".join(values), same_text(key, entries)])
    return table(["setting", "of", "stated", "here"], rows, left=4)


def stated_text(entry: Stated) -> str:
    """A stated value, with the backbones and attentions that it is about."""
    where = ", ".join((*entry.backbones, *entry.attentions))
    return f"{entry.text} ({where})" if where else entry.text


def same_text(key: str, entries: Sequence[Stated]) -> str:
    """Whether all runs have the stated values."""
    different = 0
    total = 0
    for entry in entries:
        departing, held = count_departures(entry)
        different += departing
        total += held
    if not different:
        return "the same"
    return f"[differs](protocols.md#where-toa-paper-departs-from-the-paper) in {different:,} of {total:,} runs"


TABLES: Mapping[str, Callable[[], str]] = {
    **{f"paper-{kind}": partial(item_table, kind) for kind in ("figures", "tables", "theory", "sections")},
    "paper-setting-list": setting_list,
}
