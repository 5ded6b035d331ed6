from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

import toa
from tests.support import message
from toa.data.frequency import describe_steps
from toa.estimators.importance import Importance, integrated_gradients
from toa.report.operators import describe_tokens

polars = pytest.importorskip("polars")

ROWS = 120


def table(**more: object) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    hours = pd.date_range("2026-01-01", periods=ROWS, freq="h")
    wave = np.sin(2 * np.pi * np.arange(ROWS) / 12) + 0.1 * rng.normal(size=ROWS)
    return pd.DataFrame({"time": hours, "a": wave, "b": rng.normal(size=ROWS).cumsum()}).assign(**more)


def assert_complete(importance: Importance, tolerance: float = 1e-4) -> None:
    total = importance.shares.sum((1, 2)) + importance.ahead.sum(1)
    size = np.abs(importance.shares).sum((1, 2)) + np.abs(importance.ahead).sum(1)
    np.testing.assert_array_less(np.abs(total - importance.change), tolerance * size)
    assert (size > 0).all()
    np.testing.assert_allclose(sum(importance.by_column().values()), 1.0)


def test_parts_of_a_known_function_are_exact():
    x = torch.tensor([[[2.0], [3.0]]]).double()
    base = torch.tensor([[[0.0], [1.0]]]).double()
    (shares,), change = integrated_gradients(lambda rows: rows[:, 0] * rows[:, 1] ** 2, [x], [base])
    # of x y² on the line from (0, 1) to (2, 3): 2 * integral (1 + 2t)² and 2 * integral 2 * 2t (1 + 2t)
    np.testing.assert_allclose(shares[0, :, 0], [26 / 3, 28 / 3])
    np.testing.assert_allclose(change, [18.0])


@pytest.mark.parametrize(
    ("backbone", "attention"),
    [("patchtst", "toa-softmax"), ("patchtst", "toa-relu"), ("itransformer", "toa-gated"), ("dlinear", None)],
)
def test_parts_of_a_forecast_sum_to_its_change(backbone, attention):
    model = toa.Forecaster(
        horizon=4, lookback=24, model="toa", backbone=backbone, attention=attention, epochs=1, device="cpu"
    ).fit(table())
    for index in (None, 7):
        importance = model.explain(table(), index)
        assert_complete(importance)
        assert (importance.outputs, importance.columns, importance.shares.shape) == (("a", "b"), ("a", "b"), (2, 24, 2))
    assert list(importance.blocks(2)) == ["lags 1 to 12, up to 12 hours", "lags 13 to 24, up to 1 day"]
    if backbone == "dlinear":
        # each column is forecast from its own past
        assert not np.abs(importance.shares[0, :, 1]).any()
    # the change is that of the forecast in the units of the data
    flat = table()[:24].assign(**table()[["a", "b"]][:24].mean().to_dict())
    change = (model.predict(table()[:24]) - model.predict(flat))[["a", "b"]].mean()
    np.testing.assert_allclose(model.explain(table()[:28], 0).change, change, atol=2e-4)
    same = model.explain(polars.from_pandas(table()), 7)
    np.testing.assert_array_equal(same.shares, model.explain(table(), 7).shares)


def test_covariates_have_a_share_and_what_is_known_in_advance_has_no_lag():
    promotion = (np.arange(ROWS) % 5 < 2).astype(float)
    frame = table(promotion=promotion, b=10 * promotion)
    model = toa.Forecaster(
        horizon=4,
        lookback=24,
        model="toa",
        epochs=4,
        device="cpu",
        learning_rate=0.02,
        covariates=["promotion"],
        past_covariates=["a"],
        calendar=True,
        quantiles=(0.1,),
    ).fit(frame)
    importance = model.explain(frame)
    assert_complete(importance, 1e-2)
    assert importance.columns == ("b", "calendar", "promotion", "a")
    ahead = dict(zip(importance.columns, np.abs(importance.ahead[0]), strict=True))
    assert ahead["promotion"] > 0
    assert ahead["a"] == ahead["b"] == 0
    parts = importance.frame().set_index(["output", "lag", "column"])["share"]
    assert parts["b", 0, "promotion"] == importance.ahead[0, 2]
    assert parts["b", 1, "b"] == importance.shares[0, -1, 0]


def test_the_window_with_the_largest_error_is_explained_by_its_channel():
    detector = toa.AnomalyDetector(model="toa", window=12, epochs=2, device="cpu").fit(table())
    rows = table()
    rows.loc[60:62, "a"] += 30.0
    importance = detector.explain(rows)
    assert_complete(importance)
    assert next(iter(importance.by_column())) == "a"
    assert "that ends at 2026-01-03 1" in importance.what
    assert_complete(detector.explain(rows, 3))


def test_parts_of_a_class_sum_to_its_change_also_for_padded_cases():
    rng = np.random.default_rng(0)
    kind = np.arange(12) % 2
    cases = [rng.normal(size=(2, 20 + 3 * label)) + 3 * np.array([[label], [0]]) for label in kind]
    model = toa.Classifier(model="toa", epochs=3, device="cpu").fit(cases, kind)
    importance = model.explain(cases, 2)
    assert_complete(importance)
    assert importance.shares.shape == (1, 20, 2)
    assert importance.outputs[0] in ("0", "1")


def test_cases_without_their_id_are_refused_as_in_predict():
    rows = pd.DataFrame({"case": np.repeat(np.arange(8), 20), "x": np.random.default_rng(0).normal(size=160)})
    model = toa.Classifier(model="toa", epochs=1, device="cpu", id="case", label="kind")
    model.fit(rows.assign(kind=rows["case"] % 2))
    for call in (model.predict, model.explain, partial(model.explain, index=500)):
        with pytest.raises(ValueError, match=message("must have a column 'case'")):
            call(rows.drop(columns="case"))
    np.testing.assert_array_equal(model.explain(polars.from_pandas(rows), 3).shares, model.explain(rows, 3).shares)


def test_a_model_without_a_network_is_refused():
    model = toa.Forecaster(horizon=2, effort="least", device="cpu").fit(table())
    with pytest.raises(ValueError, match=message("the forecaster must have a network, got one without")):
        model.explain(table())


def test_a_token_is_described_in_time():
    small = {"horizon": 4, "lookback": 24, "model": "toa", "epochs": 1, "device": "cpu"}
    patches = toa.Forecaster(**small, settings={"patch_len": 6, "stride": 3}).fit(table())
    assert describe_tokens(patches.model_, "h") == (
        "A token is 6 rows of one column, 6 hours; the next begins 3 rows later."
    )
    columns = toa.Forecaster(**small, backbone="itransformer").fit(table())
    assert describe_tokens(columns.model_, "h") == "A token is one column with its whole look-back."
    assert describe_steps("15min", 6) == "90 minutes"
    assert describe_steps("MS", 3) == "3 steps of MS"


def test_the_shares_of_an_output_of_zeros_are_zero():
    importance = Importance(
        what="", outputs=("y",), columns=("a",), shares=np.zeros((1, 3, 1)), ahead=np.zeros((1, 1)), change=np.zeros(1)
    )
    assert importance.by_column() == {"a": 0.0}
    assert list(replace(importance, freq=None).blocks(9)) == ["lag 1", "lag 2", "lag 3"]
