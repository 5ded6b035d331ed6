import json
import sys
import types
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import toa
from tests.estimators.signals import long, quick, wave, wide
from tests.support import message
from toa.data.panel import make_panel
from toa.estimators import Forecaster
from toa.estimators import files as saving
from toa.estimators.sizes import DEFAULT_ATTENTION, choose_lookback, choose_recipe, choose_schedule, choose_settings
from toa.estimators.units import conformal_width
from toa.experiments import resolve
from toa.models import BACKBONES, backbone_names, build_forecaster
from toa.training.forecast import HorizonForecasting

onnxruntime = pytest.importorskip("onnxruntime")
pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def fitted() -> Forecaster:
    return quick(interval=0.8, quantiles=(0.1, 0.9)).fit(wide())


@pytest.fixture(scope="module")
def several() -> Forecaster:
    return quick(id="id", covariates=("promo",), calendar=True, interval=0.5).fit(long())


def future(steps: int = 6, promo: float = 0.0, **lengths: int) -> pd.DataFrame:
    parts = []
    for name, rows in (lengths or {"x": 160, "y": 120}).items():
        days = pd.date_range(pd.Timestamp("2024-01-01") + pd.Timedelta(days=rows), periods=steps, freq="D")
        parts.append(pd.DataFrame({"id": name, "day": days, "promo": promo}))
    return pd.concat(parts, ignore_index=True)


def test_it_is_an_estimator_of_scikit_learn() -> None:
    assert toa.Forecaster is Forecaster
    model = Forecaster(24, quantiles=[0.1], settings={"dropout": 0.0})
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert copy.set_params(horizon=12, interval=0.9).get_params()["horizon"] == 12
    assert model.horizon == 24
    with pytest.raises(NotFittedError, match=message("forecaster must be fitted", "call fit")):
        model.predict(wide())


def test_a_forecast_continues_times_and_units(fitted) -> None:
    forecast = fitted.predict()
    assert forecast["date"].tolist() == pd.date_range("2024-01-21", periods=6, freq="2h").tolist()
    truth = wide(246)[240:]
    # noise is 5 % of the swing of 10 and 1
    assert (forecast["load"].to_numpy() - truth["load"].to_numpy()).__abs__().max() < 2.5
    assert (forecast["heat"].to_numpy() - truth["heat"].to_numpy()).__abs__().max() < 0.25
    names = [f"{column}{end}" for column in ("load", "heat") for end in ("", "_q0.1", "_q0.9", "_lower", "_upper")]
    assert list(forecast.columns) == ["date", *names]
    assert (forecast["load_lower"] < forecast["load"]).all()
    assert (forecast["load_q0.1"] <= forecast["load"]).all()
    assert (forecast["load"] <= forecast["load_q0.9"]).all()


@pytest.mark.parametrize(
    "kind",
    [pl.from_pandas, lambda frame: pa.Table.from_pandas(frame, preserve_index=False), lambda f: f.set_index("date")],
)
def test_frames_of_other_libraries_get_the_same_forecast(fitted, kind) -> None:
    frame = kind(wide())
    forecast = fitted.predict(frame)
    assert type(forecast) is type(frame)
    np.testing.assert_array_equal(forecast["load"].to_numpy(), fitted.predict()["load"].to_numpy())


def test_arrays_get_arrays(fitted) -> None:
    values = wide()[["load", "heat"]].to_numpy()
    forecast = fitted.predict(values)
    assert {name: part.shape for name, part in forecast.items()} == {
        "forecast": (6, 2),
        "quantiles": (6, 2, 2),
        "lower": (6, 2),
        "upper": (6, 2),
    }
    np.testing.assert_array_equal(forecast["forecast"], fitted.predict()[["load", "heat"]].to_numpy())
    plain = quick().fit([values[:, 0], values[:150, 1]])
    assert [part.shape for part in plain.predict([values[:, 0], values[:, 1]])] == [(6, 1), (6, 1)]
    assert quick(3).fit(values[:, 0]).predict().shape == (3, 1)


