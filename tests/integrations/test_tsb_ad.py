import numpy as np
import pytest

from tests.support import message
from toa.integrations.tsb_ad import TSBDetector


def series(rows: int = 300) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    values = np.stack([np.sin(np.arange(rows) / 4), np.cos(np.arange(rows) / 6)], 1)
    values += 0.05 * rng.standard_normal(values.shape)
    labels = np.zeros(rows, dtype=int)
    labels[200:206] = 1
    values[200:206, 1] += 4.0
    return values, labels


@pytest.mark.parametrize("channels", [1, 2])
def test_both_tracks_of_tsb_ad_are_served(channels):
    values, labels = series()
    values = values[:, -channels:]
    # unsupervised: the scores of the rows of fit
    detector = TSBDetector(contamination=0.02, model="mahalanobis", window=20).fit(values)
    assert detector.decision_scores_.shape == (300,)
    assert labels[detector.decision_scores_.argmax()] == 1
    assert detector.labels_.sum() == 6
    # semi-supervised: those of other rows
    detector = TSBDetector(effort="least", window=20).fit(values[:150])
    score = detector.decision_function(values)
    assert 190 <= score.argmax() <= 216
    assert (detector.predict(values) == (score > detector.threshold_)).all()


def test_wrong_input_is_refused():
    with pytest.raises(ValueError, match="must be fitted before it scores rows"):
        TSBDetector().decision_function(series()[0])
    with pytest.raises(ValueError, match=message("X must have the shape (T, C), got (2, 3, 4)")):
        TSBDetector().fit(np.zeros((2, 3, 4)))
