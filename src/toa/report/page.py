"""Self-contained HTML pages: sections with text, tables and pictures, and the comparison with the paper.

The page of the comparison and the pages of estimators hold a JSON document, compressed, which scripts draw: `page.js`
and `operators.js`, which they share, and `paper.js` or `results.js`.
"""

import base64
import gzip
import html
import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from toa._files import write_atomically
from toa.experiments.paper.tables import TABLES
from toa.report import paper_text
from toa.report.cells import Entry, contribution, decimals
from toa.report.evidence import Run
from toa.report.findings import found_parts
from toa.report.gains import lower_is_better
from toa.report.operators import model_label
from toa.report.paper import PaperReport
from toa.report.tables import Rows, html_table
from toa.tasks.diagnostics import describe_operators

Data = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A part of a page; empty fields are left out.

    Args:
        lead: Text before the table.
        pictures: PNG files with their descriptions, side by side if there is enough width.
        reading: Text after the pictures.
        details: A header and rows that are hidden until opened.
        details_title: What the reader clicks to open the details.
        stacked: Put pictures below each other.
    """

    title: str = ""
    lead: str = ""
    table: Rows = ()
    pictures: Sequence[tuple[Path, str]] = ()
    reading: str = ""
    details: Rows = ()
    details_title: str = "Runs"
    stacked: bool = False


def write_sections(heading: str, sections: Sequence[Section], path: Path) -> Path:
    """Write a page that needs no other file; all text is escaped."""
    template = Template((files("toa.report") / "page.html").read_text(encoding="utf-8"))
    page = template.substitute(heading=html.escape(heading), sections="\n".join(map(_section, sections)))
    write_atomically(path, page.encode())
    return path


def _section(section: Section) -> str:
    pictures = "".join(
        f'<img alt="{html.escape(text)}" src="data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}">'
        for file, text in section.pictures
    )
    kind = "pictures stacked" if section.stacked else "pictures"
    summary = f"<summary>{html.escape(section.details_title)}</summary>"
    parts = (
        section.title and f"<h2>{html.escape(section.title)}</h2>",
        section.lead and f"<p>{html.escape(section.lead)}</p>",
        html_table(section.table),
        pictures and f'<div class="{kind}">{pictures}</div>',
        section.reading and f"<p>{html.escape(section.reading)}</p>",
        section.details and f"<details>{summary}\n{html_table(section.details)}</details>",
    )
    return "\n".join(str(part) for part in parts if part)


def assemble(title: str, body: str, scripts: Sequence[str], data: Data) -> bytes:
    """A page with a style, scripts and data, which need no other file.

    Args:
        body: Markup before the data.
        scripts: Names of files of this folder; together they draw the data.
        data: JSON values. They are compressed, so that no text in them can end the script.
    """
    folder = files("toa.report")
    # NaN and infinities, which JSON does not have, become null
    plain = json.loads(json.dumps(data), parse_constant=lambda name: None)
    content = json.dumps(plain, separators=(",", ":"), ensure_ascii=False)
    read = {name: (folder / name).read_text(encoding="utf-8") for name in ("skeleton.html", "page.css", *scripts)}
    parts = {
        "title": html.escape(title),
        "style": read["page.css"].strip(),
        "script": "\n\n".join(read[name].strip() for name in scripts),
        "data": base64.b64encode(gzip.compress(content.encode(errors="replace"), mtime=0)).decode(),
        "body": body.strip(),
    }
    # at once, so that no part is searched for the names of the others
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], read["skeleton.html"]).encode(errors="replace")


def write_results(title: str, data: Data, path: Path) -> Path:
    """Write the page of an estimator's results; `toa.estimators.pages` describes the data."""
    body = "<header><h1></h1></header>\n<main></main>\n<noscript><p>This page needs JavaScript.</p></noscript>"
    write_atomically(path, assemble(title, body, ("page.js", "operators.js", "results.js"), data))
    return path


def write_report(report: PaperReport, out: Path) -> list[Path]:
    """Write index.html, report.md, summary.md and the diagrams of report.md; returns their paths."""
    body = (files("toa.report") / "paper.html").read_text(encoding="utf-8")
    scripts = ("page.js", "operators.js", "paper.js")
    written = {"index.html": assemble("The paper, reproduced", body, scripts, page_data(report, out))}
    texts = {"report.md": paper_text.full_text(report), "summary.md": paper_text.summary(report)}
    written |= {name: ("\n".join(lines).rstrip() + "\n").encode() for name, lines in texts.items()}
    written |= {contest.file: contest.diagram.encode() for contest in report.contests if contest.diagram}
    for name, content in written.items():
        write_atomically(out / name, content)
    return [out / name for name in written]


