"""What estimators refuse before training, because the answer would be wrong without a sign of it."""

import numpy as np
import pandas as pd
import pytest

from tests.estimators.signals import wide
from tests.support import message
from toa.estimators import AnomalyDetector, Classifier, Forecaster


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
