import importlib
import logging
import sys
from typing import Any

import numpy as np
import pytest
import torch

from tests.support import message

pytest.importorskip("neuralforecast", reason="neuralforecast is not installed; it comes with toa[neuralforecast]")

import pandas as pd
from neuralforecast import NeuralForecast
from neuralforecast.auto import RayOptions
from neuralforecast.common import _model_checks as checks
from neuralforecast.common._base_model import BaseModel
from neuralforecast.losses.pytorch import DistributionLoss, MQLoss
from neuralforecast.utils import AirPassengersPanel, generate_series
from ray import tune

from toa.integrations.neuralforecast import TOA, AutoTOA, AutoTOAMultivariate, TOAMultivariate, default_space

pytestmark = [
    # warnings of Lightning and NeuralForecast themselves
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated"),
    pytest.mark.filterwarnings("ignore:The given NumPy array is not writable:UserWarning:neuralforecast"),
    pytest.mark.filterwarnings("ignore:Dropped .* unused rows from .futr_df.:UserWarning"),
    pytest.mark.filterwarnings("ignore:<class 'neuralforecast.*> does not define .arg_constraints.:UserWarning"),
    pytest.mark.filterwarnings("ignore::pytorch_lightning.utilities.warnings.PossibleUserWarning"),
]

# horizon, as NeuralForecast calls it
H = 4
# steps that a model reads
SEEN = 24
SMALL: dict[str, Any] = {"embed_dim": 8, "num_heads": 2, "num_layers": 1, "ff_dim": 8}
BRIEF: dict[str, Any] = {
    "max_steps": 3,
    "val_check_steps": 3,
    "batch_size": 8,
    "windows_batch_size": 8,
    "inference_windows_batch_size": 8,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "logger": False,
}
PANEL = AirPassengersPanel[["unique_id", "ds", "y"]]
IDS = ["Airline1", "Airline2"]
CLASSES = [TOA, TOAMultivariate]


@pytest.fixture(autouse=True)
def _quiet(caplog):
    caplog.set_level(logging.ERROR)


def make(kind: type[TOA] = TOA, **changes: Any) -> TOA:
    series = {"n_series": len(IDS)} if kind is TOAMultivariate else {}
    return kind(**{"h": H, "input_size": SEEN, "settings": SMALL, **series, **BRIEF, **changes})


def fitted(*models: TOA) -> NeuralForecast:
    forecaster = NeuralForecast(models=list(models), freq="ME")
    forecaster.fit(PANEL)
    return forecaster


@pytest.mark.parametrize("kind", CLASSES)
def test_predict_returns_a_frame_of_the_next_steps(kind) -> None:
    frame = fitted(make(kind)).predict()
    assert list(frame.columns) == ["unique_id", "ds", kind.__name__]
    assert frame["unique_id"].tolist() == [name for name in IDS for _ in range(H)]
    expected = pd.date_range(PANEL["ds"].max(), periods=H + 1, freq="ME")[1:]
    assert frame["ds"].tolist() == [*expected, *expected]
    assert frame[kind.__name__].between(100, 1500).all()


@pytest.mark.parametrize("kind", CLASSES)
def test_a_saved_model_is_not_a_pickle_and_gives_the_same_forecasts(kind, tmp_path) -> None:
    attention = {"name": "toa-gated", "score_norm": "mean", "gate_norm": "l2"}
    forecaster = fitted(make(kind, attention=attention, alias="mine", loss=MQLoss(level=[80])))
    forecaster.save(str(tmp_path / "models"))
    assert {path.suffix for path in (tmp_path / "models").iterdir()} == {".safetensors", ".json"}
    again = NeuralForecast.load(str(tmp_path / "models"))
    assert type(again.models[0]) is kind
    assert again.models[0].hparams["attention"] == attention
    pd.testing.assert_frame_equal(again.predict(), forecaster.predict())
    assert {"mine-median", "mine-lo-80", "mine-hi-80"} <= set(again.predict().columns)


@pytest.mark.parametrize("kind", CLASSES)
def test_cross_validation_forecasts_from_every_cutoff(kind) -> None:
    models = [
        make(kind),
        make(kind, backbone="dlinear", attention=None, settings={"moving_average": 5}, alias="linear"),
    ]
    frame = NeuralForecast(models=models, freq="ME").cross_validation(PANEL, n_windows=2, step_size=H)
    assert list(frame.columns) == ["unique_id", "ds", "cutoff", kind.__name__, "linear", "y"]
    assert len(frame) == len(IDS) * 2 * H
    cutoffs = pd.date_range(end=PANEL["ds"].max(), periods=2 * H + 1, freq="ME")[[0, H]]
    assert sorted(set(frame["cutoff"])) == list(cutoffs)
    merged = frame.merge(PANEL, on=["unique_id", "ds"])
    assert (merged["y_x"] == merged["y_y"]).all()


