import time
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score

import toa
from tests.report.cases import read_page
from tests.report.test_result_pages import part_of
from tests.support import message
from toa.data.frames import read_cases
from toa.estimators import kernels
from toa.estimators.case_network import NetworkMember, network_folds
from toa.estimators.classifier import Classifier
from toa.estimators.classifier_fitting import FitStopped
from toa.estimators.files import save_file
from toa.estimators.fitted_classifier import interval_text
from toa.estimators.kernels import FEATURES
from toa.training.loop import TrainingStopped

SMALL = {"embed_dim": 16, "num_heads": 2, "num_layers": 1, "ff_dim": 16, "dropout": 0.0, "instance_norm": False}


def signals(count: int = 24, length: int = 12, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Slow and quick waves of two channels (n, 2, L), and which of them each is."""
    rng = np.random.default_rng(seed)
    kind = np.arange(count) % 2
    t = np.arange(length)
    phase = rng.uniform(0, 6, size=(count, 1, 1))
    waves = np.sin(np.where(kind, 2.0, 0.5)[:, None, None] * t + phase)
    return np.concatenate((waves, -waves), 1) + 0.05 * rng.normal(size=(count, 2, length)), kind


def names(kind: np.ndarray) -> np.ndarray:
    return np.where(kind, "quick", "slow")


def long_frame(X: np.ndarray, y: np.ndarray) -> pd.DataFrame:
    parts = [
        pd.DataFrame({"case": f"c{i}", "step": np.arange(len(x.T)), "up": x[0], "down": x[1], "kind": label})
        for i, (x, label) in enumerate(zip(X, y, strict=True))
    ]
    return pd.concat(parts, ignore_index=True)


def make(**options) -> Classifier:
    return Classifier(**{"model": "toa", "epochs": 15, "learning_rate": 5e-3, "settings": SMALL, **options})


def with_fitted(model: Classifier, **changes) -> Classifier:
    """A classifier whose fitted value has other fields."""
    other = clone(model)
    other.fitted_ = replace(model.fitted_, **changes)
    return other


@pytest.fixture(scope="module")
def fitted() -> Classifier:
    X, y = signals(60)
    return make(epochs=6, learning_rate=2e-2).fit(X, names(y))


@pytest.fixture(scope="module")
def framed() -> Classifier:
    X, y = signals()
    return make(epochs=3, id="case", time="step", label="kind").fit(long_frame(X, names(y)))


def test_the_classifier_is_exported_by_the_package():
    assert toa.Classifier is Classifier
    assert is_classifier(Classifier())


def test_new_cases_are_classified_and_labels_kept(fitted):
    X, y = signals(seed=1)
    assert fitted.score(X, names(y)) >= 0.9
    assert fitted.classes_.tolist() == ["quick", "slow"]
    assert set(fitted.predict(X)) <= {"quick", "slow"}
    assert fitted.validation_ is not None


def test_probabilities_belong_to_the_predictions(fitted):
    X, _ = signals(seed=1)
    proba = fitted.predict_proba(X)
    assert proba.shape == (24, 2)
    assert np.allclose(proba.sum(1), 1.0)
    assert (fitted.classes_[proba.argmax(1)] == fitted.predict(X)).all()


def test_the_accuracy_has_an_interval_that_is_saved(fitted, tmp_path):
    """Wilson's: the accuracies whose distance from the stated one is at most 1.96 of their standard deviations."""
    model = with_fitted(fitted, validation=0.75)
    interval = model.validation_interval_
    assert interval is not None
    low, high = interval
    for bound in (low, high):
        deviation = np.sqrt(bound * (1 - bound) / 60)
        assert abs(0.75 - bound) == pytest.approx(1.96 * deviation, rel=1e-3)
    model.save(tmp_path / "model.toa")
    assert Classifier.load(tmp_path / "model.toa").validation_interval_ == (low, high)


def test_the_interval_says_what_it_does_not_cover(fitted):
    measured = with_fitted(fitted, validation=0.75)
    assert interval_text(measured.fitted_) == "95 % interval 0.628 to 0.842, only for new cases of the same source"
    few = with_fitted(fitted, validation=0.75, schema=replace(fitted.fitted_.schema, count=12))
    assert interval_text(few.fitted_).endswith("of the same source; 12 cases are too few to rely on it")
    assert not interval_text(with_fitted(fitted, validation=None).fitted_)


@pytest.mark.parametrize("cases", [-3, 2.5, "60", None, True, 61, 10**12])
def test_a_file_with_a_wrong_number_of_cases_is_refused(fitted, tmp_path, cases):
    model = with_fitted(fitted, validation=0.75, schema=replace(fitted.fitted_.schema, count=cases))
    model.save(tmp_path / "model.toa")
    with pytest.raises(ValueError, match=message("model.toa must hold a complete classifier", "cases must be")):
        Classifier.load(tmp_path / "model.toa")


@pytest.mark.parametrize("share", [-0.5, 1.5, float("nan")])
def test_a_file_with_an_accuracy_that_is_no_share_is_refused(fitted, tmp_path, share):
    model = with_fitted(fitted, validation=share)
    model.save(tmp_path / "model.toa")
    with pytest.raises(ValueError, match=message("model.toa must hold a complete classifier", "accuracy")):
        Classifier.load(tmp_path / "model.toa")


@pytest.mark.parametrize("labels", [np.array([7, -3]), np.array([2.5, 0.5]), np.array([True, False])])
def test_labels_of_any_type_are_returned_and_saved(labels, tmp_path):
    X, y = signals(8)
    model = make(epochs=1).fit(X, labels[y])
    assert model.predict(X).dtype == labels.dtype
    model.save(tmp_path / "model.safetensors")
    loaded = Classifier.load(tmp_path / "model.safetensors")
    assert loaded.classes_.dtype == labels.dtype
    assert (loaded.predict(X) == model.predict(X)).all()


def test_univariate_cases_need_no_channel_axis():
    X, y = signals(8)
    model = make(epochs=1).fit(X[:, 0], y)
    assert np.array_equal(model.predict_proba(X[:, 0]), model.predict_proba(X[:, :1]))
    assert np.array_equal(model.predict_proba(list(X[:, 0])), model.predict_proba(X[:, 0]))


def test_cases_of_unequal_length_do_not_affect_each_other():
    X, y = signals()
    cut = [x[:, : 8 + i % 5] for i, x in enumerate(X)]
    model = make(epochs=8, validation_share=0.0).fit(cut, y)
    assert model.length_ == 12
    assert model.score(cut, y) >= 0.8
    alone = np.concatenate([model.predict_proba([case]) for case in cut[:6]])
    assert np.allclose(alone, model.predict_proba(cut)[:6], atol=1e-6)


def test_the_result_of_a_long_frame_is_a_frame_by_id(framed):
    X, y = signals(seed=1)
    frame = long_frame(X, names(y))
    classes = framed.predict(frame)
    assert list(classes.columns) == ["case", "prediction"]
    assert classes["case"].tolist() == [f"c{i}" for i in range(24)]
    assert framed.score(frame) == np.mean(classes["prediction"] == names(y))
    proba = framed.predict_proba(frame.drop(columns="kind"))
    assert list(proba.columns) == ["case", "quick", "slow"]
    # rows of cases may alternate, and columns change places
    mixed = frame.sort_values(["step", "case"])[["down", "kind", "case", "step", "up"]]
    again = framed.predict_proba(mixed).set_index("case").loc[proba["case"]]
    assert np.allclose(again, proba.set_index("case"))


def test_frames_and_arrays_give_the_same_result():
    X, y = signals(8)
    frame = long_frame(X, y).drop(columns="kind")
    by_array = make(epochs=1).fit(X, y)
    for labels in (y, {f"c{i}": label for i, label in enumerate(y)}):
        by_frame = make(epochs=1, id="case", time="step").fit(frame, labels)
        assert np.array_equal(by_frame.predict_proba(frame)[["0", "1"]].to_numpy(), by_array.predict_proba(X))


def test_a_wide_frame_has_a_case_in_each_row():
    X, y = signals(8)
    frame = pd.DataFrame(X[:, 0]).add_prefix("t").assign(kind=names(y))
    model = make(epochs=1, label="kind").fit(frame)
    assert np.array_equal(model.predict_proba(frame), make(epochs=1).fit(X[:, 0], names(y)).predict_proba(X[:, 0]))
    assert model.score(frame) == model.score(frame.drop(columns="kind"), names(y))
    frame.loc[3, "kind"] = None
    with pytest.raises(ValueError, match=message("got none in column 'kind' at data row 4")):
        model.fit(frame)


def test_the_result_of_a_polars_frame_is_one(framed):
    import polars

    X, y = signals(4)
    classes = framed.predict(polars.from_pandas(long_frame(X, names(y))))
    assert isinstance(classes, polars.DataFrame)
    assert classes.columns == ["case", "prediction"]


def test_fitting_is_reproducible_and_keeps_the_random_state():
    X, y = signals(8)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, second = (make(epochs=2).fit(X, y).predict_proba(X) for _ in range(2))
    assert np.array_equal(first, second)
    assert torch.get_rng_state().equal(before)


def test_it_works_with_scikit_learn():
    X, y = signals(12)
    model = make(epochs=1)
    assert clone(model).get_params() == model.get_params()
    assert len(cross_val_score(model, X[:, 0], y, cv=2)) == 2


def test_few_cases_train_without_holding_any_out():
    X, y = signals(4)
    assert make(epochs=1).fit(X, y).validation_ is None
    X, y = signals(20)
    assert make(epochs=1).fit(X, y).validation_ is not None
    assert make(epochs=1, validation_share=0.0).fit(X, y).validation_ is None


def test_long_series_become_patches():
    X, y = signals(4, 401)
    model = make(epochs=1).fit(X, y)
    assert model.architecture_["patch"] == 7
    assert model.model_.lookback == 58
    other = make(epochs=1, backbone="patchtst").fit(X, y)
    assert (other.architecture_["patch"], other.architecture_["settings"]["patch_len"]) == (1, 12)


def numbered(X: np.ndarray, y: np.ndarray) -> pd.DataFrame:
    """One case per row, with ids that are numbers."""
    return pd.DataFrame(X[:, 0]).add_prefix("t").assign(kind=names(y), case=np.arange(7, 7 + len(X)))


def test_ids_of_a_table_with_one_case_per_row_are_no_steps(tmp_path):
    X, y = signals(8)
    frame = numbered(X, y)
    model = make(epochs=1, id="case", label="kind").fit(frame)
    assert (model.length_, len(model.columns_), model.steps_[-1]) == (12, 1, "t11")
    expected = make(epochs=1).fit(X[:, 0], names(y)).predict_proba(X[:, 0])
    model.save(tmp_path / "m.toa")
    for classifier in (model, Classifier.load(tmp_path / "m.toa")):
        proba = classifier.predict_proba(frame.drop(columns="kind"))
        assert proba["case"].tolist() == list(range(7, 15))
        assert np.allclose(proba[["quick", "slow"]], expected)
        # a row by itself, an id that repeats, and another order of the columns are read as in fit
        assert (
            classifier.predict(frame[3:4])["prediction"].tolist()
            == classifier.predict(frame)["prediction"].tolist()[3:4]
        )
        assert classifier.predict(frame.assign(case=1)[frame.columns[::-1]])["case"].tolist() == [1] * 8
    by_id = make(epochs=1, id="case").fit(
        frame.drop(columns="kind"), dict(zip(frame["case"], frame["kind"], strict=True))
    )
    assert by_id.score(frame.drop(columns="kind"), frame["kind"].to_numpy()) == model.score(frame)
    with pytest.raises(ValueError, match=message("X must have an id in every row", "column 'case' at data row 2")):
        make(id="case", label="kind").fit(frame.assign(case=["a", None, *"cdefgh"]))


def test_one_row_per_case_is_a_step_of_a_model_of_long_tables():
    X, y = signals(4)
    frame = long_frame(X, names(y)).drop(columns="step")
    model = make(epochs=1, id="case", label="kind").fit(frame)
    with pytest.warns(UserWarning, match="4 of 4 cases are much shorter"):
        assert len(model.predict(frame.groupby("case").head(1))) == 4


@pytest.mark.parametrize(
    ("name", "first", "warned"),
    [
        ("case", False, True),
        ("Subject-ID", False, True),
        ("number", True, True),
        ("number", False, False),
        ("valid", False, False),
    ],
)
def test_a_step_that_looks_like_an_id_is_named(name, first, warned):
    X, y = signals(8)
    frame = numbered(X, y).rename(columns={"case": name})
    frame = frame[[name, *frame.columns.drop(name)]] if first else frame
    place = 1 if first else 13
    complaint = f"column {name!r} is read as step {place} of each case, but looks like an id; give id={name!r} if it"
    with pytest.warns(UserWarning, match=message(complaint)) if warned else nullcontext():
        model = make(epochs=1, label="kind").fit(frame)
    assert model.length_ == 13
    # no note of a column that was chosen, or has fractions
    make(epochs=1, label="kind", values=model.steps_).fit(frame)
    make(epochs=1, label="kind").fit(frame.assign(**{name: frame[name] + 0.5}))


@pytest.mark.parametrize("in_blocks", [True, False])
def test_a_long_table_without_its_id_is_named(in_blocks):
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"case": np.repeat(np.arange(10), 4), "x": rng.normal(size=40), "y": rng.normal(size=40)})
    rows = rows.assign(kind=rows["case"] % 2)
    rows = rows if in_blocks else rows.sample(frac=1, random_state=0)
    complaint = "column 'case' is read as step 1 of each case, but looks like an id; give id='case'"
    with pytest.warns(UserWarning, match=message(complaint)) if in_blocks else nullcontext():
        make(epochs=1, label="kind").fit(rows)


