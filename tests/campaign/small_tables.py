"""Small random tables with random options, for every estimator and for forecasts without a fit.

    try_tables("forecaster", folder, seed=0, numbers=range(100))

An answer has finite numbers, and is the same after the estimator was saved and loaded. An error is raised by the
library itself: one of NumPy, PyTorch or scikit-learn names nothing that a user could change.
"""

import traceback
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import toa
from tests.campaign.outcome import Outcome
from tests.metamorphic.promises import tiny_effort
from toa.estimators import AnomalyDetector, Classifier, Forecaster
from toa.estimators.base import load_estimator

ROWS = (0, 1, 2, 3, 4, 6, 9, 13, 18, 25, 33, 47, 70, 110)
HORIZONS = (1, 2, 5, 12)
FREQUENCIES = ("15min", "h", "D", "W", "MS")
# values of one table, of a shape (rows, columns)
VALUES: dict[str, Callable[[np.random.Generator, tuple[int, int]], np.ndarray]] = {
    "normal": lambda random, shape: random.normal(size=shape),
    "constant": lambda random, shape: np.full(shape, 3.0),
    "zeros": lambda random, shape: np.zeros(shape),
    "few counts": lambda random, shape: random.poisson(0.4, size=shape).astype(float),
    "two values": lambda random, shape: random.integers(0, 2, size=shape).astype(float),
    "a line": lambda random, shape: np.arange(shape[0])[:, None] * np.ones(shape[1]),
    "growth": lambda random, shape: np.exp(0.05 * np.arange(shape[0])[:, None] + 0.1 * random.normal(size=shape)),
    "far from zero": lambda random, shape: 1e9 + random.normal(size=shape),
    "near zero": lambda random, shape: 1e-9 * random.normal(size=shape),
}
# folder of the library
_LIBRARY = str(Path(toa.__file__).parent)
# longest text of an error that is kept
_LONGEST = 200


def try_tables(name: str, folder: Path, *, seed: int, numbers: Iterable[int]) -> Outcome:
    """One estimator on the tables with these numbers."""
    outcome = Outcome()
    folder.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        random = np.random.default_rng([seed, number, list(ATTEMPTS).index(name)])
        table = draw_table(random)
        described = f"{name} {number}, {len(table)} rows of {', '.join(map(str, table.columns))}"
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                ATTEMPTS[name](random, table, folder / "model.toa")
            outcome.counts["answered"] += 1
        except Exception as error:
            if is_clear(error):
                outcome.counts["refused"] += 1
            else:
                outcome.failures.append(f"{described}: {type(error).__name__}: {str(error)[:_LONGEST]}")
    return outcome


def is_clear(error: Exception) -> bool:
    """Whether an error is one line that the library itself raises."""
    raised_in = traceback.extract_tb(error.__traceback__)[-1].filename
    return isinstance(error, ValueError) and raised_in.startswith(_LIBRARY) and "\n" not in str(error)


def draw_table(random: np.random.Generator) -> pd.DataFrame:
    """One series or a few, with or without dates. Columns a, b, … hold values, "size" a number of each series."""
    columns = int(random.choice([1, 1, 2, 3, 6]))
    rows = int(random.choice(ROWS))
    series = int(random.choice([1, 1, 2, 3]))
    values = VALUES[str(random.choice(list(VALUES)))]
    freq = str(random.choice(FREQUENCIES)) if random.random() < 0.5 else None
    parts = []
    for index in range(series):
        length = max(0, rows + int(random.choice([0, 0, -1, 2]))) if series > 1 else rows
        part = pd.DataFrame(values(random, (length, columns)), columns=list("abcdef"[:columns]))
        if series > 1:
            part.insert(0, "id", f"s{index}")
            part["size"] = float(index)
        if freq is not None:
            part.insert(0, "time", pd.date_range("2021-03-01", periods=length, freq=freq))
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def _try_forecaster(random: np.random.Generator, table: pd.DataFrame, path: Path) -> None:
    options = _forecast_options(random, table)
    options["effort"] = str(random.choice([tiny_effort(), "quick", "quick"]))
    if random.random() < 0.2:
        options |= {"model": "toa", "epochs": 1}
    if "b" in table and random.random() < 0.4:
        options["covariates"] = ["b"]
    if "c" in table and random.random() < 0.3:
        options["past_covariates"] = ["c"]
    if "size" in table:
        options["static"] = ["size"]
    if "time" in table and random.random() < 0.3:
        options["calendar"] = True
    future = _future(random, table, options["horizon"]) if "covariates" in options else None
    fitted = Forecaster(**options).fit(table)
    forecast = fitted.predict(table, future=future)
    fitted.save(path)
    _check_equal(forecast, load_estimator(path).predict(table, future=future))
    try:
        fitted.backtest(table)
    except ValueError as error:
        # most tables are too short for one
        if not is_clear(error):
            raise


