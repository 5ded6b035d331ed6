"""What estimators refuse before training, because the answer would be wrong without a sign of it."""

import time
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from tests.estimators.signals import wide
from tests.support import message
from toa.estimators import AnomalyDetector, Classifier, Forecaster
from toa.estimators.files import saved_columns
from toa.training.checkpoint import load_checkpoint, save_checkpoint


def columns(*names: object, rows: int = 60) -> pd.DataFrame:
    values = np.random.default_rng(0).normal(size=(rows, len(names)))
    return pd.DataFrame(dict(zip(names, values.T, strict=True)))


@pytest.mark.parametrize(
    ("names", "options", "clash"),
    [
        (("x", "x_lower"), {"interval": 0.8}, "x_lower"),
        (("x_upper", "x"), {"interval": 0.8}, "x_upper"),
        (("x", "x_q0.1"), {"quantiles": (0.1,)}, "x_q0.1"),
        (("x",), {"quantiles": (0.1, 0.1000001)}, "x_q0.1"),
        (("x", "step"), {}, "step"),
    ],
)
def test_columns_whose_results_would_have_one_name_are_refused(names, options, clash):
    with pytest.raises(ValueError, match=message("different names", f"two results named {clash!r}", "rename")):
        Forecaster(2, **options).fit(columns(*names))


def test_columns_clash_only_in_results_that_have_the_ending():
    frame = columns("x", "x_lower", "x_actual")
    model = Forecaster(2, epochs=1, lookback=4).fit(frame)
    assert list(model.predict().columns) == ["step", "x", "x_lower", "x_actual"]
    with pytest.raises(ValueError, match="two results named 'x_actual'"):
        model.backtest(frame)


def test_a_number_and_its_text_are_not_two_columns():
    with pytest.raises(ValueError, match="each column once, got '0' twice"):
        Forecaster(2).fit(columns(0, "0"))


def test_ids_and_times_with_the_name_of_a_result_are_refused():
    for name in ("score", "anomaly"):
        with pytest.raises(ValueError, match=f"two results named {name!r}"):
            AnomalyDetector(time=name).fit(wide().rename(columns={"date": name}))
    cases = pd.DataFrame({"case": np.repeat(range(4), 8), "x": np.arange(32.0)})
    for name, labels in (("prediction", ["u", "v"]), ("u", ["u", "v"])):
        with pytest.raises(ValueError, match=f"two results named {name!r}"):
            Classifier(id=name).fit(cases.rename(columns={"case": name}), labels * 2)


@pytest.mark.parametrize("estimator", [Forecaster(2), AnomalyDetector()])
def test_complex_columns_are_refused(estimator):
    frame = columns("a", "b").assign(b=1 + 2j)
    for data in (frame, frame.astype({"b": object}), frame.to_numpy()):
        with pytest.raises(ValueError, match=r"complex|must have only numeric columns"):
            estimator.fit(data)


def test_complex_cases_are_refused_in_a_frame_with_one_case_per_row():
    with pytest.raises(ValueError, match="must be real, got complex numbers in column 'b'"):
        Classifier().fit(columns("a", "b", rows=8).assign(b=1 + 2j), [0, 1] * 4)


@pytest.mark.parametrize("labels", [[1, "1"] * 4, np.array([1, "1"] * 4, dtype=object), pd.Series([1.5, "u"] * 4)])
def test_labels_of_text_and_numbers_are_refused(labels):
    cases = np.random.default_rng(0).normal(size=(8, 1, 16))
    with pytest.raises(ValueError, match="labels of one type"):
        Classifier().fit(cases, labels)
    frame = pd.DataFrame(cases[:, 0]).assign(kind=list(labels))
    with pytest.raises(ValueError, match="labels of one type"):
        Classifier(label="kind").fit(frame)


def test_values_far_from_those_of_fit_are_refused_with_column_and_row():
    frame = columns("a", "b", rows=80)
    far = frame.copy()
    far.loc[70, "b"] = 1e30
    rule = message("range of the data of fit", "in column 'b' at data row", "check its units")
    forecaster = Forecaster(2, lookback=16, epochs=1).fit(frame)
    detector = AnomalyDetector(window=8, epochs=1).fit(frame)
    cases = np.random.default_rng(0).normal(size=(8, 2, 16))
    classifier = Classifier(model="toa", epochs=1).fit(cases, [0, 1] * 4)
    for call in (forecaster.predict, forecaster.backtest, detector.predict, detector.detect):
        with pytest.raises(ValueError, match=rule):
            call(far)
    with pytest.raises(ValueError, match="case 3 of X must have values in the range"):
        classifier.predict(np.where(np.arange(8).reshape(8, 1, 1) == 2, 3e19, cases))
    assert np.isfinite(forecaster.predict(frame[["a", "b"]]).to_numpy()).all()