def test_the_same_seed_gives_the_same_forecast_and_keeps_the_random_state(fitted) -> None:
    before = torch.get_rng_state()
    again = clone(fitted).fit(wide())
    assert torch.equal(before, torch.get_rng_state())
    pd.testing.assert_frame_equal(again.predict(), fitted.predict())


def test_a_forecast_depends_only_on_the_look_back(fitted) -> None:
    pd.testing.assert_frame_equal(fitted.predict(wide()[-24:]), fitted.predict())
    shifted = wide()
    shifted.loc[:200, "load"] += 1000.0
    pd.testing.assert_frame_equal(fitted.predict(shifted), fitted.predict())


def test_fewer_steps_are_the_first_of_them(fitted) -> None:
    pd.testing.assert_frame_equal(fitted.predict(horizon=2), fitted.predict()[:2])


def test_columns_are_found_by_name(fitted) -> None:
    swapped = wide()[["heat", "date", "load"]]
    pd.testing.assert_frame_equal(fitted.predict(swapped), fitted.predict())


def test_each_series_has_its_own_level(several) -> None:
    forecast = several.predict(future=future())
    assert forecast.columns.tolist() == ["id", "day", "y", "y_lower", "y_upper"]
    assert forecast["id"].tolist() == ["x"] * 6 + ["y"] * 6
    assert forecast["day"].iloc[[0, 6]].tolist() == [pd.Timestamp("2024-06-09"), pd.Timestamp("2024-04-30")]
    means = forecast.groupby("id")["y"].mean()
    assert 0.6 < means["x"] < 1.6
    assert 6.0 < means["y"] < 16.0
    # a series by itself, and in the other order
    alone = several.predict(long()[160:], future=future())
    np.testing.assert_allclose(alone["y"], forecast["y"][6:], rtol=1e-6)
    turned = several.predict(long().iloc[::-1].sort_values("day", kind="stable"), future=future())
    assert turned["id"].iloc[0] == "y"
    np.testing.assert_allclose(turned["y"][:6], forecast["y"][6:], rtol=1e-6)


def test_a_covariate_has_the_same_effect_on_the_forecast_as_on_the_past(several) -> None:
    lifted = several.predict(future=future(promo=1.0))["y"] - several.predict(future=future())["y"]
    # half of a level of 1 and 10
    assert 0.2 < lifted[:6].mean() < 0.8
    assert 2.0 < lifted[6:].mean() < 8.0


def test_backtest_measures_what_it_forecasts(fitted) -> None:
    frame = wide(300)
    tested = fitted.backtest(frame, test_size=60, stride=6)
    assert repr(tested).startswith(f"Backtest({len(tested.origins)} windows of 6 steps and 2 columns: mse ")
    assert tested.origins.tolist() == list(range(240, 295, 6))
    forecast = fitted.predict(frame[:246])
    np.testing.assert_allclose(tested.forecast[1], forecast[["load", "heat"]].to_numpy())
    np.testing.assert_array_equal(tested.actual[1], frame[["load", "heat"]].to_numpy()[246:252])
    std = frame[["load", "heat"]].to_numpy()[: 240 - 30].std(0)
    error = (tested.forecast - tested.actual) / std
    assert tested.metrics["mse"] == pytest.approx((error**2).mean())
    assert tested.metrics["mae"] == pytest.approx(abs(error).mean())
    within = (tested.actual >= tested.lower) & (tested.actual <= tested.upper)
    assert tested.metrics["coverage"] == pytest.approx(within.mean())
    assert tested.by_column["heat"]["mae"] == pytest.approx(abs(tested.forecast - tested.actual)[:, :, 1].mean())
    table = tested.frame()
    assert len(table) == 60
    assert table["date"].iloc[6] == table["origin"].iloc[6] == frame["date"].iloc[246]
    assert fitted.score(frame[200:]) == -fitted.backtest(frame[200:]).metrics["mse"]


def test_backtest_of_several_series_covers_each(several) -> None:
    tested = several.backtest(long(), test_size=0.25, stride=3)
    assert set(tested.series) == {0, 1}
    assert tested.origins[tested.series == 1].min() == 90
    assert tested.frame()["id"].nunique() == 2
    np.testing.assert_allclose(tested.actual[0, :, 0], long()["y"][120:126])


