"""A file is one idea that is read in one sitting; ruff limits the functions (C901, PLR0912, PLR0915)."""

from pathlib import Path

from tests.support import ROOT

SOURCES = ("src", "tests", "benchmarks", "examples", "docs")
# longest file in lines
LONGEST = 700


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def count_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_no_file_is_longer_than_the_limit():
    lengths = {str(path.relative_to(ROOT)): count_lines(path) for path in sources(*SOURCES)}
    assert lengths
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST} == {}


def test_no_module_is_called_utils():
    assert [path for path in sources("src") if path.stem in ("utils", "util", "helpers", "misc", "common")] == []
