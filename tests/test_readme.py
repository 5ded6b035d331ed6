import contextlib
import functools
import io
import re

import pytest

import toa
from tests.support import ROOT, written

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.DOTALL)
PYTHON = [code for language, code in BLOCKS if language == "python"]
PRINTED = [text for language, text in BLOCKS if language == "text"]


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 110


def test_the_first_commands_install_show_and_test():
    commands = re.findall(r"^(pip install|make \w+)", README, flags=re.MULTILINE)
    assert commands[:3] == ["pip install", "make demo", "make test"]


def run_quickstart() -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(PYTHON[0], {})
    return printed.getvalue()


def words(text: str) -> list[str]:
    return re.sub(r"\d+", "#", text).split()


def test_the_quickstart_runs_and_prints_the_words_of_the_readme(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(toa, "Forecaster", functools.partial(toa.Forecaster, epochs=1))
    assert len(PYTHON[0].strip().splitlines()) <= 11
    assert words(run_quickstart()) == words(PRINTED[0])


def test_the_layer_example_gives_signed_weights():
    names: dict[str, object] = {}
    exec(PYTHON[1], names)
    assert tuple(names["w_mix"].shape) == (8, 4, 96, 96)  # type: ignore[attr-defined]
    assert names["w_mix"].min() < 0  # type: ignore[attr-defined]


PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *written("docs", "*.md"),
    *written("results", "*.md"),
]


def place_of(heading: str) -> str:
    """The name that a heading has in a link, on GitHub and on the site."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_local_link_leads_somewhere(page):
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for link, place in re.findall(r"\]\((?!http|mailto)([^)#\s]*)#?([^)\s]*)\)", text):
        # pages that building the site makes
        if re.match(r"(\.\./)?(tutorials|reference)/", link):
            continue
        target = page.parent / link if link else page
        assert target.exists(), link
        if place:
            headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert place in map(place_of, headings), f"{link}#{place}"