def test_intervals_cover_their_share_of_fresh_rows() -> None:
    rows = wide(1500, noise=0.5)
    model = quick(interval=0.8, epochs=2).fit(rows[:1100])
    assert 0.75 < model.backtest(rows, test_size=400).metrics["coverage"] < 0.85


def test_rows_that_calibrate_the_interval_do_not_stop_the_training() -> None:
    """240 rows, 30 held out: the first half stops the training, the second sets the width."""
    rows = wide(240, noise=0.5)
    later = wide(240, noise=0.5)
    later.loc[225:, "load"] += 5.0
    first, second = (quick(interval=0.5, epochs=20, patience=1).fit(table) for table in (rows, later))
    assert first.validation_ == second.validation_
    assert first.schedule_ == second.schedule_
    width = first.width_
    wider = second.width_
    assert width is not None
    assert wider is not None
    assert (wider[:, 0] != width[:, 0]).all()
    assert (wider[:, 1] == width[:, 1]).all()
    # the rows before them do stop it
    later.loc[210:224, "load"] += 5.0
    assert quick(interval=0.5, epochs=20, patience=1).fit(later).validation_ != first.validation_


@pytest.mark.slow
def test_quantiles_have_their_share_of_fresh_rows_below() -> None:
    rows = wide(1500, noise=0.5)
    model = quick(quantiles=(0.1, 0.5, 0.9)).fit(rows[:1100])
    tested = model.backtest(rows, test_size=400)
    below = [(tested.actual < tested.quantiles[:, :, place]).mean() for place in range(3)]  # type: ignore[index]
    np.testing.assert_allclose(below, [0.1, 0.5, 0.9], atol=0.06)
    np.testing.assert_array_equal(tested.forecast, tested.quantiles[:, :, 1])  # type: ignore[index]


def test_conformal_width_is_the_right_order_statistic() -> None:
    scores = torch.arange(1.0, 10.0).flip(0).view(9, 1, 1)
    # ceil(10 * 0.8) = 8th smallest of 9
    assert conformal_width(scores, 0.8).item() == 8.0
    assert conformal_width(scores, 0.9).item() == 9.0
    with pytest.raises(ValueError, match=message("interval=0.95 must have at least 19 windows", "got 9")):
        conformal_width(scores, 0.95)
    with pytest.raises(ValueError, match="at least 4 windows"):
        conformal_width(scores[:3], 0.8)


def test_a_saved_forecaster_forecasts_the_same(fitted, several, tmp_path) -> None:
    fitted.save(tmp_path / "one.toa")
    loaded = Forecaster.load(tmp_path / "one.toa")
    assert loaded.get_params() == fitted.get_params()
    pd.testing.assert_frame_equal(loaded.predict(wide()), fitted.predict())
    several.save_pretrained(tmp_path / "hub")
    again = Forecaster.from_pretrained(tmp_path / "hub")
    pd.testing.assert_frame_equal(again.predict(long(), future=future()), several.predict(future=future()))
    for forecast in (loaded.predict, lambda: loaded.predict_baseline("drift")):
        with pytest.raises(ValueError, match=message("data must be given", "loaded", "last 24 rows")):
            forecast()
    for steps in (0, 1000):
        with pytest.raises(ValueError, match=f"horizon must be from 1 to .*, got {steps}"):
            fitted.predict_baseline("drift", horizon=steps)
    with pytest.raises(ValueError, match="unknown name 'last'; known: seasonal naive"):
        fitted.predict_baseline("last")
    # no row of the data is in the file
    assert "date" not in json.dumps(json.loads((tmp_path / "hub" / "config.json").read_text())["facts"])


def test_a_model_from_a_gpu_loads_without_one(fitted, tmp_path) -> None:
    tensors, facts = fitted._saved()
    facts["parameters"]["device"] = "cuda"
    saving.save_file(tmp_path / "m.toa", "forecaster", tensors, facts)
    if not torch.cuda.is_available():
        assert Forecaster.load(tmp_path / "m.toa").device == "cpu"
    pd.testing.assert_frame_equal(Forecaster.load(tmp_path / "m.toa", device="cpu").predict(wide()), fitted.predict())


