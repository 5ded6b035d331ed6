"""Small fitted estimators, for the tests of their pages."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from toa.estimators import AnomalyDetector, Classifier, Forecaster


@pytest.fixture(scope="session")
def hourly_rows() -> pd.DataFrame:
    """Hours with two missing rows, an empty cell, a constant column named as a baseline, and names that are markup."""
    hours = np.arange(200)
    wave = np.sin(hours * 2 * np.pi / 24) + 0.1 * np.random.default_rng(0).normal(size=(2, 200))
    frame = pd.DataFrame({"when": pd.date_range("2024-03-01", periods=200, freq="h"), "<b>load</b>": wave[0]})
    frame["</script><img src=x onerror=alert(1)>"] = 5 + wave[1]
    frame["drift"] = 1.0
    frame["unused"] = 2.0
    frame.loc[60, "<b>load</b>"] = np.nan
    return frame.drop(index=[40, 41])


@pytest.fixture(scope="session")
def forecast_page(hourly_rows: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> tuple[Forecaster, Path]:
    """A network alone, which has operators, and its page with a backtest."""
    values = [name for name in hourly_rows if name not in ("when", "unused")]
    made = Forecaster(
        12, model="toa", lookback=24, interval=0.8, missing="interpolate", values=values, epochs=1, device="cpu"
    )
    tested = made.fit(hourly_rows).backtest(hourly_rows, test_size=0.2)
    path = tmp_path_factory.mktemp("pages") / "forecast.html"
    return made, made.page(path, hourly_rows, tested=tested, title="<i>Load</i>", command="toa forecast 'a b.csv'")


@pytest.fixture(scope="session")
def event_page(tmp_path_factory: pytest.TempPathFactory) -> tuple[AnomalyDetector, pd.DataFrame, Path]:
    """A detector, rows of two series with one event in each, and their page; the names are markup."""
    waves = np.sin(np.arange(300) / 5) + 0.05 * np.random.default_rng(2).normal(size=(2, 2, 300))
    waves[0, 1, 150:156] += 3.0
    waves[1, 0, 100:103] -= 9.0
    days = pd.date_range("2023-01-01", periods=300)
    parts = [pd.DataFrame({"id": one, "day": days, "<b>": a, "x": b}) for one, (a, b) in zip("pq", waves, strict=True)]
    rows = pd.concat(parts, ignore_index=True)
    known = np.zeros(600, dtype=int)
    known[400:403] = 1
    made = AnomalyDetector(model="z-score", id="id", window=20, contamination=0.01, device="cpu").fit(rows)
    return made, rows, made.page(tmp_path_factory.mktemp("pages") / "events.html", rows, known)


@pytest.fixture(scope="session")
def case_page(tmp_path_factory: pytest.TempPathFactory) -> tuple[Classifier, np.ndarray, np.ndarray, Path]:
    """A classifier, cases with labels, some of them wrong, and their page; a class is named by markup."""
    cases = np.random.default_rng(3).normal(size=(24, 2, 16))
    labels = np.array(["<b>up</b>", "down"] * 12)
    cases[::2, 0] += 2.0
    sizes = {"embed_dim": 8, "num_layers": 1, "instance_norm": False}
    made = Classifier(model="toa", epochs=20, learning_rate=0.01, validation_share=0.0, settings=sizes, device="cpu")
    made.fit(cases, labels)
    given = labels.copy()
    given[0] = "down"
    return made, cases, given, made.page(tmp_path_factory.mktemp("pages") / "cases.html", cases, given)
