"""`toa bench covariates`: made sets are equal in every call, rivals read no later values, and the scores."""

import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from tests.support import message
from toa_bench import covariate_tables
from toa_bench.covariate_tables import SETS, CovariateTable, evaluate
from toa_bench.lagged_trees import TableTrees, load_lightgbm


def small() -> CovariateTable:
    rows = np.arange(400)
    frame = pd.DataFrame({"time": pd.date_range("2024-01-01", periods=400, freq="h"), "y": np.sin(rows / 3.8)})
    return CovariateTable(frame=frame.assign(x=rows % 5), columns=("y",), tested=48, horizon=24, season=24)


@pytest.mark.parametrize("name", ["simulated load", "noise, random walks"])
def test_made_sets_are_equal_in_every_call_and_large_enough(name) -> None:
    first, second, earlier = SETS[name](None, False)[0], SETS[name](None, False)[0], SETS[name](None, True)[0]
    pd.testing.assert_frame_equal(first.frame, second.frame)
    assert not first.frame.equals(earlier.frame)
    assert first.tested * len(first.columns) >= 2_000
    assert first.tested % first.horizon == 0


def test_a_temperature_acts_as_a_u_in_the_simulated_load() -> None:
    frame = SETS["simulated load"](None, False)[0].frame
    mean = frame.groupby(frame["temperature"].round(-1))["area1"].mean()
    assert mean.loc[-10.0] > mean.loc[10.0] + 5
    assert mean.loc[40.0] > mean.loc[20.0] + 5


def test_the_last_season_is_scored(monkeypatch) -> None:
    monkeypatch.setitem(SETS, "noise, NN5", lambda data_dir, earlier: [small()])
    found = evaluate("noise, NN5", "seasonal naive")
    assert found["cells"] == 48
    assert found["fit_rows"] == [352]
    assert found["metrics"].keys() == covariate_tables.TITLES.keys()
    assert 0.8 < found["metrics"]["mase"] < 1.2


def test_a_missing_lightgbm_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    with pytest.raises(ValueError, match=message("lightgbm must be installed", "pip install lightgbm")):
        load_lightgbm()


def test_features_of_the_rival_end_at_the_origin() -> None:
    """Own values from the origin on, and covariates beyond the horizon, do not count."""
    table = small()
    column = table.frame["y"].to_numpy()
    trees = TableTrees(
        covariates=table.frame[["x"]].to_numpy(dtype=float),
        times=pd.DatetimeIndex(table.frame["time"]),
        border=352,
        horizon=24,
        season=24,
        seed=1,
    )
    first = np.full(24, 352)
    step = np.arange(24)
    changed = np.where(np.arange(400) < 352, column, 9.0)
    later = replace(trees, covariates=np.where(np.arange(400)[:, None] < 376, trees.covariates, 9.0))
    expected = trees._direct_features(column, first, step)
    np.testing.assert_array_equal(later._direct_features(changed, first, step), expected)
