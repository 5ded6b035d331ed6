"""Pages in a headless Chromium, driven by Playwright.

The executable is $CHROME, or the first of `NAMES` on the path: `apt-get install chromium`, `pip install -e .[browser]`.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find_browser() -> str | None:
    """The executable, if there is one and Playwright is installed."""
    found = os.environ.get("CHROME") or next((path for path in map(shutil.which, NAMES) if path), None)
    return found if find_spec("playwright") else None


@contextmanager
def chromium() -> "Iterator[Browser]":
    """A browser that resolves no host name."""
    from playwright.sync_api import sync_playwright

    # root in a container cannot use the sandbox; the pages are our own files
    flags = ["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=flags)
        yield browser
        browser.close()


def open_page(
    browser: "Browser",
    path: Path,
    *,
    width: int = 1200,
    height: int = 900,
    dark: bool = False,
    seen: list[str] | None = None,
) -> "Page":
    """Open a page in a window of a given size, and wait until it is drawn.

    Args:
        seen: List to which requests of other files, errors and messages are added.
    """
    page = browser.new_page(
        viewport={"width": width, "height": height}, is_mobile=width < 600, color_scheme="dark" if dark else "light"
    )
    if seen is not None:
        page.on("request", lambda request: None if request.url.endswith(path.name) else seen.append(request.url))
        page.on("pageerror", lambda error: seen.append(str(error)))
        page.on("console", lambda message: seen.append(message.text))
    page.goto(path.resolve().as_uri())
    page.wait_for_selector("body[data-ready=yes]")
    return page
