from typing import Any

import numpy as np
import pytest
from aeon.datasets import load_classification
from aeon.testing.estimator_checking import parametrize_with_checks as aeon_checks
from sklearn.base import clone
from sklearn.metrics import roc_auc_score
from sklearn.utils.estimator_checks import parametrize_with_checks as sklearn_checks

from toa.estimators import AnomalyDetector, Classifier
from toa.integrations.aeon import TOAClassifier, TOADetector

SIZES = {"embed_dim": 8, "num_heads": 2, "num_layers": 1, "ff_dim": 8}

# scikit-learn's estimators take samples of unordered features; ours take series
SHORTER = "a case may be shorter than those of fit: there is no fixed number of features"
STEPS = "time steps are not independent samples: each is scored by those around it"
WORDING = "raises, but with this library's message, which names the case or step"
UNFIT: dict[str, dict[str, str]] = {
    "Classifier": {
        "check_n_features_in": SHORTER,
        "check_n_features_in_after_fitting": SHORTER,
        "check_dtype_object": f"{WORDING}: ValueError, not TypeError",
        "check_estimators_empty_data_messages": WORDING,
    },
    "AnomalyDetector": {
        "check_n_features_in": "columns are matched by name, in columns_",
        "check_n_features_in_after_fitting": "columns are matched by name, in columns_",
        "check_dtype_object": "numbers written as text raise",
        "check_estimators_empty_data_messages": WORDING,
        "check_fit2d_1sample": f"{WORDING}: a series must have two windows",
        "check_fit_score_takes_y": "labels of steps are 0 or 1; the check has a third",
        "check_fit1d": "an array with one axis is a series with one channel",
        "check_fit2d_predict1d": "an array with one axis is a series with one channel; the error names its column",
        "check_methods_sample_order_invariance": STEPS,
        "check_methods_subset_invariance": STEPS,
    },
}


# one of the checks requires a minimum accuracy
OURS = [
    Classifier(model="toa", epochs=30, learning_rate=1e-2, settings=SIZES, validation_share=0.0),
    AnomalyDetector(window=4, epochs=1, settings=SIZES),
]


KINDS: dict[Any, Any] = {TOAClassifier: Classifier, TOADetector: AnomalyDetector}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@aeon_checks(list(KINDS))
def test_checks_of_aeon_pass(check) -> None:
    check()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@sklearn_checks(OURS, expected_failed_checks=lambda estimator: UNFIT[type(estimator).__name__])
def test_checks_of_scikit_learn_pass_where_they_apply(estimator: object, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize(
    ("every", "epochs", "accuracy"), [(4, 1, 0.0), pytest.param(1, 5, 0.75, marks=pytest.mark.slow)]
)
def test_the_classifier_learns_a_real_problem_and_equals_the_estimator_of_toa(every, epochs, accuracy) -> None:
    # four classes in equal parts; the files come with aeon
    (x, y), (x_test, y_test) = (load_classification("BasicMotions", split=split) for split in ("train", "test"))
    x, y, x_test, y_test = x[::every], y[::every], x_test[::every], y_test[::every]
    options: dict[str, Any] = {"settings": SIZES, "learning_rate": 1e-2, "batch_size": 8}
    theirs = TOAClassifier(n_epochs=epochs, random_state=3, **options).fit(x, y)
    assert theirs.score(x_test, y_test) >= accuracy
    ours = Classifier(model="toa", epochs=epochs, seed=3, missing="interpolate", **options).fit(x, y)
    assert np.array_equal(theirs.predict_proba(x_test), ours.predict_proba(x_test))
    assert np.array_equal(theirs.predict(x_test), ours.predict(x_test))
    assert np.array_equal(theirs.classes_, ours.classes_)


def test_collections_of_unequal_length_with_gaps_are_interpolated() -> None:
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(2, 5 + i % 3)) for i in range(6)]
    y = np.array([0, 1] * 3)
    filled = [case.copy() for case in x]
    filled[0][1, 2] = (x[0][1, 1] + x[0][1, 3]) / 2
    x[0][1, 2] = np.nan
    found, expected = (
        TOAClassifier(n_epochs=1, settings=SIZES).fit(data, y).predict_proba(data) for data in (x, filled)
    )
    assert np.allclose(found, expected, atol=1e-6)


def test_the_detector_finds_an_anomaly_and_scores_along_either_axis() -> None:
    steps = np.arange(240)
    series = np.stack([np.sin(steps / 3), np.cos(steps / 3)], 1) + np.random.default_rng(0).normal(0, 0.05, (240, 2))
    broken = series.copy()
    labels = np.zeros(240, dtype=int)
    broken[100:110] = series[100:110, ::-1] * 1.5
    labels[100:110] = 1
    options: dict[str, Any] = {"settings": SIZES, "learning_rate": 1e-2}
    theirs = TOADetector(window_size=16, n_epochs=4, random_state=3, **options).fit(series, axis=0)
    scores = theirs.predict(broken, axis=0)
    assert roc_auc_score(labels, scores) > 0.9
    ours = AnomalyDetector(window=16, epochs=4, seed=3, **options).fit(series)
    assert np.array_equal(scores, ours.scores(broken))
    assert np.array_equal(theirs.predict(broken.T, axis=1), scores)


@pytest.mark.parametrize("kind", [TOAClassifier, TOADetector])
def test_parameters_are_stored_unchanged_and_cloned(kind) -> None:
    changed = {"settings": SIZES, "n_epochs": 3, "random_state": np.random.RandomState(1), "verbose": True}
    estimator = kind(**changed)
    assert all(estimator.get_params()[name] is value for name, value in changed.items())
    copied = clone(estimator)
    assert copied.get_params().keys() == kind().get_params().keys()
    assert (copied.n_epochs, copied.settings, copied.verbose) == (3, SIZES, True)
    # every argument of ours that aeon's estimator does not rename or fix can be set under its own name
    fitted = KINDS[kind]
    renamed = {"n_epochs": "epochs", "verbose": "progress", "window_size": "window", "random_state": "seed"}
    assert {renamed.get(name, name) for name in kind().get_params()} <= set(fitted().get_params())


@pytest.mark.parametrize("state", [None, np.random.RandomState(1)], ids=["none", "generator"])
def test_random_states_of_scikit_learn_are_accepted(state) -> None:
    x = np.random.default_rng(0).normal(size=(4, 1, 5))
    model = TOAClassifier(n_epochs=1, settings=SIZES, random_state=state).fit(x, np.array([0, 1, 0, 1]))
    assert model.random_state is state
    assert 0 <= model.estimator_.seed < 2**31
