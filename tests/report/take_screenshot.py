"""The picture of the report in the documents: `python -m tests.report.take_screenshot PAGE PNG`."""

import sys
from pathlib import Path

from tests.report.browser import chromium, find_browser, open_page


def main(page: Path, picture: Path) -> None:
    """Show the numbers and, below them, the operators of a page, at the width of a small screen."""
    if find_browser() is None:
        raise SystemExit("a picture needs Chromium and Playwright; see tests/report/browser.py.")
    hidden = ["summary", "recipes", "ranks", "significance", "left-out"]
    with chromium() as browser:
        one = open_page(browser, page, width=1000, height=1180)
        # what a picture has no room for
        one.evaluate("ids => ids.forEach(id => document.getElementById(id).remove())", hidden)
        one.evaluate("document.getElementById('numbers-table').style.maxHeight = '16rem'")
        one.select_option("#filter-metric", "mse")
        one.select_option("#filter-table", "forecast-full")
        one.evaluate("document.getElementById('heat')?.focus()")
        one.evaluate("scrollTo({ top: 0, behavior: 'instant' })")
        one.screenshot(path=picture)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
