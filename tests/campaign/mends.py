"""Take out each mend of a defect, and see that its test fails.

    outcome = take_out(folder, 0, len(MENDS), seed=0)    # outcome.failures names tests that pass without the mend

A mend is taken out of a copy of the package by replacing one piece of text; mends.toml lists them. `make test` and
`make test-slow` show that the tests pass with the mends.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

from tests.campaign.outcome import Outcome
from tests.support import ROOT


class Mend(NamedTuple):
    """What is mended, the file below src/toa, its text, the text without the mend, and the test that then fails."""

    what: str
    file: str
    text: str
    without: str
    test: str


MENDS = tuple(Mend(*one) for one in tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))["mends"])


def take_out(folder: Path, first: int, count: int, *, seed: int) -> Outcome:
    """Take out the mends with these numbers, one at a time, and run the test of each."""
    outcome = Outcome()
    source = folder / "src"
    shutil.copytree(ROOT / "src", source, dirs_exist_ok=True)
    own = os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{ROOT / 'benchmarks'}", "PYTHONDONTWRITEBYTECODE": "1"}
    for mend in MENDS[first : first + count]:
        path = source / "toa" / mend.file
        text = path.read_text(encoding="utf-8")
        if text.count(mend.text) != 1:
            outcome.failures.append(f"{mend.what}: mends.toml must name text that {mend.file} has once; write it anew")
            continue
        path.write_text(text.replace(mend.text, mend.without), encoding="utf-8")
        words = [sys.executable, "-m", "pytest", "-qx", "-m", "", "-p", "no:cacheprovider", f"tests/{mend.test}"]
        found = subprocess.run(words, cwd=ROOT, env=own, capture_output=True, text=True)
        path.write_text(text, encoding="utf-8")
        last = (found.stdout.strip().splitlines() or [""])[-1]
        outcome.counts["fails without" if " failed" in last else "passes without"] += 1
        if found.returncode != 1 or " failed" not in last:
            outcome.failures.append(f"{mend.what}: {mend.test} without it: {last}")
    return outcome
