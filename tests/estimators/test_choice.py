import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

from tests.estimators.signals import PERIOD, long, quick, wave, wide
from tests.estimators.stages import only
from tests.support import message
from toa.data.frequency import season_of
from toa.estimators import Forecaster
from toa.estimators.baselines import find_season
from toa.estimators.effort import EFFORTS
from toa.estimators.lag_methods import TREES, FittedTrees, fit_trees
from toa.estimators.network import limit_work
from toa.estimators.sizes import choose_lookback, choose_settings, limit_schedule
from toa.training.forecast import HorizonForecasting


def auto(horizon: int = 6, **options):
    return quick(horizon, **{"model": "auto", "epochs": 2} | options)


@pytest.fixture
def network_decides() -> Iterator[None]:
    """Leave only the network in the choice."""
    with only("network"):
        yield


@pytest.fixture(scope="module")
def fitted() -> Forecaster:
    return auto(interval=0.8, quantiles=(0.1, 0.9)).fit(wide())


def test_the_default_weights_the_network_and_baselines(fitted) -> None:
    assert Forecaster(3).model == "auto"
    assert sum(fitted.weights_.values()) == pytest.approx(1.0)
    assert fitted.season_ == PERIOD
    errors = fitted.choice_.ensemble.errors
    assert {"toa", "seasonal naive", "theta", "ensemble"} <= errors.keys()
    # the error of a mean is at most the mean of the errors
    assert errors["ensemble"] <= sum(weight * errors[name] for name, weight in fitted.weights_.items())
    # the best baselines keep a part of the weight: 1.045 is derived in test_ensemble.py
    assert errors["ensemble"] <= 1.045 * min(errors.values())
    forecast = fitted.predict()
    truth = wide(246)[240:]
    assert abs(forecast["load"].to_numpy() - truth["load"].to_numpy()).max() < 2.5
    assert (forecast["load_lower"] < forecast["load"]).all()
    assert (forecast["load_q0.1"] <= forecast["load_q0.9"]).all()


def test_the_network_alone_is_as_before() -> None:
    assert quick(epochs=1).fit(wide()).weights_ == {"toa": 1.0}
    with pytest.raises(ValueError, match=message("unknown model 'arima'; known: auto, toa")):
        quick(model="arima").fit(wide())
    with pytest.raises(ValueError, match=message("time_limit must be positive", "0")):
        quick(time_limit=0).fit(wide())


def test_a_saved_choice_forecasts_the_same_from_the_same_rows(fitted, tmp_path) -> None:
    fitted.save(tmp_path / "m.toa")
    loaded = Forecaster.load(tmp_path / "m.toa")
    assert loaded.weights_ == fitted.weights_
    pd.testing.assert_frame_equal(loaded.predict(wide()), fitted.predict())
    assert loaded.choice_ is not None
    assert json.dumps(loaded.choice_.state()[1])


def test_a_choice_without_a_network_can_be_saved_and_has_no_export(tmp_path) -> None:
    model = auto(effort="least").fit(wide())
    assert model.architecture_["backbone"] is None
    assert "toa" not in model.weights_
    model.save(tmp_path / "m.toa")
    pd.testing.assert_frame_equal(Forecaster.load(tmp_path / "m.toa").predict(wide()), model.predict())
    with pytest.raises(ValueError, match=message("must be the network alone", "model='toa'")):
        model.export(tmp_path / "m.onnx")
    with pytest.raises(ValueError, match=message("must have a network", "time_limit")):
        model.run_sample(wide())