def test_gaps_are_filled_only_when_asked():
    X, y = signals(8)
    X[2, 1, 3:5] = np.nan
    with pytest.raises(ValueError, match=message("case 3 of X must have no missing values, got 2 NaN", "at step 4")):
        make(epochs=1).fit(X, y)
    filled = read_cases(X, missing="interpolate").values[2][:, 1]
    assert np.allclose(filled[2:6], np.linspace(filled[2], filled[5], 4))
    assert make(epochs=1, missing="interpolate").fit(X, y).predict(X).shape == (8,)


def test_gaps_of_a_table_with_one_case_per_row_are_named_by_row_and_column():
    X, y = signals(8)
    frame = pd.DataFrame(X[:, 0]).add_prefix("t").assign(kind=names(y))
    frame.loc[3, "t5"] = frame.loc[6, "t0"] = np.nan
    complaints = ("X must have no missing values, got 2 NaN: 1 in 't0', 1 in 't5', the first at data row 4", "'ffill'")
    with pytest.raises(ValueError, match=message(*complaints)):
        make(label="kind").fit(frame)
    with pytest.raises(ValueError, match=message("case 7 of X", "the first at step 1", "cut the first steps or")):
        make(label="kind", missing="ffill").fit(frame)


def broken(**changes: object) -> pd.DataFrame:
    X, y = signals(4)
    frame = long_frame(X, names(y)).astype(dict.fromkeys(["kind", *(set(changes) & {"up"})], object))
    for column, value in changes.items():
        frame.loc[13, column] = value
    return frame