def test_a_file_without_all_of_a_forecaster_is_rejected(fitted, tmp_path) -> None:
    tensors, facts = fitted._saved()
    changes: tuple[dict[str, Any], ...] = ({"fitted": {}}, {"parameters": facts["parameters"] | {"code": "print(1)"}})
    for change in changes:
        saving.save_file(tmp_path / "m.toa", "forecaster", tensors, facts | change)
        with pytest.raises(ValueError, match=message("must hold a complete forecaster", "this version of toa")):
            Forecaster.load(tmp_path / "m.toa")
    others = {name: value for name, value in tensors.items() if not name.startswith("model.")}
    saving.save_file(tmp_path / "m.toa", "forecaster", others, facts)
    with pytest.raises(ValueError, match="must hold the weights of its model"):
        Forecaster.load(tmp_path / "m.toa")


def test_numpy_parameters_can_be_saved(tmp_path) -> None:
    model = quick(lookback=np.int64(12), quantiles=np.array([0.1, 0.9]), epochs=1).fit(wide())
    model.save(tmp_path / "m.toa")
    assert Forecaster.load(tmp_path / "m.toa").quantiles == (0.1, 0.9)


@pytest.mark.parametrize(("rows", "horizon"), [(4, 1), (12, 3), (40, 12)])
def test_the_default_model_is_fitted_to_few_rows(rows, horizon) -> None:
    model = Forecaster(horizon, epochs=2).fit(wave(rows))
    assert model.predict().shape == (horizon, 1)


@pytest.mark.parametrize("model", ["toa", "auto"])
def test_a_constant_column_has_a_constant_forecast(model) -> None:
    noise = np.random.default_rng(0).normal(size=120)
    rows = np.stack([3.0 * np.sin(np.arange(120) * 2 * np.pi / 24) + noise, np.full(120, 7.1)], 1)
    fitted = Forecaster(4, model=model, season=24, epochs=1, device="cpu").fit(rows)
    assert fitted.predict()[:, 1].tolist() == [7.1] * 4
    assert fitted.predict(rows - [0.0, 9.0])[:, 1].tolist() == pytest.approx([-1.9] * 4, rel=1e-12)
    assert len(np.unique(fitted.predict()[:, 0])) > 1


def test_a_model_of_the_hub_is_looked_for_by_name(fitted, tmp_path, monkeypatch) -> None:
    fitted.save_pretrained(tmp_path / "cache")
    hub = types.ModuleType("huggingface_hub")
    asked: list[Any] = []

    def snapshot_download(name: str, **how: Any) -> str:
        asked.append((name, how))
        return str(tmp_path / "cache")

    hub.snapshot_download = snapshot_download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    model = Forecaster.from_pretrained("somebody/load", revision="v1")
    pd.testing.assert_frame_equal(model.predict(wide()), fitted.predict())
    assert asked == [
        ("somebody/load", {"revision": "v1", "allow_patterns": ["config.json", "model.safetensors"]}),
    ]
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=message("huggingface_hub", "install toa[hf]")):
        Forecaster.from_pretrained("somebody/load")
    with pytest.raises(FileNotFoundError, match="folder or a model of the hub"):
        Forecaster.from_pretrained("./nowhere")


@pytest.mark.parametrize("backbone", [name for name in backbone_names("forecast") if name not in ("dlinear",)])
def test_every_model_can_be_the_backbone(backbone) -> None:
    settings = {"embed_dim": 8} if backbone != "tsmixer" else {"embed_dim": 4}
    settings |= {"num_layers": 1} if "num_layers" in BACKBONES[backbone].settings("forecast") else {}
    settings |= {"ff_dim": 8} if "ff_dim" in BACKBONES[backbone].settings("forecast") else {}
    model = quick(4, backbone=backbone, lookback=16, epochs=1, settings=settings, quantiles=(0.1, 0.9), calendar=True)
    forecast = model.fit(wide(120)).predict()
    assert np.isfinite(forecast.drop(columns="date").to_numpy()).all()
    assert (forecast["load_q0.1"] <= forecast["load_q0.9"]).all()