def page_data(report: PaperReport, out: Path) -> Data:
    """The data of a page in the folder `out`."""
    pictured = {model["config_hash"] for model in report.operators}
    # every run behind a number or an operator, once
    shown = [run for entry in report.entries for run in entry.runs]
    shown += [run for run in report.evidence.runs if run.record["config_hash"] in pictured]
    runs = list({run.where: run for run in shown}.values())
    places = {run.where: place for place, run in enumerate(runs)}
    paths = list(dict.fromkeys(run.path for run in runs))
    recipes = paper_text.recipe_table, paper_text.ablation_table
    by_hash = {run.record["config_hash"]: places[run.where] for run in runs}
    return {
        "headline": paper_text.progress_line(report),
        "found": {
            title: [re.sub(r"\*\*|`", "", words) for words in lines] for title, lines in found_parts(report).items()
        },
        "summary": paper_text.status_table(report),
        "recipes": [make(report.recipes) for make in recipes] if report.recipes else [],
        "signed": paper_text.signed_table(report.evidence.signed) if report.evidence.signed else [],
        "ranks": [asdict(row) for row in report.ranks],
        "contests": [
            {
                "title": contest.title,
                "table": contest.results,
                "notes": contest.notes,
                "diagram": base64.b64encode(contest.diagram.encode()).decode(),
            }
            for contest in report.contests
        ],
        "lines": [_line(entry, [places[run.where] for run in entry.runs]) for entry in report.entries],
        "records": [_record(run, paths.index(run.path)) for run in runs],
        # the leading dot keeps a browser from reading a file name as another kind of address
        "files": [f"./{Path(os.path.relpath(path.resolve(), out.resolve())).as_posix()}" for path in paths],
        "operators": [
            {
                "label": model["label"],
                "hash": model["config_hash"],
                "record": by_hash.get(model["config_hash"], -1),
                "pictures": model["pictures"],
            }
            for model in report.operators
        ],
        "skipped": [line.removeprefix("- ") for line in paper_text.left_out(report)],
    }


def _line(entry: Entry, records: list[int]) -> Data:
    number = entry.number
    return {
        "task": TABLES[number.table].task,
        "table": number.table,
        "dataset": number.dataset,
        "data": f"{number.dataset} {number.horizon}".strip(),
        "backbone": number.backbone,
        "attention": number.variant,
        "metric": number.metric if entry.comparable else entry.metric,
        "read": entry.metric,
        "higher": not lower_is_better(number.metric),
        "protocol": entry.protocol,
        "extra": not entry.own,
        "published": number.text if entry.comparable else "",
        "digits": decimals(number.text) + 1,
        "text": paper_text.our_text(entry),
        "mean": _rounded(entry.mean),
        "difference": _rounded(entry.difference),
        "values": [[seed, _rounded(value)] for seed, value in entry.values.items()],
        "seeds": len(entry.values) or None,
        # a mean rank uses the runs of all attentions
        "without_operators": None if number.metric == "avg_rank" else _rounded(contribution(entry.runs), 3),
        "status": entry.status,
        "reason": entry.reason,
        "records": records,
    }


def _record(run: Run, file: int) -> Data:
    record = run.record
    return {
        "label": model_label(record),
        "hash": record["config_hash"],
        "file": file,
        "line": run.line,
        "command": record.get("command", ""),
        "checksum": str(record.get("data_checksum") or "")[:16],
        **{name: record.get(name) for name in ("device", "commit", "best_epoch")},
        "seconds": record.get("wall_s"),
        "operators": " ".join(describe_operators(record)) or None,
        "metrics": {name: _rounded(value) for name, value in record["metrics"].items()},
        "history": [
            {part: _rounded(entry[part], 4) for part in ("train", "validation") if part in entry}
            for entry in record.get("history") or ()
        ],
    }


def _rounded(value: float | None, digits: int = 6) -> float | None:
    return None if value is None else float(f"{value:.{digits}g}")
