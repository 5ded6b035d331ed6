"""A busy machine takes longer, and has the same results."""

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from tests.estimators.signals import wide
from toa import AnomalyDetector, Classifier, Forecaster


@pytest.fixture
def busy_core() -> Iterator[None]:
    """A process that keeps a core busy."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def forecast() -> np.ndarray:
    return np.asarray(Forecaster(6, interval=0.8).fit(wide(300, noise=1.0)).predict()["load"])


def detect() -> np.ndarray:
    rows = wide(400, noise=1.0)[["load", "heat"]].to_numpy()
    return np.asarray(AnomalyDetector(window=20).fit(rows).scores(rows))


def classify() -> np.ndarray:
    random = np.random.default_rng(0)
    cases = random.normal(size=(40, 2, 30)) + np.repeat([0.0, 0.4], 20)[:, None, None]
    return np.asarray(Classifier().fit(cases, np.repeat([0, 1], 20)).predict_proba(cases))


FITS = {"forecaster": forecast, "detector": detect, "classifier": classify}


@pytest.mark.slow
@pytest.mark.parametrize("name", FITS)
def test_a_fit_beside_a_busy_core_is_the_same(name, request) -> None:
    alone = FITS[name]()
    request.getfixturevalue("busy_core")
    np.testing.assert_array_equal(FITS[name](), alone)