def test_a_covariate_beyond_float32_is_refused():
    frame = wide().assign(promo=np.arange(240) % 2)
    model = Forecaster(2, lookback=8, epochs=1, covariates=["promo"]).fit(frame)
    future = pd.DataFrame({"date": pd.date_range("2024-01-21", periods=2, freq="2h"), "promo": [0.0, 1e300]})
    with pytest.raises(ValueError, match=message("covariates must have", "column 'promo' at data row 2")):
        model.predict(future=future)


@pytest.fixture(scope="module")
def fitted() -> Forecaster:
    return Forecaster(2, lookback=16, epochs=1).fit(columns("a"))


@pytest.mark.parametrize(("name", "value"), [("model", np.nan), ("scaler.std", 0.0), ("scaler.mean", np.inf)])
def test_files_with_unusable_numbers_are_refused(fitted, tmp_path, name, value):
    path = tmp_path / "model.toa"
    fitted.save(path)
    saved = load_checkpoint(path)
    wrong = {key: tensor * value if key.startswith(name) else tensor for key, tensor in saved.tensors.items()}
    save_checkpoint(path, wrong, saved.facts)
    with pytest.raises(ValueError, match=r"model\.toa must hold"):
        Forecaster.load(path)


def test_an_answer_that_is_not_finite_is_refused():
    model = Forecaster(2, lookback=8, epochs=1).fit(columns("a"))
    with torch.no_grad():
        next(model.model_.parameters()).fill_(torch.nan)
    with pytest.raises(ValueError, match="the forecast of column 'a' must be finite"):
        model.predict()
    detector = AnomalyDetector(window=8, epochs=1).fit(columns("a"))
    classifier = Classifier(model="toa", epochs=1).fit(np.random.default_rng(0).normal(size=(8, 2, 16)), [0, 1] * 4)
    for estimator, data in ((detector, columns("a")), (classifier, np.zeros((2, 2, 16)))):
        with torch.no_grad():
            next(estimator.model_.parameters()).fill_(torch.nan)
        with pytest.raises(ValueError, match="must be finite"):
            estimator.predict(data)


def forged(path, change) -> None:
    """Change the header of a saved estimator, with a checksum that fits."""
    saved = load_checkpoint(path)
    facts: Any = saved.facts
    change(facts["facts"])
    save_checkpoint(path, saved.tensors, facts)


@pytest.mark.parametrize(
    "change",
    [
        lambda facts: facts["fitted"]["architecture_"]["settings"].update(num_layers=20_000),
        lambda facts: facts["fitted"]["architecture_"]["settings"].update(embed_dim=2**40),
        lambda facts: facts["fitted"]["architecture_"]["settings"].update(embed_dim=64),
        lambda facts: facts["fitted"]["architecture_"]["settings"].update(num_heads=0),
        lambda facts: facts["fitted"]["architecture_"].update(settings=[1, 2]),
        lambda facts: facts["fitted"].update(lookback_=10**9),
        lambda facts: facts["fitted"].update(columns=["a"] * 3),
        lambda facts: facts["parameters"].update(horizon="2"),
        lambda facts: facts["parameters"].update(unknown=1),
        lambda facts: facts.update(fitted=None),
    ],
)
def test_forged_models_are_refused_quickly_with_the_name_of_the_file(fitted, tmp_path, change):
    path = tmp_path / "model.toa"
    fitted.save(path)
    forged(path, change)
    # of the processor: other processes do not count
    begin = time.process_time()
    with pytest.raises(ValueError, match=r"model\.toa must"):
        Forecaster.load(path).predict(columns("a"))
    assert time.process_time() - begin < 10.0


