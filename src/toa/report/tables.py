"""Tables as a header and rows of text, written as Markdown or HTML."""

import html
from collections.abc import Sequence

Rows = Sequence[Sequence[str]]


def markdown_table(rows: Rows, *, left: int = 1) -> list[str]:
    """Lines of a Markdown table; the first `left` columns are aligned left, the others right."""
    header, *body = rows
    rule = ["---" if place < left else "---:" for place in range(len(header))]
    return [f"| {' | '.join(cells)} |" for cells in (header, rule, *body)]


def html_table(rows: Rows) -> str:
    """An HTML table with all text escaped; empty if there are no rows."""

    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    if not rows:
        return ""
    header, *body = rows
    return f'<div class="table"><table>{line(header, "th")}{"".join(line(row, "td") for row in body)}</table></div>'
