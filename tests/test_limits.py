"""Memory: batches are chosen so that their activations fit a budget, which users can set."""

import subprocess
import sys

import numpy as np
import pytest

from toa._limits import memory_budget, most_windows, unpacked_limit
from toa.estimators import Forecaster
from toa.estimators.sizes import choose_batch, choose_schedule


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
    assert most_windows(10**9, training=True) == 1
    # attention among channels takes more than attention among patches of one
    assert [choose_batch(None, name, 1000) for name in ("patchtst", "itransformer")] == [10, 5]
    assert [choose_batch(None, "patchtst", 7), choose_batch(32, "itransformer", 1000)] == [64, 32]


def test_forecasts_do_not_depend_on_the_budget(monkeypatch):
    data = np.random.default_rng(0).normal(size=(120, 3)).cumsum(0)
    model = Forecaster(4, lookback=16, epochs=1).fit(data)
    expected = model.backtest(data).forecast
    monkeypatch.setenv("TOA_MEMORY", "0.0002")
    assert most_windows(3, training=False) == 2
    np.testing.assert_allclose(model.backtest(data).forecast, expected, rtol=1e-5)


def test_packed_files_may_grow_a_hundredfold():
    assert unpacked_limit(1) == 256 << 20
    assert unpacked_limit(1 << 30) == 100 << 30


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "columns", "most_gb"), [(5_000, 1_000, 2.5), (2_000_000, 5, 1.5)])
def test_a_large_table_fits_into_memory(rows, columns, most_gb):
    code = (
        "import numpy as np, resource, toa\n"
        f"x = np.random.default_rng(0).normal(size=({rows}, {columns})).cumsum(0)\n"
        "toa.Forecaster(24, epochs=1).fit(x).predict()\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(found.stdout) <= most_gb
