import numpy as np
import pytest
import torch

from tests.estimators.signals import PERIOD, wave
from tests.estimators.stages import only, validate_series
from tests.support import message
from toa.estimators import Forecaster
from toa.estimators.baselines import BASELINES, align_histories
from toa.estimators.boosting import BoostedTrees, _scaled, grow_trees, sum_of_trees
from toa.estimators.origins import RollingOrigins

TREES = 20


def histories(count: int = 12) -> np.ndarray:
    return align_histories([wave(90 + seed, level=10.0 * seed, seed=seed) for seed in range(count)])


@pytest.fixture(scope="module")
def model() -> BoostedTrees:
    # without the six rows that are forecast
    trees = BoostedTrees.fit(histories()[:, :-6], season=PERIOD, lookback=3 * PERIOD, trees=TREES)
    assert trees is not None
    return trees


def test_the_arrays_are_the_trees_of_scikit_learn(monkeypatch):
    import sklearn.ensemble

    regressors = []

    regressor = sklearn.ensemble.HistGradientBoostingRegressor

    def make(**options):
        regressors.append(regressor(**options))
        return regressors[-1]

    monkeypatch.setattr(sklearn.ensemble, "HistGradientBoostingRegressor", make)
    trees = BoostedTrees.fit(histories(), season=PERIOD, lookback=3 * PERIOD, trees=TREES)
    assert trees is not None
    inputs = np.random.default_rng(0).normal(size=(200, trees.lags))
    inputs[::3, :5] = np.nan
    np.testing.assert_allclose(trees._sum(inputs), regressors[0].predict(inputs), atol=1e-12)


def test_forecasts_follow_level_and_unit_and_beat_the_seasonal_naive_one(model):
    past = histories()[:, :-6]
    forecast = model.predict(past, 6)
    # a factor of 4 is exact; a shift rounds, so that a value may pass another threshold
    np.testing.assert_allclose(model.predict(4.0 * past, 6), 4.0 * forecast)
    np.testing.assert_allclose(model.predict(past + 7.0, 6), forecast + 7.0, atol=0.05)
    actual = histories()[:, -6:]
    assert np.abs(forecast - actual).mean() < np.abs(BASELINES["seasonal naive"](past, PERIOD, 6) - actual).mean()
    # a horizon beyond the lags, and series that are shorter than the season or never change
    assert np.isfinite(model.predict(past[:, -2:], 3 * model.lags)).all()
    np.testing.assert_allclose(model.predict(np.full((1, 40), 5.0), 3), 5.0, atol=0.02)
    inputs, before, scale = _scaled(past[:, -2:], PERIOD)
    assert np.isfinite(before).all()
    assert (scale > 0).all()
    assert inputs.shape == (12, 2)


def test_a_small_fit_has_one_thread_and_takes_any_seed(monkeypatch):
    import sklearn.ensemble
    from threadpoolctl import threadpool_info

    threads = []
    plain = sklearn.ensemble.HistGradientBoostingRegressor.fit

    def fit(self, *arguments):
        threads.append({pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "openmp"})
        return plain(self, *arguments)

    monkeypatch.setattr(sklearn.ensemble.HistGradientBoostingRegressor, "fit", fit)
    assert BoostedTrees.fit(histories(2), season=PERIOD, lookback=PERIOD, seed=2**40, trees=TREES) is not None
    assert threads == [{1}]


def test_an_input_that_is_known_nowhere_is_in_no_split():
    random = np.random.default_rng(0)
    inputs = random.normal(size=(200, 3))
    inputs[:, 1] = np.nan
    start, trees = grow_trees(inputs, inputs[:, 0], seed=1, trees=TREES, share=1.0)
    assert np.abs(sum_of_trees(start, trees, inputs) - inputs[:, 0]).mean() < 0.5
    inner = trees.left != np.arange(len(trees.left))
    assert set(trees.feature[inner]) == {0, 2}


def test_short_series_have_fewer_lags_or_no_model():
    short = align_histories([wave(9, seed=seed) for seed in range(5)])
    trees = BoostedTrees.fit(short, season=1, lookback=104, trees=TREES)
    assert trees is not None
    assert trees.lags < 9
    assert np.isfinite(trees.predict(short, 4)).all()
    assert BoostedTrees.fit(short[:, -2:], season=1, lookback=4) is None


def test_forecasts_of_a_short_series_do_not_grow_without_bound():
    steps = np.arange(400)
    sizes = np.arange(1, 4)[:, None]
    noise = np.random.default_rng(0).normal(0.0, 0.3, (3, 400))
    for step in steps[1:]:
        noise[:, step] += 0.8 * noise[:, step - 1]
    waves = sizes * np.sin(2 * np.pi * (steps + 3 * sizes) / 24) + np.sin(2 * np.pi * steps / 168) / 2 + noise
    # less than one season of the second series
    histories = align_histories([waves[0], waves[1][-20:], waves[2]])
    trees = BoostedTrees.fit(histories, season=24, lookback=168, seed=0, trees=TREES)
    assert trees is not None
    # without a bound far more than ten times the range of the series
    assert np.abs(trees.predict(histories, 24)[1] - waves[1][-1]).max() < np.ptp(waves[1])


def test_the_forecast_of_a_long_series_may_grow():
    growing = 1.05 ** np.arange(160)[None] * (1 + 0.01 * np.sin(np.arange(160)))
    trees = BoostedTrees.fit(growing[:, :120], season=1, lookback=12, seed=0, trees=TREES)
    assert trees is not None
    error = np.abs(trees.predict(growing[:, :120], 40) / growing[:, 120:] - 1).mean()
    # 0.09 with the bound of short series
    assert error < 0.01


def test_a_forecaster_with_trees_is_the_same_after_saving(tmp_path):
    series = [wave(80, seed=forecast) for forecast in range(4)]
    # trees alone, so that they have a weight
    with only("trees"):
        fitted = Forecaster(6, season=PERIOD, backbone="dlinear", epochs=1).fit(series)
    assert fitted.weights_ == {"boosting": 1.0}
    fitted.save(tmp_path / "model.toa")
    loaded = Forecaster.load(tmp_path / "model.toa")
    for forecast, other in zip(fitted.predict(), loaded.predict(series), strict=True):
        np.testing.assert_allclose(forecast, other)


def test_long_horizons_are_left_to_other_methods():
    series = [wave(400)]
    for horizon, expected in ((60, True), (61, False)):
        origins = RollingOrigins.choose([400], horizon=horizon, share=0.1)
        assert ("boosting" in validate_series(series, origins, PERIOD)) is expected


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [("left", 10**6, "must lie in"), ("lag", -1, "must lie in"), ("roots", -1, "must lie in")],
)
def test_damaged_trees_are_refused(model, name, value, complaint):
    tensors, facts = model.state()
    damaged = tensors | {name: torch.full_like(tensors[name], value)}
    with pytest.raises(ValueError, match=message(f"trees.{name} {complaint}", "damaged")):
        BoostedTrees.from_state(damaged, facts, PERIOD)
    with pytest.raises(ValueError, match=message("trees.lag must have shape")):
        BoostedTrees.from_state(tensors | {"lag": tensors["lag"][:3]}, facts, PERIOD)
    with pytest.raises(ValueError, match="at most 720"):
        BoostedTrees.from_state(tensors, facts | {"lags": 10**9}, PERIOD)
