import json

import numpy as np
import pytest
import torch

from tests.data.files import values
from tests.support import message
from toa.data import StandardScaler

TRAIN = values() * [1.0, 5.0, 0.1] + [0.0, 100.0, -3.0]


def test_statistics_are_mean_and_population_deviation():
    scaler = StandardScaler.fit(TRAIN)
    np.testing.assert_allclose(scaler.mean, TRAIN.sum(0) / 120, rtol=1e-12)
    np.testing.assert_allclose(scaler.std, np.sqrt(((TRAIN - TRAIN.mean(0)) ** 2).sum(0) / 120), rtol=1e-12)
    z = scaler.transform(TRAIN)
    np.testing.assert_allclose(z.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(z.std(0), 1, rtol=1e-12)


@pytest.mark.parametrize("shape", [(3,), (5, 3), (2, 5, 3)])
def test_inverse_undoes_transform_on_arrays_and_tensors(shape):
    scaler = StandardScaler.fit(TRAIN)
    x = np.random.default_rng(1).normal(size=shape)
    np.testing.assert_allclose(scaler.inverse(scaler.transform(x)), x, rtol=1e-12)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-4)):
        t = torch.as_tensor(x, dtype=dtype)
        z = scaler.transform(t)
        assert z.dtype == dtype
        torch.testing.assert_close(z.double(), torch.as_tensor(scaler.transform(x)), rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(scaler.inverse(z), t, rtol=tolerance, atol=tolerance)


def test_the_state_survives_tensors_and_json_to_the_last_bit():
    scaler = StandardScaler.fit(TRAIN)
    lists = {name: tensor.tolist() for name, tensor in scaler.state().items()}
    for state in (scaler.state(), json.loads(json.dumps(lists))):
        again = StandardScaler.from_state(state)
        np.testing.assert_array_equal(again.mean, scaler.mean)
        np.testing.assert_array_equal(again.std, scaler.std)
    assert {name: tensor.dtype for name, tensor in scaler.state().items()} == {
        "mean": torch.float64,
        "std": torch.float64,
    }


@pytest.mark.parametrize("level", [0.0, 0.1, 1e9 + 0.1])
def test_a_constant_column_is_rejected_by_name_and_kept_when_asked(level):
    train = TRAIN.copy()
    train[:, 1] = level
    with pytest.raises(ValueError, match=message("Small", "120 train rows", "1 constant: 'b'", "allow_constant=True")):
        StandardScaler.fit(train, columns=("a", "b", "c"), name="Small")
    scaler = StandardScaler.fit(train, allow_constant=True)
    assert scaler.std[1] == 1
    np.testing.assert_allclose(scaler.transform(train)[:, 1], 0, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda s: s.transform(np.zeros((4, 2))), ("3 channels on the last axis", "(4, 2)")),
        (lambda s: s.inverse(torch.zeros(3, 4)), ("3 channels on the last axis", "(3, 4)")),
        (lambda s: s.transform(torch.zeros(3, dtype=torch.int64)), ("floating point", "torch.int64", ".float()")),
        (lambda s: s.fit(np.zeros((0, 3))), ("T >= 1", "(0, 3)")),
        (lambda s: s.from_state({"mean": [0.0]}), ("mean and std", "got mean")),
        (lambda s: s.from_state({"mean": [0.0], "std": [0.0]}), ("std positive",)),
        (lambda s: s.from_state({"mean": [0.0], "std": [1.0, 1.0]}), ("one shape (C,)", "(1,) and (2,)")),
    ],
)
def test_values_that_do_not_fit_are_rejected(call, parts):
    with pytest.raises(ValueError, match=message(*parts)):
        call(StandardScaler.fit(TRAIN))
