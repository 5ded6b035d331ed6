"""The page and the texts of the comparison with the paper; `paper.js` draws the page from a JSON document."""

import base64
import os
import re
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path

from toa._files import write_atomically
from toa.report.gains import lower_is_better
from toa.report.html_page import PAGE_SCRIPTS, Data, assemble
from toa.report.operators import model_label
from toa.training.diagnostics import describe_operators
from toa_paper.report import paper_text
from toa_paper.report.cells import Entry, contribution, decimals
from toa_paper.report.evidence import Run
from toa_paper.report.findings import found_parts
from toa_paper.report.paper import PaperReport
from toa_paper.tables import TABLES

# the page with every item of the paper, from the folder of the stored report
_ITEMS = "../../docs/paper.md"


def write_report(report: PaperReport, out: Path) -> list[Path]:
    """Write index.html, report.md, summary.md and the diagrams of report.md; returns their paths."""
    folder = files("toa_paper.report")
    body = (folder / "paper.html").read_text(encoding="utf-8")
    scripts = (*PAGE_SCRIPTS, folder / "paper.js")
    written = {"index.html": assemble("The paper, reproduced", body, scripts, page_data(report, out))}
    # the report of the repository links to the page beside it
    items = f"[docs/paper.md]({_ITEMS})" if (out / _ITEMS).is_file() else "`docs/paper.md`"
    texts = {"report.md": paper_text.full_text(report, items), "summary.md": paper_text.summary(report, items)}
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
        "regimes": [[re.sub(r"\*\*|`", "", cell) for cell in row] for row in paper_text.regimes(report)],
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
