"""Texts of pages, and tables as a header and rows of text: written as Markdown or HTML, and made from records."""

import html
import re
import tomllib
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any, TypeVar

from toa.experiments.records import Record

K = TypeVar("K")
V = TypeVar("V")

Rows = Sequence[Sequence[str]]
Table = list[tuple[str, ...]]

TEXTS: dict[str, Any] = tomllib.loads((files("toa.report") / "text.toml").read_text(encoding="utf-8"))

ANOMALY_COLUMNS = {
    "precision": "precision",
    "recall": "recall",
    "f1": "F1",
    "pa_f1": "PA-F1",
    "random_pa_f1": "random PA-F1",
    "pa_k_f1": "PA%K-F1",
    "range_f1": "range F1",
    "vus_pr": "VUS-PR",
    "vus_roc": "VUS-ROC",
}


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of each key, in the order of the pairs."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def number(value: float | None, form: str = ".4f", missing: str = "-") -> str:
    """A number as text; `missing` if there is none."""
    return missing if value is None else format(value, form)


def signed(*values: float) -> str:
    """A change, or an interval of changes, with one digit."""
    # adding zero turns -0.0 into 0.0
    return " to ".join(f"{round(value, 1) + 0.0:+.1f}" for value in values)


def markdown_table(rows: Rows, *, left: int = 1) -> list[str]:
    """Lines of a Markdown table; the first `left` columns are aligned left, the others right."""
    header, *body = rows
    rule = ["---" if place < left else "---:" for place in range(len(header))]
    return [f"| {' | '.join(cells)} |" for cells in (header, rule, *body)]


def escape_markdown(text: str) -> str:
    """Text that Markdown and HTML show unchanged, in one line."""
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", html.escape(" ".join(text.split()), quote=False))


def html_table(rows: Rows) -> str:
    """An HTML table with all text escaped; empty if there are no rows."""

    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    if not rows:
        return ""
    header, *body = rows
    return f'<div class="table"><table>{line(header, "th")}{"".join(line(row, "td") for row in body)}</table></div>'


def anomaly_table(record: Record) -> Table:
    """One row per set of rules; "-" is undefined, and a star marks the main metric of the rules."""
    rows: Table = [("rules", *ANOMALY_COLUMNS.values())]
    for rules, block in record["detections"].items():
        values = {name: record["metrics"].get(f"{rules}/{name}") for name in ANOMALY_COLUMNS}
        stars = {block["headline"]: "*"}
        cells = ("-" if value is None else f"{value:.3f}{stars.get(name, '')}" for name, value in values.items())
        rows.append((rules, *cells))
    return rows


def undefined_notes(record: Record) -> list[str]:
    """Why numbers are missing in the anomaly table, one sentence per set of rules and reason."""
    notes = []
    for rules, block in record["detections"].items():
        shown = ((why, ANOMALY_COLUMNS[name]) for name, why in block["undefined"].items() if name in ANOMALY_COLUMNS)
        for reason, names in grouped(shown).items():
            notes.append(f"{rules}: {', '.join(names)} undefined: {reason}.")
    return notes
