"""The picture of the report in the documents: `python -m tests.report.take_screenshot PAGE PNG`."""

import sys
import tempfile
from pathlib import Path

from tests.report.browser import Browser, find_browser


def main(page: Path, picture: Path) -> None:
    """Show the numbers and, below them, the operators of a page, at the width of a small screen."""
    executable = find_browser()
    if executable is None:
        raise SystemExit("a picture needs Chromium: apt-get install chromium, or set $CHROME.")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, Browser(executable, Path(profile)) as one:
        one.open(page, width=1000, height=1180)
        # what a picture has no room for
        one.run("['summary', 'ranks', 'significance', 'left-out'].forEach(id => document.getElementById(id).remove())")
        one.run("document.getElementById('numbers-table').style.maxHeight = '16rem'")
        one.choose("#filter-metric", "mse")
        one.choose("#filter-table", "forecast-full")
        one.run("document.getElementById('heat')?.focus()")
        one.run("scrollTo({ top: 0, behavior: 'instant' })")
        one.screenshot(picture)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