@pytest.mark.parametrize("attention", ["softmax", "toa-gated", {"name": "toa-relu", "score_norm": "l2"}])
def test_attention_is_chosen_by_name_or_fields(attention) -> None:
    model = quick(4, backbone="patchtst", attention=attention, lookback=16, epochs=1).fit(wide(120))
    assert model.architecture_["attention"]["name"] == (attention if isinstance(attention, str) else "toa-relu")
    assert np.isfinite(model.predict()["load"]).all()


def test_the_recipe_is_that_of_the_protocol_toa() -> None:
    for backbone in ("patchtst", "itransformer", "duet"):
        for dataset, windows in (("ETTh1", 8000), ("ETTm1", 34000)):
            names: dict[str, Any] = {"dataset": dataset, "backbone": backbone}
            config, plain = (resolve("forecast", protocol, horizon=96, **names) for protocol in ("toa", "toa-paper"))
            if config.attention.name != DEFAULT_ATTENTION:
                # the recipe of another attention
                assert choose_recipe(backbone, DEFAULT_ATTENTION, windows) == {}
                continue
            settings = {"operator_rate": config.training.operator_rate, "operator_init": config.attention.operator_init}
            settings["dropout"] = config.model.get("dropout")
            defaults = {"operator_rate": 1.0, "operator_init": None, "dropout": plain.model.get("dropout")}
            assert defaults | choose_recipe(backbone, DEFAULT_ATTENTION, windows) == settings, (backbone, dataset)
    assert choose_recipe("duet", "softmax", 8000) == {}


def test_a_large_table_is_fitted_by_the_recipe_unless_the_user_chooses(monkeypatch) -> None:
    monkeypatch.setattr("toa.estimators.sizes._LARGE_FROM", 50)
    model = quick(4, backbone="itransformer", lookback=16, epochs=1)
    rates = []
    run = HorizonForecasting.fit

    def fit(task, config, *how, **more):
        rates.append(config.training.operator_rate)
        return run(task, config, *how, **more)

    monkeypatch.setattr(HorizonForecasting, "fit", fit)
    fitted = model.fit(wide(120))
    assert (fitted.architecture_["attention"]["operator_init"], fitted.schedule_["operator_rate"]) == ("centering", 2.0)
    assert rates == [2.0]
    chosen = clone(model).set_params(attention={"name": "toa-relu"}, operator_rate=5.0).fit(wide(120))
    assert "operator_init" not in chosen.architecture_["attention"]
    assert chosen.schedule_["operator_rate"] == 5.0
    # the only column minus the mean over columns would be zero
    assert "operator_init" not in clone(model).fit(wide(120)[["date", "load"]]).architecture_["attention"]
    assert clone(model).set_params(attention="softmax").fit(wide(120)).schedule_["operator_rate"] == 1.0


def test_every_estimator_has_the_same_default_attention() -> None:
    assert {toa.AnomalyDetector().attention, toa.Classifier().attention, DEFAULT_ATTENTION} == {"toa-softmax"}
    assert (
        quick(4, backbone="patchtst", lookback=16, epochs=1).fit(wide(120)).architecture_["attention"]["name"]
        == DEFAULT_ATTENTION
    )


def test_choices_fit_the_size_of_the_data() -> None:
    # 10,000 rows of 7 columns, horizon 96: an eighth of the rows is held out
    assert choose_lookback(8750, 96) == 512
    schedule = choose_schedule(8750 - 512 - 96 + 1, 7, batch_size=None, epochs=None)
    assert schedule == {"batch_size": 128, "steps": 64, "epochs": 7}
    # a monthly series of ten years, a year ahead
    assert choose_lookback(105, 12) == 40
    assert choose_settings("patchtst", 40, 12)["patch_len"] == 2
    assert choose_schedule(54, 1, batch_size=None, epochs=None)["epochs"] == 60
    # an epoch of a large table is bounded: 1,280 windows, rounded up to batches
    large = choose_schedule(1_000_000, 100, batch_size=None, epochs=None)
    assert large["batch_size"] * (large["steps"] - 1) < 1280 <= large["batch_size"] * large["steps"]
    assert choose_lookback(3, 2) == 1


