"""Speed of forecasts; test_forecaster_speed.py runs this in a process without shape checks, which cost time."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from tests.estimators.signals import wave
from toa.estimators import Forecaster


def median_seconds(call: Callable[[], object], repeats: int) -> float:
    """The best of five medians of processor time, which other processes hardly affect."""
    medians = []
    for _ in range(5):
        spent = []
        for _ in range(repeats):
            begin = time.process_time()
            call()
            spent.append(time.process_time() - begin)
        medians.append(float(np.median(spent)))
    return min(medians)


def table(series: int, rows: int) -> pd.DataFrame:
    dates = pd.date_range("2024-01-01", periods=rows, freq="h")
    parts = [pd.DataFrame({"id": f"s{n}", "time": dates, "y": wave(rows, seed=n)}) for n in range(series)]
    return pd.concat(parts, ignore_index=True)


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """Processor time counts threads that wait."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("_one_thread")
def test_one_window_takes_a_few_milliseconds(tmp_path) -> None:
    rows = 1000
    frame = pd.DataFrame({f"c{n}": wave(rows, seed=n) for n in range(7)})
    frame.insert(0, "time", pd.date_range("2024-01-01", periods=rows, freq="h"))
    window = frame[-336:]
    array = window.drop(columns="time").to_numpy()
    # the default also smooths the window by several methods, row by row
    options: dict[str, Any] = {"lookback": 336, "epochs": 1, "interval": 0.5, "validation_share": 0.2}
    for forecaster, most in ((Forecaster(96, model="toa", **options), 10e-3), (Forecaster(96, **options), 60e-3)):
        forecaster.fit(frame).save(tmp_path / "m.toa")
        model = Forecaster.load(tmp_path / "m.toa", device="cpu")
        assert median_seconds(partial(model.predict, array), 50) <= most
        assert median_seconds(partial(model.predict, window), 50) <= most


@pytest.mark.usefixtures("_one_thread")
def test_a_thousand_series_take_three_times_the_bare_forward_pass_at_most() -> None:
    frame = table(1000, 420)
    model = Forecaster(24, model="toa", lookback=336, id="id", epochs=1, device="cpu").fit(frame)
    windows = torch.randn(1000, 336, 1)
    with torch.no_grad():
        bare = median_seconds(lambda: model.model_(windows), 3)
    assert median_seconds(lambda: model.predict(frame), 3) <= 3.0 * bare