def test_a_backtest_has_the_forecasts_of_predict_and_stands_beside_baselines(fitted) -> None:
    frame = wide(300)
    tested = fitted.backtest(frame, test_size=60, stride=6)
    forecast = fitted.predict(frame[:246])
    np.testing.assert_allclose(tested.forecast[1], forecast[["load", "heat"]].to_numpy())
    table = tested.table()
    assert table.index[0] == "model"
    assert {"seasonal naive", "drift", "theta", "damped trend"} <= set(table.index)
    naive = frame[["load", "heat"]].to_numpy()
    error = [abs(naive[at : at + 6] - naive[at - PERIOD : at - PERIOD + 6]) for at in range(240, 295, 6)]
    assert table.loc["seasonal naive", "mae"] == pytest.approx(np.mean(error))
    assert table.loc["model", "coverage"] == pytest.approx(tested.metrics["coverage"])
    assert "beats drift on every column" in tested.verdicts()


def test_a_backtest_compares_with_the_trees_and_says_what_is_equal() -> None:
    fitted = auto(epochs=1).fit(wide(300)[:240])
    trees = fit_trees(np.asarray(wave(240))[None], PERIOD, 6, trees=20)
    assert trees is not None
    weights = {"seasonal naive": 1.0}
    ensemble = replace(fitted.choice_.ensemble, fitted={TREES: FittedTrees(trees, 6)}, weights=weights)
    fitted.fitted_ = replace(fitted.fitted_, choice=replace(fitted.choice_, ensemble=ensemble))
    tested = fitted.backtest(wide(300), test_size=60, stride=6)
    assert "boosting" in tested.table().index
    assert "equals seasonal naive on every column" in tested.verdicts()


def test_losses_are_stated_in_words() -> None:
    rng = np.random.default_rng(0)
    walk = pd.DataFrame({"walk": rng.normal(size=200).cumsum(), "wave": wave(200)})
    walk.insert(0, "date", pd.date_range("2024-01-01", periods=200, freq="2h"))
    tested = quick(epochs=1, learning_rate=1e-6).fit(walk[:160]).backtest(walk, test_size=40)
    lost = [line for line in tested.verdicts() if line.startswith("loses to ")]
    assert any("wave" in line for line in lost)


@pytest.mark.parametrize("rows", [2, 7, 30])
def test_short_series_have_a_forecast(rows) -> None:
    forecast = Forecaster(6, epochs=1).fit(wide(rows)).predict()
    assert len(forecast) == 6
    assert np.isfinite(forecast[["load", "heat"]].to_numpy()).all()


def test_a_part_of_a_season_is_not_repeated() -> None:
    def sales(rows: int, shop: str) -> pd.DataFrame:
        months = pd.date_range("2024-01-01", periods=rows, freq="MS")
        return pd.DataFrame({"month": months, "shop": shop, "sales": 10.0 * np.arange(rows)})

    # without windows to weight methods, the last value; one season is enough to repeat it
    model = Forecaster(12, id="shop").fit(pd.concat([sales(12, "long"), sales(8, "short")]))
    forecasts = model.predict().groupby("shop")["sales"].apply(list)
    assert forecasts["long"] == sales(12, "long")["sales"].tolist()
    assert forecasts["short"] == [70.0] * 12
    alone = Forecaster(12, id="shop").fit(sales(8, "short"))
    assert alone.season_ == 1
    assert alone.predict()["sales"].tolist() == [70.0] * 12


def test_a_short_series_does_not_shorten_the_look_back_of_long_ones() -> None:
    model = auto(id="id", lookback=None, epochs=1).fit(long(x=300, y=280, z=12)[["id", "day", "y"]])
    assert model.lookback_ >= 60
    forecast = model.predict()
    assert forecast["id"].value_counts().to_dict() == {"x": 6, "y": 6, "z": 6}
    assert np.isfinite(forecast["y"]).all()
    with pytest.warns(UserWarning, match=message("series 'z' of data has 4 rows, but the forecast read 6 rows")):
        assert np.isfinite(model.predict(long(z=4)[["id", "day", "y"]])["y"]).all()


def test_covariates_reach_the_network_and_methods_beside_it() -> None:
    model = auto(id="id", covariates=("promo",)).fit(long())
    assert model.choice_ is not None
    assert {"toa", "seasonal naive", "damped trend + covariates"} <= model.choice_.ensemble.errors.keys()
    with pytest.raises(ValueError, match=message("future must have the covariates 'promo'")):
        model.predict()