PARAMETERS: dict[str, Any] = {
    "id": {},
    "time": {},
    "values": [1],
    "covariates": [0],
    "static": "a",
    "seed": "x",
    "missing": "guess",
    "settings": [1],
    "horizon": True,
    "calendar": 1,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_of_another_type_are_refused(fitted, tmp_path, name):
    path = tmp_path / "model.toa"
    fitted.save(path)
    forged(path, lambda facts: facts["parameters"].update({name: PARAMETERS[name]}))
    assert saved_columns(path).id is None
    with pytest.raises(ValueError, match=rf"model\.toa must[^.]*{name} must be (of the type|a list)"):
        Forecaster.load(path)


def test_a_forecaster_whose_network_is_missing_is_refused(tmp_path):
    path = tmp_path / "model.toa"
    Forecaster(2, lookback=8, epochs=1, backbone="dlinear", model="toa").fit(columns("a")).save(path)
    forged(path, lambda facts: facts["fitted"]["architecture_"].update(backbone=None))
    with pytest.raises(ValueError, match=r"model\.toa must[^.]*a network with a weight must be in the file"):
        Forecaster.load(path)


@pytest.mark.parametrize("name", ["width", "offsets"])
def test_a_forecaster_whose_bounds_are_missing_is_refused(tmp_path, name):
    path = tmp_path / "model.toa"
    Forecaster(2, effort="least", interval=0.8, quantiles=[0.1]).fit(columns("a")).save(path)
    saved = load_checkpoint(path)
    del saved.tensors[f"choice.{name}"]
    save_checkpoint(path, saved.tensors, saved.facts)
    with pytest.raises(ValueError, match=r"model\.toa must[^.]*arrays of the choice must be"):
        Forecaster.load(path)


@pytest.mark.parametrize("model", ["auto", "toa"])
def test_values_whose_squares_are_infinite_are_refused(model):
    table = columns("a", "b")
    table["b"] *= 1e160
    with pytest.raises(ValueError, match=message("data must have values of at most 1e+150", "column 'b'", "unit")):
        Forecaster(2, model=model, effort="least", epochs=1).fit(table)


@pytest.mark.parametrize("rows", [1, 2])
def test_a_forecast_after_few_rows_names_the_bounds_that_it_lacks(tmp_path, rows):
    table = pd.DataFrame({"a": [1.0, 3.0][:rows]})
    with pytest.warns(UserWarning, match="has no interval"):
        model = Forecaster(2, effort="least", interval=0.8, quantiles=[0.1]).fit(table)
    model.save(tmp_path / "model.toa")
    for fitted in (model, Forecaster.load(tmp_path / "model.toa")):
        with pytest.warns(UserWarning, match="the forecast has no") as warned:
            forecast = fitted.predict(table)
        assert [str(warning.message).split(":")[0] for warning in warned] == [
            "the forecast has no interval of 0.8",
            "the forecast has no quantiles",
        ]
        assert forecast.to_dict("list") == {"step": [1, 2], "a": [table["a"].iloc[-1]] * 2}


def test_an_estimator_of_series_is_not_loaded_with_another_id_or_other_covariates(tmp_path):
    path = tmp_path / "model.toa"
    names: Any = {"id": "id", "covariates": ["b"]}
    Forecaster(2, effort="least", **names).fit(columns("a", "b").assign(id="x")).save(path)
    rules = {"id of the fit must be that": ("other", ["b"]), "known covariates must be": ("id", ["c"])}
    for rule, (id, covariates) in rules.items():

        def change_facts(facts, id=id, covariates=covariates):
            facts["fitted"] |= {"id": id, "known": facts["fitted"]["known"] | {"covariates": covariates}}

        forged(path, change_facts)
        with pytest.raises(ValueError, match=rf"model\.toa must[^.]*{rule}"):
            Forecaster.load(path)


def test_a_forecaster_without_a_scaler_is_refused(tmp_path):
    path = tmp_path / "model.toa"
    Forecaster(2, lookback=16, epochs=1, effort="least").fit(columns("a")).save(path)
    saved = load_checkpoint(path)
    del saved.tensors["scaler.mean"]
    save_checkpoint(path, saved.tensors, saved.facts)
    with pytest.raises(ValueError, match=r"model\.toa must"):
        Forecaster.load(path)


@pytest.fixture(scope="module")
def detectors(tmp_path_factory):
    """Files of a combination without a network, and of one method."""
    folder = tmp_path_factory.mktemp("detectors")
    for name in ("auto", "pca"):
        AnomalyDetector(window=8, model=name, effort="least").fit(columns("a", "b")).save(folder / name)
    return folder


FOREST = "scorer.isolation forest."
PARTS = ("feature", "threshold", "left", "right", "depth")


@pytest.mark.parametrize(
    ("model", "facts", "tensors", "rule"),
    [
        ("pca", {"window_": 10**9}, {}, "be at most 100,000 rows"),
        ("pca", {"window_": 8.0}, {}, "integer"),
        ("auto", {"window_": 1_000_000}, {}, "be at most 100,000 rows"),
        ("auto", {"columns_": [{}, "b"]}, {}, "be different names of columns"),
        ("auto", {"ids": [[None]]}, {}, "be text or numbers"),
        ("auto", {"freq_": "1000000000000YE"}, {}, "be a frequency of dates"),
        ("pca", {"threshold_": float("nan")}, {}, "thresholds must be finite"),
        ("pca", {"stream_threshold_": "x"}, {}, "str"),
        ("pca", {}, {"scorer.pca.mean": torch.zeros(1)}, "PCA must belong to 2 channels"),
        ("pca", {}, {"scaler.mean": torch.zeros(1, 2, dtype=torch.int8)}, "floating point"),
        ("auto", {}, {f"{FOREST}feature": torch.full((100, 79), 2)}, "IsolationForest must belong"),
        ("auto", {}, {f"{FOREST}left": torch.full((100, 79), 79)}, "IsolationForest must belong"),
        ("auto", {}, {f"{FOREST}{name}": torch.zeros(101, 79).long() for name in PARTS}, "IsolationForest must belong"),
        ("auto", {}, {"choice.pca.score": -torch.arange(100.0)}, "rising numbers"),
        ("auto", {"choice": {"members": ["toa"], "precision": {}}}, {}, "toa"),
    ],
)
def test_forged_detectors_are_refused_before_they_are_used(tmp_path, detectors, model, facts, tensors, rule):
    saved = load_checkpoint(detectors / model)
    header: Any = saved.facts
    header["facts"]["fitted"] |= facts
    assert set(tensors) <= set(saved.tensors)
    save_checkpoint(tmp_path / "model.toa", saved.tensors | tensors, header)
    with pytest.raises(ValueError, match=rf"model\.toa must[^.]*{rule}|{rule}[^.]* got"):
        AnomalyDetector.load(tmp_path / "model.toa")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_scores_that_are_not_finite_are_refused(tmp_path, detectors):
    saved = load_checkpoint(detectors / "auto")
    far = torch.full((2,), 1e200, dtype=torch.float64)
    save_checkpoint(tmp_path / "model.toa", saved.tensors | {"scorer.z-score.mean": far}, saved.facts)
    with pytest.raises(ValueError, match=r"model\.toa must[^.]*scores must be finite"):
        AnomalyDetector.load(tmp_path / "model.toa")


@pytest.mark.parametrize(
    "changes",
    [
        {"lookback_": "x"},
        {"lookback_": 0},
        {"freq_": 3.5},
        {"freq_": "1000000000000YE"},
        {"time_": ["a"]},
        {"id": {}},
        {"known": {"past_covariates": None}},
    ],
)
def test_a_forged_forecaster_without_a_network_is_refused(tmp_path, changes):
    path = tmp_path / "model.toa"
    Forecaster(2, lookback=16, epochs=1, effort="least").fit(columns("a")).save(path)

    def change(facts):
        covariates = facts["fitted"]["known"] | changes.get("known", {})
        facts["fitted"] |= changes | {"known": covariates}

    forged(path, change)
    with pytest.raises(ValueError, match=r"model\.toa must"):
        Forecaster.load(path)


@pytest.mark.parametrize("changes", [{"choice": {"season": 10**9}}, {"season": 10**9}, {"choice": {"horizon": 10**9}}])
def test_a_forged_season_takes_no_memory(tmp_path, changes):
    path = tmp_path / "model.toa"
    Forecaster(2, lookback=16, epochs=1, effort="least").fit(columns("a")).save(path)

    def change(facts):
        facts["fitted"]["choice"] |= changes.get("choice", {})
        facts["fitted"] |= {name: value for name, value in changes.items() if name != "choice"}

    forged(path, change)
    with pytest.raises(ValueError, match=r"model\.toa must"):
        Forecaster.load(path)
