"""Hostile names and numbers: every command and every estimator with every name, every estimator with every number.

A name is that of a column and, as far as a disk allows it, of the file. A command may work, or end with an error in one
line; no traceback, no escape sequence on the terminal. An estimator may answer with finite numbers, or raise
a `ValueError` of its own; what it answers has each name once, and is the same after it was saved and loaded.
"""

import random
import shlex
import traceback
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from tests.campaign.children import Child, command, commands, run_child
from tests.campaign.kills import SETTINGS, quietly
from tests.campaign.outcome import Outcome
from tests.campaign.small_tables import is_clear
from toa.estimators import AnomalyDetector, Classifier, Forecaster
from toa.estimators.base import load_estimator
from toa.experiments.records import RECORD

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
    "1e308": lambda x: np.clip(x, -1.0, 1.0) * 1e308,
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
_SMALL = {"embed_dim": 4, "num_heads": 2, "num_layers": 1, "ff_dim": 4}


def try_names(name: str, folder: Path, *, seed: int, numbers: Iterable[int]) -> Outcome:
    """A command or estimator on tables whose second column has the names with these numbers."""
    outcome = Outcome()
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    _write(folder / "warm.csv", "b", name, seed)
    if name in COMMANDS:
        quietly(_action(name, folder / "warm.csv", folder / "warm", "b"))
    for number in numbers:
        column = NAMES[number]
        table = folder / f"{number} {column.replace('/', '-')[:60]}.csv"
        out = folder / str(number)
        _write(table, column, name, seed + number)
        child = (
            _use_estimator(name, table, out, column)
            if name in ESTIMATORS
            else run_child(_action(name, table, out, column), out)
        )
        outcome.counts["refused" if child.status else "loaded"] += 1
        lines = [line for line in child.output.splitlines() if line.strip()]
        problem = None
        if "Traceback" in child.output:
            problem = f"a traceback that ends in {lines[-1][:200]}"
        # a sweep ends with 1 if one of its runs was refused
        elif child.status not in ((0, 1, 2) if name in ("reproduce", "watch") else (0, 2)):
            problem = f"status {child.status}"
        elif name in COMMANDS and ("\x1b]" in child.output or "\x1b[31mred" in child.output):
            problem = "an escape sequence is printed"
        if problem is not None:
            outcome.failures.append(f"{name} with the column {column[:40]!r}: {problem}")
    return outcome


def _action(name: str, table: Path, out: Path, column: str) -> Callable[[], object]:
    run = _words("run", table, out)
    if name == "explain":
        return lambda: (
            command(*run, "--attention", "toa-softmax")(),
            command("explain", str(_only(out)), "--out", f"{out}-drawn")(),
        )
    if name in ("reproduce", "watch"):
        out.mkdir(exist_ok=True)
        words = ("--dataset", str(table), "--backbone", "itransformer", "--horizon", "4", *SETTINGS)
        (out / "runs.txt").write_text(shlex.join(words) + "\n")
    runs = ("reproduce", "--runs", str(out / "runs.txt"), "--out", str(out), "--device", "cpu")
    several: dict[str, tuple[tuple[str, ...], ...]] = {
        "reproduce": (runs,),
        "watch": (runs, ("watch", str(out))),
        "compare": (
            run,
            (*run, "--attention", "softmax"),
            ("compare", str(out), "--metric", "mse", "--out", str(out / "compared")),
        ),
        "report": (run, ("report", str(out), "--out", str(out / "page"))),
        "data": (("data", "where", column),),
    }
    return commands(*(several.get(name) or (_words(name, table, out),)))


def _only(out: Path) -> Path:
    (record,) = out.rglob(RECORD)
    return record.parent


def _use_estimator(name: str, table: Path, out: Path, column: str) -> Child:
    """Fit to a table with a name in its columns, and for the classifier in its classes; save, load, predict.

    In this process, because a fork of one that has used the kernels of the classifier is ended.
    """
    frame = pd.read_csv(table, keep_default_na=False)
    small: dict[str, Any] = {"epochs": 1, "settings": _SMALL, "time_limit": 0.2}
    try:
        if name == "forecaster":
            model: Any = Forecaster(2, interval=0.5, **small).fit(frame)
        elif name == "detector":
            model = AnomalyDetector(window=8, **small).fit(frame)
        else:
            model = Classifier(id="case", label="class", **small).fit(frame)
        answers = model.predict_proba(frame) if name == "classifier" else model.predict(frame)
        model.save(out.with_suffix(".toa"))
        loaded = load_estimator(out.with_suffix(".toa"))
        again = loaded.predict_proba(frame) if name == "classifier" else loaded.predict(frame)
        assert list(answers.columns) == list(dict.fromkeys(answers.columns)) == list(again.columns)
        pd.testing.assert_frame_equal(answers, again, rtol=1e-9)
        assert name != "forecaster" or column in answers.columns
    except Exception as error:
        if is_clear(error):
            return Child(status=2, steps=(), output=str(error))
        return Child(status=1, steps=(), output=traceback.format_exc())
    return Child(status=0, steps=(), output="")


def _write(path: Path, column: str, name: str, seed: int) -> None:
    frame = pd.DataFrame(np.random.default_rng(seed).normal(size=(80, 2)), columns=["a", column])
    if name.startswith("classif"):
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


COMMANDS = (*("forecast", "detect", "classify", "run", "reproduce", "watch", "compare", "report", "explain", "data"),)


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
        except Exception as error:
            if is_clear(error):
                outcome.counts["refused"] += 1
                continue
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