def test_covariates_without_a_network_are_checked() -> None:
    model = auto(id="id", covariates=("promo",), effort="least").fit(long(x=40))
    with pytest.raises(ValueError, match=message("future must have the covariates 'promo'")):
        model.predict()
    days = pd.date_range("2024-02-10", periods=6, freq="D")
    with pytest.warns(UserWarning, match="The forecast does not depend on 'promo' .with it"):
        assert len(model.predict(future=pd.DataFrame({"id": "x", "day": days, "promo": 1.0}))) == 6


@pytest.mark.slow
def test_two_axis_does_not_count_the_season_twice_at_its_start() -> None:
    model = auto(backbone="two-axis", lookback=48, learning_rate=1e-9, epochs=1).fit(wide(600))
    errors = model.choice_.ensemble.errors
    assert errors["toa"] < 1.5 * errors["seasonal naive"]


def test_a_fit_that_is_stopped_leaves_the_forecaster_as_it_was(network_decides, monkeypatch) -> None:
    model = auto(epochs=4).fit(wide())
    before = model.fitted_
    expected = model.predict()

    def stop(task, config, data, *how, run=HorizonForecasting.fit, **more):
        # when it is trained again, on all rows
        if data.val is None:
            raise KeyboardInterrupt
        return run(task, config, data, *how, **more)

    monkeypatch.setattr(HorizonForecasting, "fit", stop)
    with pytest.raises(KeyboardInterrupt):
        model.fit(2.0 * wide()[["load", "heat"]])
    assert model.fitted_ is before
    pd.testing.assert_frame_equal(model.predict(), expected)
    new = auto(epochs=4)
    with pytest.raises(KeyboardInterrupt):
        new.fit(wide())
    with pytest.raises(NotFittedError):
        new.predict()


def test_a_season_above_half_of_the_rows_is_refused() -> None:
    with pytest.raises(ValueError, match=message("season must be at most half of the rows", "120, got 121; give a")):
        auto(season=121).fit(wide(240))


def test_the_network_forecasts_the_values_themselves_where_that_is_better() -> None:
    model = auto(epochs=8, effort="thorough", seeds=1).fit(wide(600, noise=1.0))
    assert model.architecture_["season"] == 0
    assert model.choice_.ensemble.errors["toa"] < 0.9 * model.choice_.ensemble.errors["seasonal naive"]


@pytest.fixture
def trainings(monkeypatch) -> list[tuple[Any, bool, int]]:
    """Per training its config, whether rows were held out, and the epochs that it took."""
    seen = []

    def fit(task, config, data, *how, run=HorizonForecasting.fit, **more):
        result = run(task, config, data, *how, **more)
        seen.append((config.training, data.val is not None, len(result[1].history)))
        return result

    monkeypatch.setattr(HorizonForecasting, "fit", fit)
    return seen


def test_the_last_training_has_as_many_epochs_as_the_best(network_decides, trainings) -> None:
    auto(epochs=20, patience=1).fit(wide(240, noise=1.0))
    last = [(config.epochs, done) for config, held, done in trainings if not held]
    assert last
    assert all(epochs == done for epochs, done in last)


def test_training_does_not_stop_while_the_rate_rises(trainings) -> None:
    quick(epochs=20, patience=2).fit(wide(120))
    assert [config.patience for config, _, _ in trainings] == [2 + 6]


def test_a_constant_column_has_the_smallest_scale_of_the_others() -> None:
    rows = np.stack([np.full(120, 7.0), 1e3 * wave(120, noise=1.0)], 1)
    scale = auto(effort="least").fit(rows).choice_.scale
    assert scale[0, 0] == scale[0, 1] > 100.0


