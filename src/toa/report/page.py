"""A self-contained HTML page of sections with text, a table, pictures and details."""

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{heading}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<style>
:root {{ --ink: #222; --paper: #fff; --line: #ddd; }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #ddd; --paper: #181a1b; --line: #444; }} }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }}
body {{ color: var(--ink); background: var(--paper); overflow-wrap: anywhere; }}
.table {{ overflow-x: auto; }}
table {{ border-collapse: collapse; margin: 1rem 0; overflow-wrap: normal; }}
th, td {{ padding: .3rem .9rem; border-bottom: 1px solid var(--line); text-align: right; }}
th:first-child, td:first-child {{ text-align: left; }}
td {{ white-space: nowrap; }} details td {{ white-space: normal; }}
.pictures {{ display: flex; gap: 1%; }} .pictures img {{ flex: 0 1 auto; min-width: 0; max-width: 100%; }}
.pictures img {{ object-fit: contain; }}
.stacked {{ flex-direction: column; align-items: flex-start; }}
@media (max-width: 40rem) {{ .pictures {{ flex-direction: column; }} }}
details table {{ font-size: 85%; }}
</style></head><body>
<h1>{heading}</h1>
{sections}
</body></html>
"""


def write_sections(heading: str, sections: Sequence[Section], path: Path) -> Path:
    """Write a page that needs no other file; all text is escaped."""
    page = _PAGE.format(heading=html.escape(heading), sections="\n".join(map(_section, sections)))
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
