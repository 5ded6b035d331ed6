"""Errors in options and files come before packages that take long to import."""

import os
import subprocess
import sys

import numpy as np
import pandas as pd

from tests.support import ROOT

COMMANDS = {
    "forecast raw.csv --horizon 24": "DATA must be sorted by date, have each date once and have a row at every step",
    "forecast good.csv --horizon 24 --effort fast": "unknown effort 'fast'; known: quick, thorough.",
    "forecast good.csv --horizon 0": "--horizon must be an integer of at least 1, got 0.",
    "forecast good.csv --horizon 24 --value z": "DATA must have a column 'z'",
    "forecast good.csv --horizon 24 --covariate y": "--future must have the covariate 'y'",
    "forecast good.csv --horizon 24 --covariate y --future times.csv": "--future must have the covariate 'y'",
    "detect raw.csv": "DATA must be sorted by date, have each date once and have a row at every step",
    "detect good.csv --window 0": "--window must be an integer of at least 1, got 0.",
    "classify good.csv --label z --save m.toa": "--label must name the column of the classes in good.csv",
}
CODE = """
import sys
from typer.testing import CliRunner
from toa.cli import app

for words in sys.argv[1:]:
    result = CliRunner().invoke(app, words.split())
    print(result.exit_code, " ".join(result.output.split()))
print("torch" in sys.modules)
"""


def test_errors_in_options_and_files_come_before_heavy_imports(tmp_path) -> None:
    hours = pd.date_range("2024-01-01", periods=60, freq="h")
    good = pd.DataFrame({"time": hours, "y": np.arange(60.0)})
    good.to_csv(tmp_path / "good.csv", index=False)
    good[["time"]].to_csv(tmp_path / "times.csv", index=False)
    good.iloc[[0, 1, 3, 2, 2, *range(4, 20), *range(24, 60)]].to_csv(tmp_path / "raw.csv", index=False)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "500"}
    words = [sys.executable, "-W", "ignore", "-c", CODE, *COMMANDS]
    run = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)
    *lines, loaded = run.stdout.splitlines()
    assert loaded == "False", run.stderr
    for (command, expected), line in zip(COMMANDS.items(), lines, strict=True):
        assert line.startswith("2 "), (command, line)
        assert expected in line, (command, line)