BAD_FRAMES = {
    "two labels": (
        lambda: broken(kind="other"),
        "column 'kind' of X must have one label per case, got 'other' after 'quick' for case 'c1' at data row",
    ),
    "no label": (lambda: broken(kind=None), "got none in column 'kind' at data row 14"),
    "text": (lambda: broken(up="x"), "14"),
    "repeated step": (lambda: broken(step=0), "data row 14"),
    "no id": (lambda: broken().drop(columns="case"), "must have a column 'case'"),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_bad_frames_are_rejected_by_row_or_column(name):
    data, words = BAD_FRAMES[name]
    with pytest.raises(ValueError, match=message(words)):
        make(id="case", time="step", label="kind").fit(data())


def spoilt(value: float) -> np.ndarray:
    X, _ = signals(4)
    X[1, 0, 5] = value
    return X


BAD_ARRAYS = {
    "infinity": (lambda: spoilt(np.inf), "case 2 of X must be finite", "'channel 0' at data row 6"),
    "axes": (lambda: signals(4)[0][None], "must be an array (n, C, L)", "(1, 4, 2, 12)"),
    "text": (lambda: signals(4)[0].astype(str).astype(object) + "x", "case 1 of X must hold only numbers", ""),
    "no step": (lambda: [*signals(4)[0][:3], np.empty((2, 0))], "case 4 of X must be an array (C, l)", "(2, 0)"),
    "channels": (lambda: [*signals(4)[0][:3], np.ones((3, 5))], "case 4 of X must have 2 channels", "got 3"),
    "none": (list, "must have at least one case", ""),
}


@pytest.mark.parametrize("name", BAD_ARRAYS)
def test_bad_arrays_are_rejected_by_case(name):
    data, *words = BAD_ARRAYS[name]
    with pytest.raises(ValueError, match=message(*words)):
        make(epochs=1).fit(data(), np.array([0, 1, 0, 1]))


def test_bad_labels_are_rejected():
    X, y = signals(4)
    for labels, words in (
        (y[:3], "a label for each of the 4 cases, got 3"),
        (np.array(["a"] * 4), "at least two classes, got 1 class, 'a'"),
        (None, "y must be given, or label must name the column"),
        (np.array([0.0, 1.0, np.nan, 1.0]), "got none for case 3"),
        (np.ones((4, 2)), "one label per case, got shape (4, 2)"),
        (np.arange(4) / 3, "is it continuous"),
    ):
        with pytest.raises(ValueError, match=message(words)):
            make(epochs=1).fit(X, labels)


def test_other_cases_than_fitted_are_rejected(fitted, framed):
    X, y = signals(4)
    with pytest.raises(ValueError, match=message("X must have 2 channels, those of fit, got 1")):
        fitted.predict(X[:, :1])
    longer = [*X[:2], np.ones((2, 15))]
    with pytest.raises(ValueError, match=message("case 3 of X must have at most 12 steps", "got 15", "length=15")):
        fitted.predict(longer)
    with pytest.raises(ValueError, match=message("columns of fit, 'up', 'down', got a new one, 'more'")):
        framed.predict(long_frame(X, y).assign(more=1.0))
    with pytest.raises(NotFittedError, match="must be fitted"):
        make().predict(X)
    with pytest.raises(ValueError, match="length must be at least 12, got 5"):
        make(length=5).fit(X, y)
    assert make(epochs=1, length=15).fit(X, y).predict(longer).shape == (3,)


def test_a_file_cut_short_is_rejected(fitted, tmp_path):
    path = tmp_path / "model.safetensors"
    fitted.save(path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match="truncated"):
        Classifier.load(path)


@pytest.fixture(scope="module")
def stacked() -> Classifier:
    X, y = signals(40)
    # one wrong label, so that a network is needed
    y[3] = 1 - y[3]
    model = make(model="auto", epochs=2).fit(X, names(y))
    assert sum(model.weights_.values()) == pytest.approx(1.0)
    # so that every member is needed
    assert model.stack_ is not None
    stack = replace(model.stack_, weights={"kernels": 0.5, "statistics": 0.25, "toa": 0.25})
    return with_fitted(model, stack=stack)


def test_the_default_weights_kernels_statistics_and_the_network(stacked, tmp_path):
    X, y = signals(seed=1)
    assert stacked.score(X, names(y)) >= 0.9
    shown = stacked.stack_.accuracies
    assert set(shown) == {"stack", "kernels", "toa", *FEATURES, "most frequent class", "1-NN"}
    assert stacked.validation_ == shown["stack"]
    stacked.save(tmp_path / "m.toa")
    loaded = Classifier.load(tmp_path / "m.toa")
    assert np.array_equal(loaded.predict_proba(X), stacked.predict_proba(X))
    assert loaded.stack_ == stacked.stack_
    alone = np.concatenate([stacked.predict_proba(X[i : i + 1]) for i in range(4)])
    assert np.allclose(alone, stacked.predict_proba(X)[:4], atol=1e-5)


def test_the_stack_classifies_cases_of_unequal_length():
    X, y = signals(24, 16)
    cut = [x[:, : 9 + i % 8] for i, x in enumerate(X)]
    model = make(model="auto", effort="least").fit(cut, y)
    assert model.score(cut, y) >= 0.9
    alone = np.concatenate([model.predict_proba([case]) for case in cut[:6]])
    assert np.allclose(alone, model.predict_proba(cut)[:6], atol=1e-5)
    with pytest.raises(ValueError, match=message("case 1 of X must have at most 16 steps", "got 17")):
        model.predict([np.ones((2, 17))])


def waves_and_events(kind: str) -> tuple[list[np.ndarray], np.ndarray]:
    """Noisy cases of 40 to 120 steps whose class is their frequency, or the place of an event within the case."""
    random = np.random.default_rng(0)
    y = np.arange(80) % 2
    cases = []
    for slow in y:
        steps = np.arange(random.integers(40, 121))
        wave = np.sin(2 * np.pi * (0.08 if slow else 0.11) * steps + random.uniform(0.0, 6.0))
        event = np.exp(-(((steps / len(steps) - (0.4 if slow else 0.6)) / 0.1) ** 2))
        cases.append((wave if kind == "frequency" else event)[None] + random.normal(0.0, 0.5, (1, len(steps))))
    return cases, y


@pytest.mark.parametrize(
    ("kind", "padded"), [("frequency", True), pytest.param("event", False, marks=pytest.mark.slow)]
)
def test_short_cases_are_padded_or_stretched_as_the_error_tells(tmp_path, kind, padded):
    cases, y = waves_and_events(kind)
    model = make(model="auto", effort="least", length=120).fit(cases[:48], y[:48])
    assert model.padded_ is padded
    assert model.score(cases[48:], y[48:]) >= 0.95
    model.save(tmp_path / "m.toa")
    some = cases[48:56]
    assert np.array_equal(Classifier.load(tmp_path / "m.toa").predict_proba(some), model.predict_proba(some))


def test_shorter_cases_than_those_of_fit_are_padded_with_a_warning():
    cases, y = waves_and_events("frequency")
    long = [case[:, :40] for case in cases]
    model = make(model="auto", effort="least").fit(long[:48], y[:48])
    short = [case[:, :30] for case in long[48:]]
    with pytest.warns(UserWarning, match=message("32 of 32 cases", "such as 30 steps (fit: 40)")):
        assert model.score(short, y[48:]) >= 0.9


def test_cases_of_another_frequency_are_refused(tmp_path):
    X, y = signals(8)
    frame = long_frame(X, names(y))
    frame["step"] = pd.Timestamp("2026-01-01") + pd.to_timedelta(frame["step"], unit="s")
    model = make(epochs=1, id="case", time="step", label="kind").fit(frame)
    model.save(tmp_path / "m.toa")
    slower = frame.assign(step=frame["step"].iloc[0] + 2 * (frame["step"] - frame["step"].iloc[0]))
    for classifier in (model, Classifier.load(tmp_path / "m.toa")):
        with pytest.raises(ValueError, match=message("X must have the frequency of fit, 's', got '2s'; resample it.")):
            classifier.predict(slower)


def test_few_times_may_have_the_frequency_of_fit_and_another():
    X, y = signals(8)
    frame = long_frame(X, names(y))
    days = pd.bdate_range("2026-01-05", periods=X.shape[2])
    frame["step"] = [days[step] for step in frame["step"]]
    model = make(epochs=1, id="case", time="step", label="kind").fit(frame)
    assert model.freq_ == "B"
    week = frame.groupby("case").head(5)
    with pytest.warns(UserWarning, match="much shorter"):
        assert len(model.predict(week)) == 8


def test_the_stack_knows_which_class_it_does_not_recognise():
    X, y = signals(48)
    y = y.copy()
    # four cases of a third class look like the first
    y[np.flatnonzero(y == 0)[:4]] = 2
    stack = make(model="auto", effort="least").fit(X, y).stack_
    assert stack is not None
    recalls = stack.recalls
    assert len(recalls) == 3
    assert recalls[2] == 0.0
    assert min(recalls[:2]) > 0.7


def test_the_page_of_a_stack_says_what_its_interval_does_not_cover(stacked, tmp_path):
    page = read_page(stacked.page(tmp_path / "cases.html", signals(4)[0]))
    shown = part_of(page, "Methods", "text")["text"]
    assert f"cases of fit; the stack: {interval_text(stacked.fitted_)}. The stack" in shown


def test_a_stack_whose_file_was_changed_is_refused(stacked, tmp_path):
    tensors, facts = stacked._saved()
    fitted = facts["fitted"]
    changes: dict[str, tuple[dict[str, torch.Tensor], dict[str, object]]] = {
        "member": ({}, {"stack": {**fitted["stack"], "weights": {"forest": 1.0}}}),
        "padded": ({}, {"padded": "no"}),
        "lengths": ({}, {"lengths": [5, 3]}),
        "frequency": ({}, {"freq": []}),
        "kernels": ({}, {"kernels": {**fitted["kernels"], "seed": 1}}),
        "kernels of a billion steps": ({}, {"kernels": {**fitted["kernels"], "shape": [2, 10**9]}}),
        "cases of a billion steps": ({}, {"length_": 10**9}),
        "no shares": ({}, {"stack": {**fitted["stack"], "weights": {"kernels": 2.0, "toa": -1.0}}}),
        "no number": ({}, {"stack": {**fitted["stack"], "factor": "x"}}),
        "not finite": ({}, {"stack": {**fitted["stack"], "factor": float("inf")}}),
        "head": ({"head.kernels.weight": tensors["head.kernels.weight"][:-1]}, {}),
        "scale": ({"head.statistics.scale": tensors["head.statistics.scale"][:-1]}, {}),
        "channels": ({}, {"columns": ["a", "b", "c"]}),
        "folds": ({}, {"folds": 10**9}),
        "patch": ({}, {"architecture_": {**fitted["architecture_"], "patch": 0}}),
        "network": ({}, {"folds": 0, "architecture_": {**fitted["architecture_"], "backbone": None}}),
    }
    for name, changed in changes.items():
        path = tmp_path / f"{name}.toa"
        save_file(path, "classifier", {**tensors, **changed[0]}, {**facts, "fitted": {**fitted, **changed[1]}})
        with pytest.raises(ValueError, match=message(str(path), "must hold a complete classifier")):
            Classifier.load(path)


def test_the_network_is_left_out_without_cases_errors_or_time(tmp_path):
    X, y = signals(8)
    many, kinds = signals(24)
    wrong = np.concatenate((1 - kinds[:1], kinds[1:]))
    few = make(model="auto").fit(X, y)
    easy = make(model="auto", epochs=1).fit(many, kinds)
    assert easy.validation_ == 1.0
    late = make(model="auto", effort="least", epochs=1).fit(many, wrong)
    for model, why in ((few, "too few cases"), (easy, "no errors to mend"), (late, "effort")):
        assert model.no_network_ == why
        assert model.architecture_["backbone"] is None
        assert set(model.weights_) <= {"kernels", *FEATURES}
        model.save(tmp_path / "m.toa")
        assert np.array_equal(Classifier.load(tmp_path / "m.toa").predict(X), model.predict(X))
        with pytest.raises(ValueError, match="the classifier must have a network"):
            model.run_sample(list(X))


def test_the_time_limit_is_without_the_compilation_and_shared_by_the_candidates(monkeypatch):
    late = [0.0]
    trained = []
    draw = kernels._draw
    train = NetworkMember.fit

    def compile_first(*arguments):
        late[0] = late[0] or 1e4
        return draw(*arguments)

    def take_most(self, training):
        trained.append(self.architecture)
        late[0] += 600.0
        return train(self, training)

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + late[0])
    monkeypatch.setattr("toa.estimators.effort.time", clock)
    monkeypatch.setattr(kernels, "_draw", compile_first)
    monkeypatch.setattr(NetworkMember, "fit", take_most)
    kernels.compile_kernels.cache_clear()
    X, y = signals(24)
    y[3] = 1 - y[3]
    with pytest.warns(UserWarning, match=message("time_limit", "1000 s left out: network 2")):
        model = make(model="auto", epochs=1, effort="thorough", time_limit=1000).fit(X, y)
    assert model.architecture_["backbone"] == "transformer"
    assert model.no_network_ is None
    assert model.truncated_ == ("network 2",)
    assert len(trained) == 1