@pytest.mark.parametrize("backbone", backbone_names("forecast"))
@pytest.mark.parametrize(("lookback", "horizon"), [(512, 4), (512, 1), (40, 96), (5, 3), (2, 1)])
def test_the_chosen_settings_build_every_backbone(backbone, lookback, horizon) -> None:
    attention = "toa-softmax" if BACKBONES[backbone].takes_attention else None
    settings = choose_settings(backbone, lookback, horizon)
    sizes = {"lookback": lookback, "horizon": horizon, "channels": 2}
    with torch.device("meta"):
        model = build_forecaster(backbone, **sizes, attention=attention, settings=settings)
    assert model.horizon == horizon


def test_missing_rows_are_filled_on_request() -> None:
    frame = wide().drop(index=[50, 51, 120])
    with pytest.raises(ValueError, match=message("data must have a row at every step", "data row 51")):
        quick().fit(frame)
    forecast = quick(missing="interpolate").fit(frame).predict()
    assert forecast["date"].iloc[0] == pd.Timestamp("2024-01-21")


def spoiled(**columns: Any) -> pd.DataFrame:
    return wide().assign(**columns)


BAD_DATA = {
    "new column": (
        lambda: spoiled(wind=1.0),
        "data must have the columns of fit, 'load', 'heat', got a new one, 'wind'",
    ),
    "no column": (lambda: wide().drop(columns="heat"), "columns of fit, 'load', 'heat', got no 'heat'"),
    "too short": (lambda: wide(20), "data must have at least lookback=24 rows, got 20"),
    "frequency": (lambda: spoiled(date=pd.date_range("2024", periods=240, freq="3h")), "one frequency, '2h'"),
    "no times": (lambda: wide().drop(columns="date"), "data must have times of the frequency '2h'"),
    "text": (lambda: spoiled(load=["12 MW"] * 240), "'12 MW' in column 'load' at data row 1"),
    "infinite": (lambda: spoiled(load=[np.inf] + [1.0] * 239), "column 'load' at data row 1"),
    "missing": (lambda: spoiled(heat=[1.0, np.nan] + [1.0] * 238), "no missing values, got 1 NaN: 1 in 'heat'"),
    "all missing": (lambda: spoiled(heat=np.nan), "only NaN in column 'heat'"),
    "repeated": (
        lambda: pd.concat([wide(), wide()[-1:]]),
        "each date once, got 2024-01-20 22:00:00 again at data row 241",
    ),
    "unsorted": (lambda: wide()[::-1], "sorted by date"),
    "array": (lambda: np.zeros((40, 3)), "columns of fit"),
    "list": (lambda: [np.zeros((40, 2))], "ids that were fitted, None, got 0"),
}


@pytest.mark.parametrize("case", BAD_DATA)
def test_predict_rejects_data_that_differ_from_fit(fitted, case) -> None:
    make, words = BAD_DATA[case]
    with pytest.raises(ValueError, match=message(words)):
        fitted.predict(make())


def test_a_new_id_is_forecast_in_its_own_units(several) -> None:
    """A series of fit has the same forecast under another name, up to the rows that its scale comes from."""
    table = long()
    new = table[table["id"] == "y"].assign(id="z")
    before = several.predict(table, future=future())
    both = several.predict(pd.concat([table, new]), future=pd.concat([future(), future(z=120)]))
    pd.testing.assert_frame_equal(both[both["id"] != "z"], before)
    expected = before.loc[before["id"] == "y", "y"].to_numpy()
    np.testing.assert_allclose(both.loc[both["id"] == "z", "y"], expected, rtol=0.02)
    assert several.ids_ == ("x", "y")


def test_rows_after_an_origin_do_not_change_the_scale_of_a_new_series(several) -> None:
    """Its forecasts in a backtest stay the same when later rows are ten times as large."""
    new = long().assign(id=lambda table: table["id"] + "2")
    later = new.copy()
    ends = later.groupby("id").cumcount(ascending=False) < 6
    later.loc[ends, "y"] *= 10.0
    first, second = (several.backtest(table, test_size=6) for table in (new, later))
    np.testing.assert_array_equal(first.forecast, second.forecast)