def test_training_beats_the_mean_of_the_last_year() -> None:
    train = PANEL.groupby("unique_id").head(132)
    forecaster = NeuralForecast(models=[make(h=12, max_steps=60, val_check_steps=60, learning_rate=1e-2)], freq="ME")
    forecaster.fit(train)
    merged = forecaster.predict().merge(PANEL, on=["unique_id", "ds"])
    last = train.groupby("unique_id")["y"].apply(lambda y: y.tail(12).mean())
    error = (merged["TOA"] - merged["y"]).abs().mean()
    assert error < 0.5 * (merged["unique_id"].map(last) - merged["y"]).abs().mean()


def test_each_series_keeps_its_outputs_with_a_loss_of_several_outputs() -> None:
    model = make(TOAMultivariate, backbone="patchtst", loss=MQLoss(quantiles=[0.1, 0.5, 0.9])).eval()
    series = torch.randn(3, SEEN, 2)
    changed = series.clone()
    changed[:, :, 1] = torch.randn(3, SEEN)
    before, after = (model.loss.domain_map(model({"insample_y": x})) for x in (series, changed))
    assert before.shape == (3, H, 2, 3)  # batch, steps, series, quantiles
    assert torch.equal(before[:, :, 0], after[:, :, 0])
    assert (before[:, :, 1] != after[:, :, 1]).all()


def test_parameters_of_a_distribution_are_not_in_units_of_the_series() -> None:
    def shifted(**changes: Any) -> bool:
        model = make(loss=DistributionLoss("Normal"), **changes).eval()
        series = torch.randn(2, SEEN, 1)
        far = model({"insample_y": series + 1000.0}) - model({"insample_y": series})
        return bool((far - 1000.0).abs().max() < 1.0)

    assert not shifted()
    assert shifted(settings={**SMALL, "instance_norm": True})


def test_an_auxiliary_loss_is_added_in_training(monkeypatch) -> None:
    monkeypatch.setattr(BaseModel, "training_step", lambda self, batch, index: self(batch).sum() * 0.0 + 2.0)
    settings = {**SMALL, "num_experts": 2, "top_k": 1, "gate_dim": 4, "moving_average": 5}
    model = make(backbone="duet", settings=settings).train()
    batch = {"insample_y": torch.randn(6, SEEN, 1)}
    torch.manual_seed(1)
    _, penalty = model.model.forecast_and_penalty(batch["insample_y"])
    torch.manual_seed(1)
    assert model.training_step(batch, 0).item() == pytest.approx(2.0 + penalty.item())
    assert penalty.item() > 0.0
    assert model._penalty is None


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"backbone": "patchtts"}, ["unknown backbone 'patchtts'; known: autoformer"]),
        ({"attention": "toa"}, ["unknown attention 'toa'; known: softmax"]),
        ({"attention": {"name": "softmax", "rank": 2}}, ["rank is not an option of attention 'softmax'"]),
        ({"settings": {"width": 3}}, ["unknown setting 'width' of model 'patchtst'; known: patch_len"]),
        ({"backbone": "dlinear", "settings": {}}, ["attention must be None for model 'dlinear'", "leave it out"]),
    ],
    ids=str,
)
def test_wrong_arguments_raise(changes, parts) -> None:
    with pytest.raises(ValueError, match=message(*parts)):
        make(**changes)


def test_without_neuralforecast_the_message_names_the_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "neuralforecast.common._base_auto", None)
    monkeypatch.delitem(sys.modules, "toa.integrations.neuralforecast")
    with pytest.raises(ImportError, match=message("install toa[neuralforecast].")):
        importlib.import_module("toa.integrations.neuralforecast")


@pytest.fixture
def own_checks(monkeypatch, tmp_path):
    """NeuralForecast's checks. Two of their faults are repaired: `freq="M"`, which pandas 3 refuses, and series
    shorter than the input, with which no loss is tested: all count as skipped."""
    monkeypatch.chdir(tmp_path)  # Lightning's logs
    plain = checks.NeuralForecast
    monkeypatch.setattr(
        checks, "NeuralForecast", lambda models, freq: plain(models=models, freq="ME" if freq == "M" else freq)
    )
    for index, count in ((1, checks.N_SERIES_1), (2, checks.N_SERIES_2)):
        frame = generate_series(count, freq="D", min_length=90, max_length=100, equal_ends=True)
        cut = frame["ds"].max() - pd.Timedelta(checks.test_size, "D")
        monkeypatch.setattr(checks, f"Y_TRAIN_DF_{index}", frame[frame["ds"] < cut])
        monkeypatch.setattr(checks, f"Y_TEST_DF_{index}", frame[frame["ds"] >= cut])
    return checks