def test_a_loaded_choice_asks_for_all_rows_that_it_reads(fitted, tmp_path) -> None:
    fitted.save(tmp_path / "m.toa")
    with pytest.raises(ValueError, match="pass the last 512 rows"):
        Forecaster.load(tmp_path / "m.toa").predict()


def test_an_interval_that_cannot_be_calibrated_comes_from_differences_and_warns() -> None:
    with pytest.warns(UserWarning, match="interval of 0.99 comes from differences of the rows"):
        model = auto(interval=0.99, epochs=1).fit(wide(60))
    forecast = model.predict()
    assert (forecast["load_lower"] < forecast["load"]).all()
    assert (forecast["load"] < forecast["load_upper"]).all()


def test_an_interval_without_differences_warns_and_is_left_out() -> None:
    with pytest.warns(UserWarning, match="no interval of 0.8"):
        model = auto(interval=0.8).fit(wide(2))
    with pytest.warns(UserWarning, match="no interval of 0.8"):
        assert "load_lower" not in model.predict().columns


@pytest.mark.slow
def test_intervals_of_a_choice_cover_their_share_of_fresh_rows() -> None:
    rows = wide(1500, noise=0.5)
    model = auto(interval=0.8, quantiles=(0.1, 0.9), effort="least").fit(rows[:1100])
    tested = model.backtest(rows, test_size=400)
    assert 0.75 < tested.metrics["coverage"] < 0.87
    below = [(tested.actual < tested.quantiles[:, :, place]).mean() for place in range(2)]
    np.testing.assert_allclose(below, [0.1, 0.9], atol=0.06)


def test_counts_are_not_negative() -> None:
    counts = np.random.default_rng(0).poisson(0.3, 120).astype(float)
    forecast = auto(interval=0.8, effort="least").fit(counts).predict()
    assert all((part >= 0).all() for part in forecast.values())
    assert forecast["lower"].min() == 0.0


def test_the_network_alone_does_not_forecast_negative_counts(tmp_path) -> None:
    counts = np.random.default_rng(0).poisson(0.3, (120, 1)).astype(float)
    table = np.concatenate([counts, counts - 0.5], 1)
    model = quick(interval=0.8, quantiles=(0.1,), epochs=1).fit(table)
    forecast = model.predict()
    for part in forecast.values():
        assert part[..., 0].min() >= 0.0
    assert forecast["lower"][:, 0].min() == 0.0
    assert forecast["lower"][:, 1].min() < -0.5
    model.save(tmp_path / "m.toa")
    np.testing.assert_array_equal(Forecaster.load(tmp_path / "m.toa").predict(table)["lower"], forecast["lower"])
    assert model.fitted_.require_network().with_units.floor is not None
    assert quick(epochs=1).fit(table - 1.0).fitted_.require_network().with_units.floor is None


