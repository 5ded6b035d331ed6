"""Memory: batches are chosen so that their activations fit a budget, which users can set."""

import numpy as np
import pytest
import torch

from toa._limits import memory_budget, most_windows, unpacked_limit
from toa.data.classification import Cases
from toa.estimators import Forecaster
from toa.estimators.calibrated import Choice
from toa.estimators.fitted import windows_together
from toa.estimators.sizes import choose_schedule, classifier_schedule, detector_schedule
from toa.training.classify import classify


def test_the_budget_is_a_variable(monkeypatch):
    assert memory_budget() == 2**30
    monkeypatch.setenv("TOA_MEMORY", "0.5")
    assert memory_budget() == 2**29
    for wrong in ("-1", "0", "much", "nan", "inf"):
        monkeypatch.setenv("TOA_MEMORY", wrong)
        with pytest.raises(ValueError, match="TOA_MEMORY must be a positive number of GiB"):
            memory_budget()


def test_batches_become_smaller_with_more_columns():
    sizes = [choose_schedule(5000, columns, batch_size=None, epochs=None)["batch_size"] for columns in (7, 100, 1000)]
    assert sizes == [128, 107, 10]
    assert choose_schedule(5000, 1000, batch_size=64, epochs=None)["batch_size"] == 64
    assert [most_windows(10**9, training=True), most_windows(1000, training=False)] == [1, 19]
    # attention among channels takes more than attention among patches of one
    cases = (("patchtst", 1000, None), ("itransformer", 1000, None), ("patchtst", 7, None), ("itransformer", 1000, 32))
    found = [detector_schedule(5000, channels, name, batch_size=size, epochs=1) for name, channels, size in cases]
    assert [schedule["batch_size"] for schedule in found] == [10, 5, 64, 32]


def test_batches_of_cases_become_smaller_with_more_channels():
    def size(channels, backbone, batch_size=None):
        return classifier_schedule(800, channels, backbone, copies=5, batch_size=batch_size, epochs=None)["batch_size"]

    assert [size(channels, "transformer") for channels in (3, 1000)] == [64, 64]
    assert [size(channels, "patchtst") for channels in (3, 20, 1000)] == [64, 10, 1]
    assert [size(20, "itransformer"), size(1000, "itransformer", 32)] == [10, 32]


def test_cases_are_classified_in_batches_that_fit_the_budget(monkeypatch):
    seen = []

    class Model(torch.nn.Module):
        def forward(self, series, mask):
            seen.append(len(series))
            return series[:, 0]

    cases = Cases(series=torch.zeros(40, 100, 100), labels=torch.zeros(40, dtype=torch.long))
    for budget in ("1", "0.1"):
        monkeypatch.setenv("TOA_MEMORY", budget)
        classify(Model(), cases)
    assert seen == [26, 14, *[2] * 20]


def test_forecasts_do_not_depend_on_the_budget(monkeypatch):
    data = np.random.default_rng(0).normal(size=(120, 3)).cumsum(0)
    model = Forecaster(4, lookback=16, epochs=1).fit(data)
    expected = model.backtest(data).forecast
    monkeypatch.setenv("TOA_MEMORY", "0.0004")
    assert most_windows(3, training=False) == 2
    np.testing.assert_allclose(model.backtest(data).forecast, expected, rtol=1e-5)


def test_histories_of_a_wide_table_are_combined_in_parts(monkeypatch):
    data = np.random.default_rng(0).normal(size=(120, 3)).cumsum(0)
    model = Forecaster(4, epochs=1, effort="least").fit(data)
    places = [(0, origin) for origin in range(80, 117)]
    combine = Choice.combine
    seen = []
    expected = model.fitted_.forecast(model.read(data), places)["forecast"]
    assert (windows_together(3), windows_together(4_000)) == (2_000, 10)

    def watched(self, histories, *more):
        seen.append(len(histories))
        return combine(self, histories, *more)

    monkeypatch.setattr(Choice, "combine", watched)
    found = model.fitted_.forecast(model.read(data), places, most_windows=2)["forecast"]
    np.testing.assert_allclose(found, expected)
    assert max(seen) == 6


def test_packed_files_may_grow_a_hundredfold():
    assert unpacked_limit(1) == 256 << 20
    assert unpacked_limit(1 << 30) == 100 << 30