def test_the_only_case_of_a_class_is_held_out_once():
    X, y = signals(25)
    y[24] = 2
    with pytest.warns(UserWarning, match="classes with one case: 2"):
        model = make(epochs=1).fit(X, y)
    assert model.predict_proba(X).shape == (25, 3)
    folds = network_folds(y, model.validation_share, model.seed)
    assert folds is not None
    assert set(folds) == set(range(5))
    assert model.fitted_.require_network().folds == 5


@pytest.mark.slow
def test_no_model_that_validates_the_only_case_of_a_class_has_seen_its_class():
    X, y = signals(25)
    y[24] = 2
    alone = make(epochs=10, model="toa").fit(np.concatenate((X[:24], X[24:] + 9.0)), y)
    assert alone.validation_ is not None
    assert alone.validation_ <= 24 / 25


@pytest.fixture
def stopped_at_the_second(monkeypatch):
    """The second network of a fit is stopped at once; a list of all that were begun."""
    begun = []
    train = NetworkMember.fit

    def stop(self, training):
        begun.append(self.architecture)
        if len(begun) == 2:
            raise TrainingStopped("stopped")
        return train(self, training)

    monkeypatch.setattr(NetworkMember, "fit", stop)
    return begun


def test_a_stopped_fit_hands_over_its_best_classifier_and_changes_nothing(stopped_at_the_second):
    X, y = signals(24)
    y[3] = 1 - y[3]
    model = make(model="auto", epochs=2, effort="thorough")
    with pytest.raises(FitStopped, match="stopped") as stop:
        model.fit(X, y)
    with pytest.raises(NotFittedError):
        model.predict(X)
    best = stop.value.fitted
    assert best is not None
    assert best.architecture == stopped_at_the_second[0]
    assert best.stack is not None
    assert "toa" in best.stack.accuracies
    assert best.probabilities(read_cases(X)).shape == (24, 2)


