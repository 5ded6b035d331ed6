"""Plain English: idioms of a private dialect stay out of code, messages and pages.

`REMAINING` counts what is still to be rewritten, by folder. It may only go down; at zero, remove the line.
"""

import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import ROOT, written

# idiom: what to write instead
IDIOMS = {
    r"\b(go|goes|going|gone|went) on\b": "resume, continue",
    r"\bone's own\b|\ba stranger": "your own data, user data",
    r"\b(is|are|was|were|be|been) (said|told)\b": "is reported, printed, stated",
    r"\b(says|say|said) (so|it|which|what|how|where|when|why|whether|nothing)\b": "reports, prints, states",
    r"\bnot said\b|\bnobody\b": "unless given, by default",
    r"forgiv(e|en|ing)\b": "retry, retry_failed",
    r"\bcarr(y|ies|ied)[ _]out\b": "run, execute",
    r"\bforet(ell|old)|\bsparing(ly)?\b": "print the plan; throttle",
    r"\bHappening\b": "Event, EventKind",
    r"\bclass Place\b|: Place\b|\bPlace\(": "RunContext",
    r"\bshall\b": "must, should, will",
    r"\bso many\b|\bno fewer\b": "at least, at most, the number of",
    r"\bsettled?\b|\bsettles\b": "decide, resolve",
    r"\bwhich is none\b": "no such file",
    r"\b(come|comes|came) to\b": "amounts to, results in",
    r"\blook(s|ed|ing)? for\b": "search, find",
    r"\bas it is\b": "unchanged",
    r"\b(take|takes|taken|took) up\b": "resume, retry",
    r"\brooms?\b": "folder, package",
    r"\bwaits? for the sums?\b": "is applied to the accumulated sum",
    r"\banswers (a|an|the|with|in)\b": "returns",
    r"\banew\b": "again",
    r"\bbeforehand\b": "in advance",
    r"\b(S1|S2|ms|one|(?i:windows?|cases?|values?|outputs?|keys?|numbers?|products?|experts?|pictures?|steps?|records?|"
    r"files?|graphs?|rates?|operators?|matrix|matrices|seeds?|process|processes)) an? "
    r"(head|token|run|step|pass|layer|batch|channel|series|machine|device|dataset|split|worker|second)\b": "per",
}
# file names that are idioms too
FILES = {"known.py", "whole.py", "whole_kernels.py", "rows.py", "answers.py", "ranks.py", "saved.py", "carry_out.py"}

# folders of generated pages: their words come from elsewhere
GENERATED = {"api", "reference", "tutorials"}

REMAINING: dict[str, int] = {}
# remove a name when no file has it any more
FILES_LEFT: set[str] = set()


def pages() -> Iterator[Path]:
    for folder, suffixes in (("src", ("py", "md", "toml")), ("docs", ("py", "md")), ("results", ("md",))):
        for suffix in suffixes:
            yield from written(folder, f"*.{suffix}")
    yield from sorted((ROOT / "examples").glob("*.py"))
    yield from (ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "pyproject.toml"))


def part_of(path: Path) -> str:
    """The folder that a page is counted in."""
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[:3] if len(parts) > 3 else parts[:2]) if parts[0] == "src" else parts[0]


def idioms_in(text: str) -> list[tuple[int, str, str]]:
    """Line, words and remedy of every idiom."""
    return [
        (text.count("\n", 0, match.start()) + 1, match[0], remedy)
        for pattern, remedy in IDIOMS.items()
        for match in re.finditer(pattern, text)
    ]


@functools.cache
def hits() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in pages():
        if path.parent.name in GENERATED:
            continue
        for number, words, remedy in idioms_in(path.read_text(encoding="utf-8")):
            found.setdefault(part_of(path), []).append(f"{path.relative_to(ROOT)}:{number}: {words!r}: {remedy}")
    return found


def test_idioms_only_become_fewer():
    found = hits()
    worse = {part: lines for part, lines in found.items() if len(lines) > REMAINING.get(part, 0)}
    assert worse == {}, {part: (len(lines), REMAINING.get(part, 0)) for part, lines in worse.items()}


def test_files_named_by_an_idiom_only_become_fewer():
    found = {path.name for path in (ROOT / "src").rglob("*.py")} & FILES
    assert found <= FILES_LEFT


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("Ctrl-C stops a run, the same command goes on", "goes on"),
        ("What is not said is chosen by size.", "not said"),
        ("one operator a head", "operator a head"),
        ("a process that nobody waits for", "nobody"),
        ("Which of the rooms", "rooms"),
        ("def carry_out(config):", "carry_out"),
    ],
)
def test_an_idiom_is_found(line, words):
    assert words in [found for _, found, _ in idioms_in(line)]


@pytest.mark.parametrize(
    "line",
    ["True where a token is padding", "Ctrl-C stops a run; repeat the command to resume it.", "one operator per head"],
)
def test_plain_sentences_are_left_alone(line):
    assert idioms_in(line) == []
