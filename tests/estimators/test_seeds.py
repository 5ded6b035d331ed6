"""Networks that differ in their seed and are averaged."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.estimators.signals import long, quick, wide
from tests.estimators.stages import only
from tests.estimators.test_forecaster import run_onnx
from tests.estimators.test_importance import assert_complete
from tests.report.cases import read_page
from tests.support import message
from toa.estimators import Forecaster
from toa.estimators.choice import weigh_at
from toa.estimators.effort import Ceiling
from toa.estimators.families import candidates
from toa.estimators.fit_rows import FitRows
from toa.estimators.methods import validate
from toa.estimators.network import FittedNetwork
from toa.estimators.origins import RollingOrigins, series_scale
from toa.estimators.units import MeanModel
from toa.training.forecast import HorizonForecasting


def noisy(rows: int = 400):
    return wide(rows, noise=1.0)


@pytest.fixture
def network_decides() -> Iterator[None]:
    """Leave only the network in the choice."""
    with only("network"):
        yield


@pytest.fixture
def trained(monkeypatch) -> list[tuple[int, bool]]:
    """Per training its seed, and whether rows were held out."""
    seen = []

    def fit(task, config, data, *how, run=HorizonForecasting.fit, **more):
        seen.append((config.seed, data.val is not None))
        return run(task, config, data, *how, **more)

    monkeypatch.setattr(HorizonForecasting, "fit", fit)
    return seen


def auto(**options) -> Any:
    return quick(
        6, **{"model": "auto", "epochs": 3, "learning_rate": 0.003, "season": 1, "effort": "thorough"} | options
    )


def test_the_network_alone_averages_as_many_seeds_as_are_asked_for():
    several = quick(seeds=3, seed=5, epochs=2).fit(noisy())
    networks = [quick(seed=seed, epochs=2).fit(noisy()) for seed in (5, 6, 7)]
    single = [network.predict() for network in networks]
    assert several.seeds_ == (5, 6, 7)
    expected = np.mean([forecast[["load", "heat"]].to_numpy() for forecast in single], axis=0)
    np.testing.assert_allclose(several.predict()[["load", "heat"]], expected, rtol=1e-6)
    assert np.ptp([forecast["load"] for forecast in single], axis=0).max() > 1e-3
    assert several.validation_ == pytest.approx(np.mean([network.validation_ for network in networks]))


def test_the_network_alone_is_one_network_unless_more_are_asked_for(trained):
    assert quick(epochs=1).fit(noisy()).seeds_ == (2024,)
    assert trained == [(2024, True)]
    with pytest.raises(ValueError, match=message("seeds must be", "1", "got 0")):
        quick(seeds=0).fit(noisy())


def test_the_default_averages_seeds_that_lower_the_error_at_the_origins(network_decides, trained):
    model = auto(seeds=2).fit(noisy())
    single = auto(seeds=1).fit(noisy())
    assert model.seeds_ == (2024, 2025)
    assert model.weights_ == {"toa": 1.0}
    assert model.shown_weights() == {"toa (2 seeds)": 1.0}
    # validated and trained again with both seeds, then the same with the first
    assert trained == [(2024, True), (2025, True), (2024, False), (2025, False), (2024, True), (2024, False)]
    errors = [forecaster.choice_.ensemble.errors["toa"] for forecaster in (model, single)]
    assert errors[0] < errors[1]
    # training again has no held-out rows: the losses are those of validation
    assert model.validation_ == pytest.approx(
        np.mean([single.validation_, auto(seeds=1, seed=2025).fit(noisy()).validation_])
    )
    first, second = model.model_.models
    x = torch.randn(2, 24, 2)
    assert torch.equal(first(x), single.model_(x))
    torch.testing.assert_close(model.model_(x), (first(x) + second(x)) / 2)


def test_weights_and_errors_are_those_of_the_mean(network_decides):
    """The error at the origins is computed again from networks that were trained one by one."""
    rows = noisy()[["load", "heat"]].to_numpy()
    model = auto(seeds=2).fit(rows)
    origins = RollingOrigins.choose([len(rows)], horizon=6, share=0.125, columns=2)
    each = origins.per_column(np.full((1, 2), len(rows)))
    series = list(rows.T)
    parts = []
    for seed in (2024, 2025):
        single = auto(seeds=1, seed=seed)
        panel = single.read(rows)
        settings = single.settings_of_fit()
        stages = FitRows(panel, panel.columns, series, settings, 1, Ceiling(None))
        training = stages.before(origins, each)
        histories = stages.at(origins, each)
        parts.append(validate(candidates(settings, 1), training, histories)["toa"].forecasts)
    _, errors = weigh_at(each, series, {"toa": np.mean(parts, axis=0)}, series_scale(series, 1))
    assert model.choice_.ensemble.errors["toa"] == pytest.approx(errors["toa"], rel=1e-6)


def test_a_seed_that_raises_the_error_of_the_mean_is_left_out(network_decides, monkeypatch, trained):
    def worse(network, histories, forecast=FittedNetwork.forecast):
        return forecast(network, histories) + (1e3 if network.seeds == (2025,) else 0.0)

    monkeypatch.setattr(FittedNetwork, "forecast", worse)
    model = auto().fit(noisy())
    assert model.seeds_ == (2024,)
    assert not isinstance(model.model_, MeanModel)
    assert trained == [(2024, True), (2025, True), (2024, False)]


def test_a_network_without_weight_is_trained_once(monkeypatch, trained):
    useless = lambda network, histories: np.full((len(histories.values), 6), 1e9)  # noqa: E731
    monkeypatch.setattr(FittedNetwork, "forecast", useless)
    model = auto(season=12).fit(noisy())
    assert "toa" not in model.weights_
    # the second training forecasts the values themselves
    assert trained == [(2024, True)] * 2
    assert model.seeds_ == (2024,)


@pytest.mark.parametrize(
    ("networks", "seeds"),
    [(3.9, 1), (4.1, 2), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((5.9, 2), (6.1, 3)))],
)
def test_with_a_time_limit_a_further_seed_needs_time_for_its_steps_and_for_those_of_all_seeds_on_all_rows(
    network_decides, monkeypatch, networks, seeds
):
    """`networks` is the time limit in trainings, by a clock that advances with them."""
    limit = 1000.0
    probe = auto(seeds=1).fit(noisy())
    steps = 3 * probe.schedule_["steps"]
    monkeypatch.setattr(HorizonForecasting, "seconds_per_step", lambda *_: 0.75 * limit / networks / steps)
    passed = iter(np.arange(0.0, 1e6))
    monkeypatch.setattr("time.monotonic", lambda: next(passed))

    def fit(*how, run=HorizonForecasting.fit, **more):
        for _ in range(int(limit / networks)):
            next(passed)
        return run(*how, **more)

    monkeypatch.setattr(HorizonForecasting, "fit", fit)
    model = auto(time_limit=limit, epochs=3)
    if seeds < 3:
        with pytest.warns(UserWarning, match=f"left out: network {seeds + 1}"):
            model.fit(noisy())
    else:
        model.fit(noisy())
    assert len(model.seeds_) == seeds
    assert next(passed) <= 1.05 * limit


def test_a_fit_with_several_seeds_is_the_same_again(network_decides):
    first, second = (auto().fit(noisy()) for _ in range(2))
    assert first.seeds_ == second.seeds_
    assert len(first.seeds_) > 1
    np.testing.assert_array_equal(first.predict()["load"], second.predict()["load"])


@pytest.mark.parametrize("folder", [False, True])
def test_a_saved_mean_keeps_all_networks(network_decides, tmp_path, folder):
    model = auto(seeds=2, quantiles=(0.1, 0.9), interval=0.8).fit(noisy())
    assert model.seeds_ == (2024, 2025)
    if folder:
        model.save_pretrained(tmp_path / "m")
        loaded: Any = Forecaster.from_pretrained(tmp_path / "m")
    else:
        model.save(tmp_path / "m.toa")
        loaded = Forecaster.load(tmp_path / "m.toa")
    assert (loaded.seeds_, len(loaded.model_.models)) == ((2024, 2025), 2)
    expected = model.predict(noisy())
    forecast = loaded.predict(noisy())
    assert list(forecast.columns) == list(expected.columns)
    np.testing.assert_array_equal(forecast.drop(columns="date"), expected.drop(columns="date"))


def test_a_network_without_its_mean_is_saved_as_before(tmp_path):
    """Files of one network have the tensors of earlier versions, and those without a network have no seed."""
    model = quick(epochs=1).fit(noisy())
    tensors, _ = model._saved()
    assert {name.split(".")[1] for name in tensors if name.startswith("model.")} == {"model"}
    model.save(tmp_path / "m.toa")
    assert Forecaster.load(tmp_path / "m.toa").seeds_ == (2024,)
    alone = auto(effort="least").fit(noisy())
    alone.save(tmp_path / "n.toa")
    assert alone.seeds_ == Forecaster.load(tmp_path / "n.toa").seeds_ == ()


def test_covariates_quantiles_explanations_and_backtests_use_the_mean():
    rows = long()
    model = quick(id="id", covariates=("promo",), quantiles=(0.1, 0.9), interval=0.8, seeds=2, epochs=2).fit(rows)
    tested: Any = model.backtest(rows, test_size=12)
    assert tested.metrics.keys() == {"mse", "mae", "coverage", "pinball"}
    assert (np.diff(tested.quantiles, axis=2) >= 0).all()
    parts = model.explain(rows)
    # where quantiles cross on the way, sorting bends the forecast, and the rule of integration errs by a part of 1e-3
    assert_complete(parts, tolerance=5e-3)
    again = model.backtest(rows, test_size=12, refit=12)
    np.testing.assert_array_equal(again.origins, tested.origins)
    assert np.isfinite(again.forecast).all()


@pytest.mark.slow
def test_an_exported_mean_gives_its_forecast(tmp_path):
    model = quick(seeds=2, epochs=1).fit(wide())
    rows = wide()[["load", "heat"]].to_numpy()
    model.export(tmp_path / "m.onnx")
    outputs = run_onnx(tmp_path / "m.onnx", series=rows[None, -24:])
    np.testing.assert_allclose(outputs["forecast"][0], model.predict(rows), rtol=1e-5)


def test_the_page_names_the_seeds(network_decides, tmp_path):
    page = auto(seeds=2).fit(noisy()).page(tmp_path / "m.html", noisy())
    bars = [part for section in read_page(page)["sections"] for part in section["parts"] if part["kind"] == "bars"]
    assert bars[0]["rows"] == [["toa (2 seeds)", 1.0, "1"]]