def test_a_stopped_or_failed_fit_leaves_a_fitted_classifier_as_it_was(fitted, stopped_at_the_second):
    X, y = signals(24)
    y[3] = 1 - y[3]
    model = with_fitted(fitted).set_params(model="auto", epochs=1, effort="thorough")
    with pytest.raises(FitStopped):
        model.fit(X, y)
    assert model.classes_.tolist() == fitted.classes_.tolist()
    with pytest.raises(ValueError, match="at least two classes"):
        model.fit(X, np.zeros(24))
    assert np.array_equal(model.predict_proba(X), fitted.predict_proba(X))


def test_wrong_models_settings_and_limits_are_rejected_before_anything_is_fitted(monkeypatch):
    fitted: list[object] = []
    monkeypatch.setattr("toa.estimators.classifier.fit_classifier", lambda *_: fitted.append(1))
    X, y = signals(4)
    with pytest.raises(ValueError, match=message("unknown model 'rocket'; known: auto, toa")):
        make(model="rocket").fit(X, y)
    for options, words in (
        ({"time_limit": 0}, "time_limit must be positive, got 0"),
        ({"time_limit": "5"}, "time_limit must be positive, got '5'"),
        ({"learning_rate": -1.0}, "learning_rate must be positive, got -1.0"),
        ({"settings": {"d_modl": 3}}, "unknown setting 'd_modl'"),
        ({"settings": {"embed_dim": 10, "num_heads": 4}}, "embed_dim must be a multiple of num_heads=4, got 10"),
        ({"epochs": 0}, "epochs must be an integer of at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, got 0"),
        ({"backbone": "lstm"}, "unknown backbone 'lstm'"),
        ({"attention": "none"}, "unknown attention 'none'"),
        ({"seed": -1}, "seed must be"),
    ):
        with pytest.raises(ValueError, match=message(words)):
            make(model="auto", **options).fit(X, y)
    assert fitted == []