@pytest.mark.parametrize(
    ("freq", "season"),
    [
        *(("h", 24), ("15min", 96), ("30min", 48), ("2h", 12), ("min", 1440), ("s", 3600 // 60)),
        *(
            ("D", 7),
            ("7D", 1),
            ("W-SUN", 1),
            ("B", 5),
            ("MS", 12),
            ("ME", 12),
            ("QS-OCT", 4),
            ("YS-JAN", 1),
            ("3MS", 4),
        ),
        *((None, None), (1, None)),
    ],
)
def test_the_season_follows_from_the_frequency(freq, season) -> None:
    assert season_of(freq) == season


def test_the_season_of_data_without_dates_is_found() -> None:
    assert find_season([wave(200)]) == PERIOD
    assert find_season([np.random.default_rng(0).normal(size=300).cumsum()]) == 1
    assert find_season([np.arange(5.0)]) == 1


def test_look_back_and_patches_follow_the_season() -> None:
    assert choose_lookback(8000, 24, 24) == 336
    assert choose_settings("patchtst", 336, 24, 24)["patch_len"] == 12
    assert choose_lookback(900, 13, 1) == 104


def test_less_effort_shortens_the_schedule_or_leaves_the_network_out() -> None:
    schedule = {"batch_size": 128, "steps": 64, "epochs": 10}
    assert limit_schedule(schedule, 640) == schedule
    assert limit_schedule(schedule, 500) == schedule | {"epochs": 7, "steps": 64}
    assert limit_schedule(schedule, 90) == schedule | {"epochs": 3, "steps": 30}
    assert limit_schedule(schedule, 29) is None


def test_a_wide_table_has_no_network_with_little_effort_and_one_with_more() -> None:
    schedule = {"batch_size": 16, "steps": 10, "epochs": 40}
    for effort, expected in (("quick", None), ("thorough", schedule)):
        assert limit_work(schedule, 100, EFFORTS[effort]) == expected


def test_a_fit_does_not_depend_on_the_clock(monkeypatch) -> None:
    """A clock that runs a million times faster, as on a busy machine, changes nothing."""
    calm = auto(epochs=None).fit(wide(noise=1.0))
    passed = iter(np.arange(0.0, 1e9, 1e3))
    for name in ("monotonic", "perf_counter", "time"):
        monkeypatch.setattr(f"time.{name}", lambda: next(passed))
    late = auto(epochs=None).fit(wide(noise=1.0))
    assert late.weights_ == calm.weights_
    np.testing.assert_array_equal(late.predict()["load"], calm.predict()["load"])
    assert late.truncated_ == calm.truncated_ == ()


def test_a_time_limit_names_what_it_leaves_out(tmp_path) -> None:
    with pytest.warns(UserWarning, match=message("time_limit", "1e-09 s left out: drift, theta", "leave it out")):
        model = auto(time_limit=1e-9).fit(wide())
    assert {"drift", "boosting", "toa"} <= set(model.truncated_)
    assert model.weights_ == {"seasonal naive": 1.0}
    model.save(tmp_path / "m.toa")
    assert Forecaster.load(tmp_path / "m.toa").truncated_ == model.truncated_


@pytest.mark.slow
def test_a_time_limit_is_held() -> None:
    """In CPU time on a busy machine, where a method that has begun may wait, or in wall time if several threads run."""
    begin = time.monotonic()
    busy = time.process_time()
    with pytest.warns(UserWarning, match="left out"):
        Forecaster(12, effort="thorough", time_limit=8.0, device="cpu").fit(wide(4000, noise=0.5))
    assert min(time.monotonic() - begin, time.process_time() - busy) < 10.0


def test_mase_of_a_periodic_series_is_undefined_and_not_huge() -> None:
    rows = 3.3 * np.sin(np.arange(288) * 2 * np.pi / 24) + 7.1
    model = auto(season=24, effort="least").fit(rows)
    chosen = model.choice_.ensemble
    assert chosen.measure == "MAE"
    assert chosen.errors["seasonal naive"] < 1e-9 < 1.0 < chosen.errors["drift"] < 10.0
    tested = model.backtest(rows, test_size=0.2)
    assert tested.table()["mase"].isna().all()
    head, first, *_ = tested.rows("method")
    assert dict(zip(head, first, strict=True))["MASE"] == "-"
    # the drift is still known to be worse
    assert "drift" not in model.weights_


def test_a_backtest_with_refits_has_the_forecasts_of_models_fitted_before_each_block() -> None:
    """The level rises at the end; a model that is fitted again has seen it."""
    rows = np.r_[np.zeros(60), np.full(12, 50.0)] + np.random.default_rng(0).normal(size=72)
    model = auto(2, effort="least", season=1).fit(rows[:60])
    tested = model.backtest(rows, test_size=12, stride=2, refit=4)
    assert tested.origins.tolist() == [60, 62, 64, 66, 68, 70]
    for place, origin in enumerate((60, 62, 64, 66, 68, 70)):
        seen = 60 + (origin - 60) // 4 * 4
        again = auto(2, effort="least", season=1).fit(rows[:seen])
        np.testing.assert_allclose(tested.forecast[place], again.predict(rows[:origin]))
    with pytest.raises(ValueError, match=message("refit must be an integer of at least 1, got 0")):
        model.backtest(rows, test_size=12, refit=0)


@pytest.mark.parametrize("rows", [4, 15])
def test_a_column_that_begins_late_takes_nothing_from_the_others(rows) -> None:
    """Beside it, the others were weighted on its few rows, without an interval."""
    how: dict[str, Any] = {"interval": 0.8, "quantiles": (0.1,), "effort": "least"}
    table = wide()
    alone = auto(**how).fit(table)
    table["late"] = np.where(np.arange(240) < 240 - rows, np.nan, 2.0 * table["load"])
    with pytest.warns(UserWarning, match="'late' at .* A column with few rows has the weights of the others"):
        both = auto(**how).fit(table)
    assert both.weights_ == pytest.approx(alone.weights_)
    assert both.choice_.ensemble.errors == pytest.approx(alone.choice_.ensemble.errors)
    forecast = both.predict()
    expected = alone.predict()
    for name in expected.columns[1:]:
        np.testing.assert_allclose(forecast[name], expected[name], atol=0.1)
    for lower, upper in (("late_lower", "late"), ("late_q0.1", "late"), ("late", "late_upper")):
        assert (forecast[lower] < forecast[upper]).all()


def test_the_network_reads_all_rows_beside_a_column_that_begins_late(tmp_path) -> None:
    table = wide()
    table["late"] = np.where(np.arange(240) < 225, np.nan, 2.0 * table["load"])
    with pytest.warns(UserWarning, match="'late'"):
        model = auto().fit(table)
    assert "toa" in model.choice_.ensemble.errors
    assert model.predict()["load"].to_numpy() == pytest.approx(wide(246)["load"][240:], abs=2.5)
    model.page(tmp_path / "a.html", table)
    assert "late" in (tmp_path / "a.html").read_text(encoding="utf-8")
    # of most columns the same rows as before
    table["late"] = np.where(np.arange(240) < 10, np.nan, table["load"])
    assert model.read(table).complete(model.columns_).lengths == (230,)


@pytest.mark.parametrize("rows", [10, *(pytest.param(rows, marks=pytest.mark.slow) for rows in (5, 20, 40))])
def test_the_interval_of_a_column_with_few_rows_covers_about_its_share(rows) -> None:
    steps = np.arange(324)
    inside = []
    for seed in range(4):
        noise = np.random.default_rng(seed).normal(0.0, 0.4, (3, 324))
        waves = np.sin(2 * np.pi * (steps + 3 * np.arange(3)[:, None]) / 24) * np.array([[1.0], [2.0], [3.0]]) + noise
        table = pd.DataFrame(waves.T, columns=["a", "late", "b"])
        table.loc[: 300 - rows - 1, "late"] = np.nan
        with pytest.warns(UserWarning, match="begin later"):
            model = Forecaster(24, season=24, interval=0.8, effort="least").fit(table[:300])
        forecast = model.predict()
        actual = table["late"][300:].to_numpy()
        inside.append((forecast["late_lower"] <= actual) & (actual <= forecast["late_upper"]))
    assert 0.65 <= np.mean(inside) <= 0.97


def test_quantiles_of_few_windows_have_one_shape_and_the_mean_error_of_each_column() -> None:
    table = wide(120)
    table["exact"] = np.tile(np.arange(6.0), 20)
    model = auto(quantiles=(0.1, 0.9), effort="least", season=6).fit(table)
    assert model.choice_ is not None
    offsets = model.choice_.offsets
    assert offsets is not None
    offsets = offsets.reshape(-1, 2, 3)  # (P, Q, C)
    first, second, exact = offsets.T
    np.testing.assert_allclose(first / first[1], second / second[1])
    assert (exact == 0).all()
    assert not np.allclose(first, second)
