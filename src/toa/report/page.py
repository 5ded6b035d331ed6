"""A self-contained HTML page of sections with text, a table, pictures and details."""

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template

from toa._files import write_atomically
from toa.report.tables import Rows, html_table


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A part of a page; empty fields are left out.

    Args:
        title: Heading.
        lead: Text before the table.
        table: A header and rows.
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