BAD_FUTURE = {
    "none": (
        lambda: None,
        ("future must have the covariates 'promo' of the next 6 steps, got None; pass a table", "past_covariates"),
    ),
    "id": (lambda: future(x=160), ("future must have rows of every id", "'y'")),
    "few": (
        lambda: future(5),
        ("series 'x' of future must have 6 rows, the horizon of fit, got 5; add", "shorter horizon"),
    ),
    "late": (lambda: future(x=161, y=120), ("must continue data, with 2024-06-09", "got 2024-06-10")),
    "column": (lambda: future().drop(columns="promo"), ("future must have a column 'promo'",)),
}


@pytest.mark.parametrize("case", BAD_FUTURE)
def test_future_covariates_must_be_complete(several, case) -> None:
    make, words = BAD_FUTURE[case]
    with pytest.raises(ValueError, match=message(*words)):
        several.predict(future=make())


BAD_PARAMETERS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "one quantile": ({"quantiles": 0.5}, ("quantiles must be a list of levels in (0, 1), got 0.5",)),
    "horizon": ({"horizon": 0}, ("horizon must be an integer of at least 1, got 0",)),
    "lookback": ({"lookback": 2.5}, ("lookback must be an integer", "2.5")),
    "interval": ({"interval": 1.0}, ("interval must lie in (0, 1), got 1.0",)),
    "text": ({"interval": "0.8"}, ("interval must lie in (0, 1), got '0.8'",)),
    "quantile": ({"quantiles": (0.5, 80)}, ("quantiles[1] must lie in (0, 1), got 80",)),
    "loss": ({"loss": "rmse"}, ("unknown loss 'rmse'; known: mse, mae",)),
    "backbone": ({"backbone": "arima"}, ("unknown backbone 'arima'", "patchtst")),
    "attention": ({"attention": "softmax"}, ("attention must be None for model 'dlinear'",)),
    "setting": ({"settings": {"depth": 3}}, ("unknown setting 'depth' of model 'dlinear'",)),
    "covariate": ({"covariates": ("wind",)}, ("data must have the covariate 'wind', got 'load', 'heat'",)),
    "all known": ({"covariates": ("load", "heat")}, ("a column to forecast",)),
    "too long": (
        {"lookback": 300},
        ("data must have at least lookback + horizon = 306 rows to train on", "30 held out", "got 240"),
    ),
    "horizon too long": ({"horizon": 120, "lookback": None}, ("data must have at least lookback + horizon",)),
    "calibration": ({"interval": 0.99}, ("interval=0.99 must have at least 99 windows", "got 10")),
    "device": ({"device": "tpu"}, ("device must be auto, cpu, cuda or cuda:N, got 'tpu'",)),
}


@pytest.mark.parametrize("case", BAD_PARAMETERS)
def test_bad_parameters_are_rejected_by_name(case) -> None:
    options, words = BAD_PARAMETERS[case]
    with pytest.raises(ValueError, match=message(*words)):
        quick(**{"horizon": 6, "epochs": 1} | options).fit(wide())


def test_too_few_rows_for_an_interval_name_what_it_holds_out() -> None:
    model = Forecaster(6, model="toa", interval=0.8, lookback=6, epochs=1)
    with pytest.raises(ValueError, match="an interval holds out at least 4 horizons"):
        model.fit(np.random.default_rng(0).normal(size=(30, 2)).cumsum(0))


def test_too_few_rows_for_rolling_origins_count_those_of_the_table() -> None:
    rows = pd.DataFrame({"y": wave(700)})
    words = message("data must have at least lookback + horizon = 432 rows", "besides the 288 held out, got 700 rows")
    with pytest.raises(ValueError, match=words):
        # no limit of time, which would leave the network out on a busy machine
        Forecaster(96, lookback=336, time_limit=1e6).fit(rows)


def test_the_error_names_a_short_series_among_long_ones() -> None:
    with pytest.raises(
        ValueError, match=message("series 'y' of data must have at least lookback + horizon = 30", "got 33")
    ):
        quick(id="id", covariates=("promo",)).fit(long(x=200, y=33))


