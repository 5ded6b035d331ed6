"""Models that an earlier version of toa saved must load and give the results that they gave then."""

from pathlib import Path

import numpy as np
import pytest

from tests.estimators.signals import long, wide
from tests.estimators.test_classifier import long_frame, names, signals
from tests.estimators.test_detector import machines, spiked
from tests.estimators.test_forecaster import future
from toa.estimators import AnomalyDetector, Classifier, Forecaster
from toa.estimators.base import load_estimator

STORED = Path(__file__).with_name("stored")


def test_a_stored_forecaster_gives_its_quantiles_and_intervals() -> None:
    forecast = Forecaster.load(STORED / "forecaster.toa", device="cpu").predict(wide())
    assert forecast["load"].iloc[[0, 5]].tolist() == pytest.approx([100.03365958, 104.60562362], rel=1e-4)
    assert forecast["load_q0.1"].iloc[0] == pytest.approx(98.47538069, rel=1e-4)
    assert forecast["heat_upper"].iloc[-1] == pytest.approx(-3.89529982, rel=1e-4)


def test_a_stored_forecaster_uses_its_covariates() -> None:
    model = Forecaster.load(STORED / "forecaster-covariates.toa", device="cpu")
    forecast = model.predict(long(), future=future(promo=1.0))
    assert forecast["y"].iloc[[0, 6]].tolist() == pytest.approx([1.81315582, 14.51997805], rel=1e-4)
    assert forecast["y_lower"].iloc[-1] == pytest.approx(16.07159151, rel=1e-4)


def test_a_stored_detector_gives_its_scores_and_thresholds() -> None:
    model = AnomalyDetector.load(STORED / "detector.toa", device="cpu")
    assert model.scores(spiked()[0])[50] == pytest.approx(22.9510603, rel=1e-4)
    assert (model.threshold_, model.stream_threshold_) == (0.1298786358085143, 0.31385058045387265)
    by_id = AnomalyDetector.load(STORED / "detector-ids.toa", device="cpu").scores(machines(40))
    assert by_id["score"].iloc[[0, 79]].tolist() == pytest.approx([0.53131992, 0.65985751], rel=1e-4)


def test_a_stored_classifier_gives_its_probabilities() -> None:
    X, y = signals(seed=1)
    proba = Classifier.load(STORED / "classifier.toa", device="cpu").predict_proba(X)
    np.testing.assert_allclose(proba[:2, 0], [0.38195861, 0.51928821], rtol=1e-4)
    framed = Classifier.load(STORED / "classifier-frame.toa", device="cpu")
    by_id = framed.predict_proba(long_frame(X, names(y)))
    assert by_id["quick"].iloc[:2].tolist() == pytest.approx([0.59072419, 0.57475418], rel=1e-4)


@pytest.mark.parametrize("path", sorted(STORED.glob("*.toa")), ids=lambda path: path.stem)
def test_the_kind_of_a_stored_model_is_found(path) -> None:
    model = load_estimator(path, device="cpu")
    assert type(model).__name__.lower().endswith(path.stem.split("-")[0])