@pytest.mark.parametrize("kind", CLASSES)
def test_checks_of_neuralforecast_pass(own_checks, kind) -> None:
    own_checks.check_model(kind, checks=["airpassengers"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", CLASSES)
def test_checks_of_neuralforecast_pass_with_every_loss(own_checks, kind, capsys) -> None:
    own_checks.check_model(kind, checks=["losses"])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "skipped" in line] == []
    assert len(lines) == 26


@pytest.mark.parametrize("seed", range(4))
def test_every_sample_of_the_search_space_builds_a_model(seed) -> None:
    random = np.random.default_rng(seed)

    def draw(space: Any) -> Any:
        if isinstance(space, dict):
            return {key: draw(value) for key, value in space.items()}
        return space.sample(random_state=random)

    for kind in CLASSES:
        drawn = draw(default_space(1))
        made = make(kind, **drawn)
        assert {name: made.hparams[name] for name in drawn} == drawn


def test_a_search_without_a_required_space_raises() -> None:
    with pytest.raises(ValueError, match=message("config must be given", "'optuna'", "None")):
        AutoTOA(h=H, backend="optuna")
    assert AutoTOAMultivariate(h=H, n_series=7).config["n_series"] == 7
    by_trial = AutoTOAMultivariate(h=H, n_series=7, backend="optuna", config=lambda trial: {"input_size": SEEN})
    assert by_trial.config(None)["n_series"] == 7


@pytest.fixture
def local_ray():
    import ray

    ray.init(num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", [AutoTOA, AutoTOAMultivariate])
def test_ray_finds_arguments_and_keeps_the_best_model(kind, local_ray, tmp_path) -> None:
    series = {"n_series": len(IDS)} if kind is AutoTOAMultivariate else {}
    space = {"input_size": SEEN, "settings": {**SMALL, "embed_dim": tune.grid_search([4, 8])}, **BRIEF}
    options = RayOptions(cpus=1, run_config=tune.RunConfig(storage_path=str(tmp_path / "ray"), verbose=0))
    auto = kind(h=H, config=space, num_samples=1, ray_options=options, **series)
    forecaster = NeuralForecast(models=[auto], freq="ME")
    forecaster.fit(PANEL, val_size=H)
    results = forecaster.models[0].results
    losses = {result.config["settings"]["embed_dim"]: result.metrics["loss"] for result in results}
    assert set(losses) == {4, 8}
    best = min(losses, key=losses.__getitem__)
    assert forecaster.models[0].model.hparams["settings"]["embed_dim"] == best
    forecaster.save(str(tmp_path / "models"))
    again = NeuralForecast.load(str(tmp_path / "models"))
    pd.testing.assert_frame_equal(again.predict(), forecaster.predict())


@pytest.mark.parametrize("kind", [TOA, TOAMultivariate])
@pytest.mark.parametrize("lists", [("futr", "hist", "stat"), ("futr",), ("hist",), ("stat",)])
def test_exogenous_columns_of_each_kind_change_the_forecast(lists, kind) -> None:
    """Both features start without effect, so a trained model must differ from one without them."""
    rng = np.random.default_rng(0)
    frame = PANEL.assign(promo=rng.random(len(PANEL)), lead=rng.random(len(PANEL)))
    static = pd.DataFrame({"unique_id": IDS, "region": [0.0, 1.0]})
    names = {"futr": ["promo"], "hist": ["lead"], "stat": ["region"]}
    options: dict[str, Any] = {f"{one}_exog_list": names[one] for one in lists}
    nf = NeuralForecast(models=[make(kind, **options), make(kind, alias="plain")], freq="ME")
    nf.fit(frame, static_df=static)
    name = kind.__name__
    last = frame.groupby("unique_id")["ds"].max()
    ahead = pd.concat(
        pd.DataFrame({"unique_id": one, "ds": pd.date_range(end, periods=H + 1, freq="ME")[1:], "promo": 0.9})
        for one, end in last.items()
    )
    found = nf.predict(futr_df=ahead)
    assert np.isfinite(found[name]).all()
    if lists != ("stat",):
        assert (found[name] - found["plain"]).abs().max() > 0
    other = nf.predict(futr_df=ahead.assign(promo=0.1))
    assert ((found[name] - other[name]).abs().max() > 0) == ("futr" in lists)
