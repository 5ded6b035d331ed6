"""All estimators with the functions that test their properties, and one random case of a promise."""

import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import joblib  # type: ignore[import-untyped]
import numpy as np

from tests.campaign.outcome import Outcome
from tests.metamorphic import classification, detection, forecasting
from tests.metamorphic.promises import NOT_PROMISED, Fit, Promise, Property, read_promises

# per kind of estimator its fit and its properties
KINDS: Mapping[str, tuple[Fit, Mapping[str, Property]]] = {
    "forecaster": (forecasting.fit_methods, forecasting.PROPERTIES),
    "forecaster network": (forecasting.fit_network, forecasting.PROPERTIES),
    "detector": (detection.fit_methods, detection.PROPERTIES),
    "detector pca": (detection.fit_pca, detection.PROPERTIES),
    "detector network": (detection.fit_network, detection.PROPERTIES),
    "classifier": (classification.fit_members, classification.PROPERTIES),
    "classifier network": (classification.fit_network, classification.PROPERTIES),
}
PROMISES = tuple(promise for promise in read_promises() if promise.level != NOT_PROMISED)


def shared(fit: Fit) -> Fit:
    """The same fit, that returns the same estimator for the same data: most properties begin with the same tables."""
    fitted: dict[str, Any] = {}

    def fit_once(*data: Any, **options: Any) -> Any:
        key = joblib.hash((data, options))
        if key not in fitted:
            fitted[key] = fit(*data, **options)
        return fitted[key]

    return fit_once


def problem(promise: Promise, seed: int, fit: Fit | None = None) -> str:
    """How random data break a promise; empty if they do not. `fit` is that of the estimator unless given."""
    usual, properties = KINDS[promise.estimator]
    random = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # such as of few rows; the tests of each estimator check its warnings
        warnings.simplefilter("ignore")
        return promise.broken_by(properties[promise.name](fit or usual, random, Path(folder)))


def try_cases(estimator: str, folder: Path, first: int, count: int, *, seed: int) -> Outcome:
    """Try all promises of one kind of estimator on `count` random tables."""
    outcome = Outcome()
    for number in range(first, first + count):
        for promise in PROMISES:
            if promise.estimator != estimator:
                continue
            try:
                found = problem(promise, seed + number)
            except (ValueError, AssertionError) as error:
                found = repr(error)
            outcome.counts["broken" if found else "kept"] += 1
            if found:
                outcome.failures.append(f"{estimator}, {promise.name}, {number}: {found}")
    return outcome
