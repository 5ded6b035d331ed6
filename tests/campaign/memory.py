"""Peak memory of a fit and a prediction, for long and for wide tables.

    python -m tests.campaign.memory detector 2000000 5    # prints the peak in MB

Each measurement is a process of its own, which makes the table, fits and predicts, and prints its peak. The kernel's
count for the parent would be too large: it begins with the memory of the parent.
Which methods a default model tries depends on the speed of the machine: here it has time for all of them, and its
network trains for one epoch. Networks are also measured alone.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tests.campaign.outcome import Outcome
from tests.support import ROOT
from toa.estimators import AnomalyDetector, Classifier, Forecaster

# estimator, rows (cases for the classifier) and columns, GiB of TOA_MEMORY, and the most MB (1e6 bytes) it may take
# a few minutes in all: with a small budget, batches that do not fit it show at small sizes
QUICK = (
    ("network forecaster", 600, 500, 0.25, 1_100),
    ("network forecaster", 200_000, 5, 0.25, 950),
    ("detector", 200_000, 5, 0.25, 950),
    ("forecaster", 500, 200, 0.25, 1_300),
    ("detector", 500, 200, 0.25, 1_000),
    ("classifier", 200, 100, 0.25, 1_170),
    ("network detector", 500, 200, 0.25, 900),
)
# hours in all: the sizes of large tables, with the default budget
LARGE = (
    ("network forecaster", 5_000, 1_000, 1.0, 2_500),
    ("forecaster", 2_000_000, 5, 1.0, 1_500),
    ("detector", 2_000_000, 5, 1.0, 1_500),
    ("forecaster", 5_000, 1_000, 1.0, 2_500),
    ("detector", 5_000, 1_000, 1.0, 2_500),
    ("classifier", 200, 500, 1.0, 2_500),
    ("network detector", 5_000, 1_000, 1.0, 2_500),
)
CASES = (*QUICK, *LARGE)
# steps of a case
_STEPS = 200


def measure_memory(folder: Path, first: int, count: int, *, seed: int) -> Outcome:
    """The peak of each case, in MB."""
    outcome = Outcome()
    for kind, rows, columns, budget, most in CASES[first : first + count]:
        words = [sys.executable, "-m", "tests.campaign.memory", kind, str(rows), str(columns)]
        # one thread, because each further one has its own buffers
        own = {"OMP_NUM_THREADS": "1", "TOA_MEMORY": str(budget)}
        done = subprocess.run(words, cwd=ROOT, env={**os.environ, **own}, capture_output=True, text=True)
        status = done.returncode
        peak = int(done.stdout.split()[0]) if done.returncode == 0 else 0
        outcome.counts[f"MB of a {kind}, {rows} x {columns}"] = peak
        if status or peak > most:
            outcome.failures.append(f"{kind} on {rows} x {columns}: status {status}, {peak} MB, more than {most}")
    return outcome


def _work(kind: str, rows: int, columns: int) -> None:
    rng = np.random.default_rng(0)
    given: dict[str, Any] = {"epochs": 1, "time_limit": 3600.0}
    if kind == "classifier":
        cases = rng.normal(size=(rows, columns, _STEPS))
        Classifier(**given).fit(cases, np.arange(rows) % 2).predict_proba(cases)
        return
    frame = pd.DataFrame(rng.normal(size=(rows, columns)), columns=[f"c{i}" for i in range(columns)])
    frame.insert(0, "date", pd.date_range("2000-01-01", periods=rows, freq="min"))
    given |= {"model": "toa"} if kind.startswith("network") else {}
    model: Any = Forecaster(24, **given) if kind.endswith("forecaster") else AnomalyDetector(**given)
    model.fit(frame).predict(frame)


if __name__ == "__main__":
    _work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
    assert peak is not None
    sys.stdout.write(f"{int(peak[1]) * 1024 // 10**6} MB\n")
