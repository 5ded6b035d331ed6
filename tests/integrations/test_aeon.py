from typing import Any

import numpy as np
import pytest
from aeon.testing.estimator_checking import parametrize_with_checks as aeon_checks
from sklearn.utils.estimator_checks import parametrize_with_checks as sklearn_checks

from toa.estimators import AnomalyDetector, Classifier
from toa.integrations.aeon import TOAClassifier, TOADetector

SIZES = {"embed_dim": 8, "num_heads": 2, "num_layers": 1, "ff_dim": 8}

# scikit-learn's estimators see rows of features that have no order; ours see series
SHORTER = "a case may be shorter than those of fit: there is no fixed number of features"
ROWS = "rows of a series are not samples on their own: each is scored by those around it"
WORDING = "refused, but in this library's words, which name the case or row"
UNFIT: dict[str, dict[str, str]] = {
    "Classifier": {
        "check_n_features_in": SHORTER,
        "check_n_features_in_after_fitting": SHORTER,
        "check_dtype_object": f"{WORDING}: ValueError, not TypeError",
        "check_estimators_empty_data_messages": WORDING,
    },
    "AnomalyDetector": {
        "check_n_features_in": "columns are held to by name, in columns_",
        "check_n_features_in_after_fitting": "columns are held to by name, in columns_",
        "check_dtype_object": "numbers written as text are refused",
        "check_estimators_empty_data_messages": WORDING,
        "check_estimators_nan_inf": f"{WORDING}: NaN is a missing value, and `missing` says how to fill it",
        "check_fit2d_1sample": f"{WORDING}: a series must have two windows",
        "check_fit_score_takes_y": "labels of rows are 0 or 1; the check has a third",
        "check_fit1d": "an array with one axis is a series with one channel",
        "check_fit2d_predict1d": "an array with one axis is a series with one channel, refused by the name of a column",
        "check_methods_sample_order_invariance": ROWS,
        "check_methods_subset_invariance": ROWS,
    },
}


# one check fits as it is told and wants an accuracy
OURS = [
    Classifier(epochs=30, learning_rate=1e-2, settings=SIZES, validation_share=0.0),
    AnomalyDetector(window=4, epochs=1, settings=SIZES),
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@aeon_checks([TOAClassifier, TOADetector])
def test_aeon_has_no_objection(check) -> None:
    check()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@sklearn_checks(OURS, expected_failed_checks=lambda estimator: UNFIT[type(estimator).__name__])
def test_scikit_learn_has_no_objection_where_its_checks_apply(estimator: Any, check: Any) -> None:
    check(estimator)


def test_every_check_that_cannot_apply_has_its_reason() -> None:
    assert all(reason for reasons in UNFIT.values() for reason in reasons.values())


def test_the_classifier_says_what_ours_says() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(8, 2, 6)), np.array(["a", "b"] * 4)
    theirs = TOAClassifier(n_epochs=1, settings=SIZES, random_state=3).fit(X, y)
    ours = Classifier(epochs=1, settings=SIZES, seed=3).fit(X, y)
    assert np.array_equal(theirs.predict_proba(X), ours.predict_proba(X))
    assert (theirs.predict(X) == ours.predict(X)).all()
    assert 0.0 <= theirs.score(X, y) <= 1.0


def test_collections_of_unequal_length_and_with_gaps_are_taken() -> None:
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(2, 5 + i % 3)) for i in range(6)]
    X[0][1, 2] = np.nan
    model = TOAClassifier(n_epochs=1, settings=SIZES).fit(X, np.array([0, 1] * 3))
    assert model.predict(X).shape == (6,)


def test_the_detector_gives_scores_along_either_axis() -> None:
    series = np.random.default_rng(0).normal(size=(40, 2))
    theirs = TOADetector(window_size=6, n_epochs=1, settings=SIZES).fit(series, axis=0)
    ours = AnomalyDetector(window=6, epochs=1, settings=SIZES).fit(series)
    assert np.array_equal(theirs.predict(series, axis=0), ours.scores(series))
    assert np.array_equal(theirs.predict(series.T, axis=1), ours.scores(series))


@pytest.mark.parametrize("state", [None, np.random.RandomState(1)], ids=["none", "generator"])
def test_random_states_of_scikit_learn_are_taken(state) -> None:
    X = np.random.default_rng(0).normal(size=(4, 1, 5))
    model = TOAClassifier(n_epochs=1, settings=SIZES, random_state=state).fit(X, np.array([0, 1, 0, 1]))
    assert model.random_state is state
