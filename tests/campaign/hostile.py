"""Hostile names and numbers: every command with every name of a column, every estimator with every kind of number.

A command may work, or end with an error in one line; no traceback, no escape sequence on the terminal. An estimator may
answer with finite numbers, or raise ValueError.
"""

import random
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from tests.campaign.children import command, run_child
from tests.campaign.fuzz import Outcome
from tests.campaign.kills import SETTINGS, quietly
from toa.estimators import AnomalyDetector, Classifier, Forecaster

NAMES = (
    *(
        "[/b]",
        "[red]x",
        "[link=file:///]x",
        "\x1b[31mred",
        "\x1b]0;title\x07",
        "x\ny",
        "x\ty",
        "a,b",
        'say "x"',
        "it's",
    ),
    *("../up", "/etc/passwd", "C:\\x", "é", "数", "\u202eabc", "x" * 300, " ", "0", "1.5", "-", "--help", "=1+1"),
    *(
        "<script>alert(1)</script>",
        "`x`",
        "|x|",
        "**x**",
        "%s",
        "{x}",
        "{0}",
        "NaN",
        "None",
        "score",
        "anomaly",
        "x_lower",
    ),
    *("x_q0.1", "prediction", "event", "why", "date", "a.1", "$HOME", "\\N{DASH}", "\ufeffa", "Unnamed: 0"),
)
NUMBERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "1e308": lambda x: x * 1e308,
    "1e30": lambda x: x * 1e30,
    "1e-320": lambda x: x * 1e-320,
    "constant": lambda x: x * 0.0 + 7.0,
    "far away": lambda x: x + 1e15,
    "one step": lambda x: (np.arange(len(x)) > len(x) // 2)[:, None] * np.ones_like(x),
    "two scales": lambda x: x * np.array([1e-12, 1e12]),
    "an outlier": lambda x: np.where(np.arange(len(x))[:, None] == 50, 1e200, x),
    "NaN": lambda x: np.where(np.arange(len(x))[:, None] == 50, np.nan, x),
    "infinite": lambda x: np.where(np.arange(len(x))[:, None] == 50, np.inf, x),
    "minus zero": lambda x: x * -0.0,
    "counts of 2**62": lambda x: np.round(x * 2.0**62),
    "few rows": lambda x: x[:3],
    "one row": lambda x: x[:1],
    "no row": lambda x: x[:0],
}


def try_names(name: str, folder: Path, *, seed: int, numbers: Iterable[int]) -> Outcome:
    """A command on tables whose second column has the names with these numbers; beyond the last they begin again."""
    outcome = Outcome()
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    _write(folder / "warm.csv", "b", name, seed)
    quietly(command(*_words(name, folder / "warm.csv", folder / "warm")))
    for number in numbers:
        column = NAMES[number % len(NAMES)]
        table, out = folder / f"{number}.csv", folder / str(number)
        _write(table, column, name, seed + number)
        child = run_child(command(*_words(name, table, out)), out)
        outcome.counts["refused" if child.status else "loaded"] += 1
        lines = [line for line in child.output.splitlines() if line.strip()]
        problem = None
        if "Traceback" in child.output:
            problem = f"a traceback that ends in {lines[-1][:200]}"
        elif child.status not in (0, 2):
            problem = f"status {child.status}"
        elif "\x1b]" in child.output or "\x1b[31mred" in child.output:
            problem = "an escape sequence is printed"
        if problem is not None:
            outcome.failures.append(f"{name} with the column {column[:40]!r}: {problem}")
    return outcome


def _write(path: Path, column: str, name: str, seed: int) -> None:
    frame = pd.DataFrame(np.random.default_rng(seed).normal(size=(80, 2)), columns=["a", column])
    if name == "classify":
        frame.insert(0, "case", np.arange(80) // 8)
        frame["class"] = np.where(frame["case"] % 2, "x", column)
    else:
        frame.insert(0, "date", pd.date_range("2020-01-01", periods=80, freq="h"), allow_duplicates=True)
    frame.to_csv(path, index=False)


def _words(name: str, table: Path, out: Path) -> tuple[str, ...]:
    small = ("--network-only", "--epochs", "1")
    files = ("--save", str(out / "m.toa"))
    tables = ("--out", str(out / "table.csv"), "--page", str(out / "page.html"))
    sizes = ("--backbone", "itransformer", "--horizon", "4", *SETTINGS, "--device", "cpu")
    return {
        "forecast": ("forecast", str(table), "--horizon", "2", "--lookback", "8", *small, *files, *tables),
        "detect": ("detect", str(table), "--method", "pca", *files, *tables),
        "classify": ("classify", str(table), "--id", "case", "--label", "class", *small, *files),
        "run": ("run", "--dataset", str(table), *sizes, "--out", str(out)),
    }[name]


COMMANDS = ("forecast", "detect", "classify", "run")


def try_numbers(name: str, folder: Path, *, seed: int, numbers: Iterable[int]) -> Outcome:
    """An estimator that is fitted to hostile numbers, or gets them after a fit to usual ones."""
    outcome = Outcome()
    for number in numbers:
        kind = list(NUMBERS)[number % len(NUMBERS)]
        chance = random.Random(f"{name}/{seed}/{number}")
        usual = np.random.default_rng(number).normal(size=(96, 2))
        hostile = NUMBERS[kind](usual)
        fitted = chance.random() < 0.5
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                answers = _answer(name, hostile if fitted else usual, hostile)
            outcome.counts["loaded"] += 1
            if not all(np.isfinite(np.asarray(one, dtype=float)).all() for one in answers):
                outcome.failures.append(f"{name} with {kind}, fitted to them: {fitted}: an answer is not finite")
        except ValueError:
            outcome.counts["refused"] += 1
        except Exception as error:
            where = "fitted to them" if fitted else "after a fit to usual numbers"
            outcome.failures.append(f"{name} with {kind}, {where}: {type(error).__name__}: {str(error)[:200]}")
    return outcome


def _answer(name: str, train: np.ndarray, new: np.ndarray) -> list[np.ndarray]:
    if name == "forecaster":
        return [Forecaster(2, epochs=1, time_limit=0.2).fit(train).predict(new)]
    if name == "detector":
        found = AnomalyDetector(window=8, epochs=1, time_limit=0.2).fit(train)
        return [found.scores(new), found.detect(new[-1])["score"]]
    cases = [part.T for part in np.array_split(train, 12)]
    model = Classifier(epochs=1, time_limit=0.2).fit(cases, np.arange(12) % 2)
    return [model.predict_proba([part.T for part in np.array_split(new, 12)])]


ESTIMATORS = ("forecaster", "detector", "classifier")
