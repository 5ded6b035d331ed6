"""The comparison with the paper as one page that needs no other file: data, style and script inside.

The page's own script is in `paper.js` and `paper_operators.js`; what it draws is a JSON document, compressed to keep
the page small, which `read_page` gives back.
"""

import base64
import gzip
import json
import os
import re
from collections.abc import Iterable
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

from toa._files import write_atomically
from toa.report.cells import Line
from toa.report.comparison import system_table
from toa.report.evidence import Run
from toa.report.operators import ModelPictures, model_label
from toa.report.paper import PaperReport
from toa.report.paper_text import full_text, left_out, our_text, status_table, summary
from toa.report.ranks import decimals, higher_is_better
from toa.report.significance import Contest

Data = dict[str, Any]
PAGE, FULL, SHORT = "index.html", "report.md", "summary.md"


def write_report(report: PaperReport, out: Path) -> list[Path]:
    """Write index.html, report.md, summary.md and the diagrams of the text into a folder; returns their paths."""
    page = _template("paper.html")
    style = _template("paper.css").strip()
    script = f"{_template('paper_operators.js').strip()}\n\n{_template('paper.js').strip()}"
    content = json.dumps(page_data(report, out), separators=(",", ":"), ensure_ascii=False)
    packed = base64.b64encode(gzip.compress(content.encode(), mtime=0)).decode()
    for name, part in (("style", style), ("script", script), ("data", packed)):
        page = page.replace(f"{{{{{name}}}}}", part)
    written = {PAGE: page, FULL: _joined(full_text(report)), SHORT: _joined(summary(report))}
    written |= {contest.file: contest.diagram for contest in report.contests if contest.diagram}
    for name, text in written.items():
        write_atomically(out / name, text.encode())
    return [out / name for name in written]


def read_page(path: Path) -> Data:
    """The data that a page draws.

    Raises:
        ValueError: If it is no page of a report.
    """
    found = re.search(r'id="data">([A-Za-z0-9+/=\s]+)<', path.read_text(encoding="utf-8"))
    if found is None:
        raise ValueError(f"{path} must be a page that `toa report` wrote, got another.")
    content: Data = json.loads(gzip.decompress(base64.b64decode(found[1])))
    return content


def page_data(report: PaperReport, out: Path) -> Data:
    """What a page in a folder draws."""
    runs = _shown_runs(report)
    places = {run.where: place for place, run in enumerate(runs)}
    paths = list(dict.fromkeys(run.path for run in runs))
    by_hash = {run.record["config_hash"]: places[run.where] for run in runs}
    return {
        "headline": summary(report)[0],
        "summary": status_table([line for line in report.lines if line.own]),
        "ranks": [asdict(row) for row in report.ranks],
        "contests": [_contest(contest) for contest in report.contests],
        "lines": [_line(line, [places[run.where] for run in line.runs]) for line in report.lines],
        "records": [_record(run, paths.index(run.path)) for run in runs],
        # a dot before each: no name of a file is taken for another kind of address
        "files": [f"./{Path(os.path.relpath(path.resolve(), out.resolve())).as_posix()}" for path in paths],
        "operators": [_operators(model, by_hash.get(model.config_hash)) for model in report.operators],
        "skipped": [words.removeprefix("- ") for words in left_out(report)],
    }


def _shown_runs(report: PaperReport) -> list[Run]:
    """Every run that a number or an operator leads to, once."""
    pictured = {model.config_hash for model in report.operators}
    shown = [run for line in report.lines for run in line.runs]
    shown += [run for run in report.evidence.runs if run.record["config_hash"] in pictured]
    return list({run.where: run for run in shown}.values())


def _line(line: Line, records: list[int]) -> Data:
    number = line.number
    return {
        "task": line.task,
        "table": number.table,
        "dataset": number.dataset,
        "data": f"{number.dataset} {number.horizon}".strip(),
        "backbone": number.backbone,
        "attention": number.variant,
        "metric": number.metric if line.comparable else line.metric,
        "read": line.metric,
        "higher": higher_is_better(number.metric),
        "protocol": line.protocol,
        "published": number.text if line.comparable else "",
        "digits": decimals(number.text) + 1,
        "text": our_text(line),
        "mean": _rounded(line.mean),
        "difference": _rounded(line.difference),
        "values": [[seed, _rounded(value)] for seed, value in line.values.items()],
        "seeds": len(line.values) or None,
        "status": line.status,
        "reason": line.reason,
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
        "device": record.get("device"),
        "commit": record.get("commit"),
        "seconds": record.get("wall_s"),
        "best_epoch": record.get("best_epoch"),
        "metrics": {name: _rounded(value) for name, value in record["metrics"].items()},
        "history": [
            {part: _rounded(entry[part], 5) for part in ("train", "validation") if part in entry}
            for entry in record.get("history") or ()
        ],
    }


def _contest(contest: Contest) -> Data:
    table: Iterable[tuple[str, ...]] = ()
    if contest.scores is not None:
        table = system_table(contest.scores, contest.rows, contest.baseline)
    return {
        "title": contest.title,
        "table": list(table),
        "notes": contest.notes,
        "diagram": base64.b64encode(contest.diagram.encode()).decode(),
    }


def _operators(model: ModelPictures, record: int | None) -> Data:
    return {
        "label": model.label,
        "hash": model.config_hash,
        "record": -1 if record is None else record,
        "pictures": [asdict(picture) for picture in model.pictures],
    }


def _rounded(value: float | None, digits: int = 6) -> float | None:
    return None if value is None else float(f"{value:.{digits}g}")


def _template(name: str) -> str:
    return (files("toa.report") / name).read_text(encoding="utf-8")


def _joined(lines: list[str]) -> str:
    return "\n".join(lines).rstrip() + "\n"
