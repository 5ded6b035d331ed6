"""A page that stands alone: sections of text, a table, pictures and runs, in one HTML file."""

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toa._files import write_atomically

Rows = Sequence[Sequence[str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A part of a page.

    Args:
        title: Its heading; "" for none.
        lead: What was done, before the table.
        table: A header and rows.
        pictures: PNG files, side by side where there are several and room, each with what it shows in words.
        reading: How to read table and pictures.
        runs: A header and a row for each run, folded away.
        stacked: Whether pictures stand one below another.
        folded: What the folded part is called.

    A part that is empty is left out.
    """

    title: str
    lead: str
    table: Rows
    pictures: Sequence[tuple[Path, str]]
    reading: str
    runs: Rows
    stacked: bool = False
    folded: str = "Runs"


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
    title = f"<h2>{html.escape(section.title)}</h2>" if section.title else ""
    pictures = "".join(
        f'<img alt="{html.escape(words)}" src="data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}">'
        for file, words in section.pictures
    )
    kind = "pictures stacked" if section.stacked else "pictures"
    parts = (
        title,
        _paragraph(section.lead),
        _table(section.table),
        f'<div class="{kind}">{pictures}</div>' if pictures else "",
        _paragraph(section.reading),
        f"<details><summary>{html.escape(section.folded)}</summary>\n{_table(section.runs)}</details>"
        if section.runs
        else "",
    )
    return "\n".join(part for part in parts if part)


def _paragraph(text: str) -> str:
    return f"<p>{html.escape(text)}</p>" if text else ""


def _table(rows: Rows) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    if not rows:
        return ""
    header, *body = rows
    return f'<div class="table"><table>{line(header, "th")}{"".join(line(row, "td") for row in body)}</table></div>'