def _try_zero_shot(random: np.random.Generator, table: pd.DataFrame, path: Path) -> None:
    del path
    options = _forecast_options(random, table)
    if "size" in table:
        table = table.drop(columns="size")
    _check_finite(toa.zero_shot(table, **options))


def _forecast_options(random: np.random.Generator, table: pd.DataFrame) -> dict[str, Any]:
    options: dict[str, Any] = {"horizon": int(random.choice(HORIZONS))}
    if random.random() < 0.5:
        options["interval"] = float(random.choice([0.5, 0.8]))
    if random.random() < 0.4:
        options["quantiles"] = [0.1, 0.5, 0.9][: int(random.integers(1, 4))]
    if random.random() < 0.2:
        options["season"] = int(random.choice([1, 2, 4, 7]))
    if "id" in table:
        options["id"] = "id"
    return options


def _future(random: np.random.Generator, table: pd.DataFrame, horizon: int) -> pd.DataFrame:
    """The covariate b of the next steps of all series, as if their rows went on."""
    parts = []
    for name, rows in table.groupby("id") if "id" in table else [(None, table)]:
        part = pd.DataFrame({"b": random.normal(size=horizon)})
        if name is not None:
            part.insert(0, "id", name)
        if "time" in table:
            freq = pd.infer_freq(rows["time"]) if len(rows) > 2 else "D"
            last = rows["time"].max() if len(rows) else pd.Timestamp(2021, 1, 1)
            part["time"] = pd.date_range(last, periods=horizon + 1, freq=freq)[1:]
        parts.append(part)
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame({"b": []})


def _try_detector(random: np.random.Generator, table: pd.DataFrame, path: Path) -> None:
    options: dict[str, Any] = {"effort": tiny_effort(), "model": str(random.choice(["auto", "pca"]))}
    if random.random() < 0.6:
        options["window"] = int(random.choice([1, 2, 4, 8]))
    if random.random() < 0.3:
        options["threshold"] = "quantile"
    if "id" in table:
        options["id"] = "id"
    fitted = AnomalyDetector(**options).fit(table)
    scores = fitted.scores(table)
    fitted.save(path)
    _check_equal(scores, load_estimator(path).scores(table))
    fitted.predict(table)


def _try_classifier(random: np.random.Generator, table: pd.DataFrame, path: Path) -> None:
    columns = [name for name in table.columns if name not in ("id", "time", "size")]
    count = int(random.integers(1, 7))
    cases = [part.T for part in np.array_split(table[columns].to_numpy(), count)]
    classes = random.choice(["x", "y", "z"], size=count)
    fitted = Classifier(effort=tiny_effort()).fit(cases, classes)
    shares = np.asarray(fitted.predict_proba(cases))
    assert np.isfinite(shares).all()
    fitted.save(path)
    np.testing.assert_array_equal(shares, np.asarray(load_estimator(path).predict_proba(cases)))


def _check_equal(first: pd.DataFrame, second: pd.DataFrame) -> None:
    _check_finite(first)
    pd.testing.assert_frame_equal(first, second, check_exact=True)


def _check_finite(answer: pd.DataFrame) -> None:
    assert np.isfinite(answer.select_dtypes("number").to_numpy()).all(), "an answer is not finite"


ATTEMPTS: dict[str, Callable[[np.random.Generator, pd.DataFrame, Path], None]] = {
    "forecaster": _try_forecaster,
    "zero-shot": _try_zero_shot,
    "detector": _try_detector,
    "classifier": _try_classifier,
}