def test_bad_arguments_of_predict_and_backtest_are_rejected(fitted) -> None:
    with pytest.raises(ValueError, match=message("horizon must be from 1 to 6", "got 7", "fit with horizon=7")):
        fitted.predict(horizon=7)
    with pytest.raises(ValueError, match=message("future must be None", "without covariates")):
        fitted.predict(future=wide())
    for size in (1.5, 0, -5, len(wide()), "2024-01-10"):
        with pytest.raises(ValueError, match=message("test_size must be a share in (0, 1)", f"got {size!r}")):
            fitted.backtest(wide(), test_size=size)
    with pytest.raises(ValueError, match=message("the tested part", "4 of them tested")):
        fitted.backtest(wide(), test_size=4)
    for stride in (0, 1.5, "2"):
        with pytest.raises(ValueError, match=message(f"stride must be an integer of at least 1, got {stride!r}")):
            fitted.backtest(wide(), stride=stride)
    assert len(fitted.backtest(wide(), test_size=np.float32(0.1), stride=np.int64(2)).origins) == 10
    with pytest.raises(ValueError, match=message("horizon must be from 1 to 6", "got '3'.")):
        fitted.predict(horizon="3")


def test_calendar_features_need_dates() -> None:
    with pytest.raises(ValueError, match=message("calendar must be False", "dates")):
        quick(calendar=True).fit(wave(240))
    model = quick(calendar=True, epochs=1).fit(wide())
    with pytest.raises(ValueError, match=message("data must have dates", "pass a frame")):
        model.predict(wide()[["load", "heat"]].to_numpy())


def run_onnx(path: Path, **inputs: np.ndarray) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, inputs), strict=True))


def test_an_export_gives_the_same_forecast_in_units_of_the_data(fitted, tmp_path) -> None:
    fitted.export(tmp_path / "m.onnx")
    rows = wide()[["load", "heat"]].to_numpy()
    windows = np.stack([rows[-24:], rows[-30:-6], rows[:24]])
    outputs = run_onnx(tmp_path / "m.onnx", series=windows)
    assert list(outputs) == ["forecast", "quantiles", "lower", "upper"]
    (series,) = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"]).get_inputs()
    assert (series.type, series.shape) == ("tensor(double)", ["batch", 24, 2])
    for name, part in fitted.predict(rows).items():
        np.testing.assert_allclose(outputs[name][0], part, rtol=1e-5)
    np.testing.assert_allclose(outputs["forecast"][1], fitted.predict(rows[:-6])["forecast"], rtol=1e-5)


@pytest.mark.slow
def test_an_export_of_several_series_knows_each_by_its_number(several, tmp_path) -> None:
    several.export(tmp_path / "m.onnx")
    table = long()
    ahead = future()
    covariates = several.known_
    inputs = {"series": [], "marks": [], "future_marks": []}  # type: ignore[var-annotated]
    for name in several.ids_:
        past = table[table["id"] == name][-24:]
        next_ = ahead[ahead["id"] == name]
        inputs["series"].append(past[["y"]].to_numpy())
        inputs["marks"].append(covariates.features(pd.DatetimeIndex(past["day"]), past[["promo"]].to_numpy()))
        inputs["future_marks"].append(covariates.features(pd.DatetimeIndex(next_["day"]), next_[["promo"]].to_numpy()))
    stacked = {name: np.stack(parts) for name, parts in inputs.items()}
    stacked |= {name: stacked[name].astype(np.float32) for name in ("marks", "future_marks")}
    outputs = run_onnx(tmp_path / "m.onnx", which=np.array([0, 1]), **stacked)
    expected = several.predict(future=ahead)
    np.testing.assert_allclose(outputs["forecast"].ravel(), expected["y"], rtol=1e-5)
    np.testing.assert_allclose(outputs["upper"].ravel(), expected["y_upper"], rtol=1e-5)


def test_progress_is_shown_on_request(capsys) -> None:
    quick(progress=True, epochs=1).fit(wide())
    assert "forecaster, horizon 6" in capsys.readouterr().out


def test_fit_and_predict_read_their_frame_once() -> None:
    with mock.patch("toa.data.frames.make_panel", side_effect=make_panel) as read:
        model = quick().fit(wide())
        model.predict()
        assert read.call_count == 1
        model.predict(wide())
        assert read.call_count == 2
