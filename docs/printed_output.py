"""Write on every page what the Python code above it prints.

    python docs/printed_output.py [--check]

The output stands between `<!-- printed -->` and `<!-- end -->`, after the block of code that prints it. With `--check`
nothing is written, and the exit code is 1 if the output on a page differs by more than machines do: words and whole
numbers must be equal, decimal numbers and percentages may differ by `RELATIVE`, or by one unit of their last digit.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from decimal import Decimal
from itertools import zip_longest
from pathlib import Path

from toa._checks import ArgumentError

ROOT = Path(__file__).resolve().parents[1]
# processors round sums differently, and training amplifies it
RELATIVE = 0.05
MARK = "<!-- printed -->"
BLOCK = re.compile(rf"(```python\n(?P<code>[^`]*)```\n[^`]*?{MARK}\n)(?P<printed>.*?)(?=<!-- end -->)", re.DOTALL)
NUMBER = re.compile(r"(?P<digits>[+-]?\d+\.\d+|[+-]?\d+(?=%))(?P<rest>\D*)")


def pages(root: Path = ROOT) -> list[Path]:
    """Pages that show printed output."""
    candidates = [
        root / "README.md",
        *sorted((root / "docs").glob("*.md")),
        *sorted((root / "docs/howto").glob("*.md")),
    ]
    return [path for path in candidates if path.exists() and MARK in path.read_text(encoding="utf-8")]


def run(code: str) -> str:
    """What code prints, in a process and a folder of its own.

    Raises:
        RuntimeError: If the code fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the code of a page must run, got:\n{done.stderr}\ncode:\n{code}")
    return done.stdout


def rendered(page: str) -> str:
    """The page with all output printed again.

    Raises:
        ValueError: If a mark has no block of code above it.
    """
    written, count = BLOCK.subn(lambda match: f"{match[1]}```text\n{run(match['code'])}```\n", page)
    check_marks(page, count)
    return written


def check_marks(page: str, count: int) -> None:
    """Raise if not every mark belongs to a block of code."""
    if count != page.count(MARK):
        raise ArgumentError(
            f"each {MARK}",
            "have a block of Python code above it and <!-- end --> below, without a backquote in between",
            f"{page.count(MARK)} marks and {count} blocks",
        )


def differences(shown: str, printed: str) -> list[str]:
    """Words of printed output that differ from those shown by more than machines do."""
    pairs = zip_longest(shown.split(), printed.split(), fillvalue="nothing")
    return [f"{there} on the page, {here} printed" for there, here in pairs if not is_close(there, here)]


def is_close(there: str, here: str) -> bool:
    """Whether two words are equal, or numbers that differ as little as between machines."""
    numbers = [NUMBER.fullmatch(word) for word in (there, here)]
    if numbers[0] is None or numbers[1] is None or numbers[0]["rest"] != numbers[1]["rest"]:
        return there == here
    expected, printed = (Decimal(match["digits"]) for match in numbers if match)
    last_digit = Decimal(1).scaleb(int(expected.as_tuple().exponent))
    return abs(printed - expected) <= max(last_digit, abs(expected) * Decimal(str(RELATIVE)))


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page differs")
    check = parser.parse_args(words).check
    wrong: list[str] = []
    for path in pages():
        before = path.read_text(encoding="utf-8")
        after = rendered(before)
        wrong += [f"{path.relative_to(ROOT)}: {line}" for line in differences(before, after)]
        if not check:
            path.write_text(after, encoding="utf-8")
    if check and wrong:
        sys.stderr.write("\n".join([*wrong, "run `make printed`", ""]))
    return int(check and bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
