"""Self-contained HTML pages: sections with text, tables and pictures, and pages that scripts draw.

The pages of estimators, and those of other packages, hold a JSON document, compressed, which scripts draw: `page.js`
and `operators.js`, which all share, and one of their own; that of estimators is `results.js`.
"""

import base64
import gzip
import html
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template
from typing import Any

from toa._files import write_atomically
from toa.report.tables import Rows, html_table

Data = dict[str, Any]

_FOLDER = files("toa.report")
# scripts that all pages share
PAGE_SCRIPTS = (_FOLDER / "page.js", _FOLDER / "operators.js")


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
    template = Template((_FOLDER / "page.html").read_text(encoding="utf-8"))
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


def assemble(title: str, body: str, scripts: Sequence[Traversable], data: Data) -> bytes:
    """A page with a style, scripts and data, which need no other file.

    Args:
        body: Markup before the data.
        scripts: Files that together draw the data.
        data: JSON values. They are compressed, so that no text in them can end the script.
    """
    # NaN and infinities, which JSON does not have, become null
    plain = json.loads(json.dumps(data), parse_constant=lambda name: None)
    content = json.dumps(plain, separators=(",", ":"), ensure_ascii=False)
    skeleton, style = (_read(_FOLDER / name) for name in ("skeleton.html", "page.css"))
    parts = {
        "title": html.escape(title),
        "style": style.strip(),
        "script": "\n\n".join(_read(script).strip() for script in scripts),
        "data": base64.b64encode(gzip.compress(content.encode(errors="replace"), mtime=0)).decode(),
        "body": body.strip(),
    }
    # at once, so that no part is searched for the names of the others
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], skeleton).encode(errors="replace")


def _read(file: Traversable) -> str:
    return file.read_text(encoding="utf-8")


def write_results(title: str, data: Data, path: Path) -> Path:
    """Write the page of an estimator's results; `toa.report.pages` describes the data."""
    body = "<header><h1></h1></header>\n<main></main>\n<noscript><p>This page needs JavaScript.</p></noscript>"
    write_atomically(path, assemble(title, body, (*PAGE_SCRIPTS, _FOLDER / "results.js"), data))
    return path
