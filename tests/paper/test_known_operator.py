"""Case C as rows to forecast: the operator is that of the theory, and knowing it helps."""

import numpy as np
import pytest

from tests.support import message
from toa_paper.known_operator import Comparison, FactorTable, compare, linear_errors, network_config
from toa_paper.theory.cases import latent_factors


@pytest.mark.parametrize("channels", [8, 64])
def test_the_operator_is_that_of_case_c_and_keeps_the_signal(channels):
    table = FactorTable(channels=channels, noise=1e-9, length=600)
    operator = table.operator()
    case = latent_factors(channels=channels, factors=table.factors, seed=table.seed)
    np.testing.assert_array_equal(operator, case.operators[0].numpy())
    # without noise the rows lie in the space of the factors
    np.testing.assert_allclose(table.rows() @ operator.T, table.rows(), atol=1e-6)
    assert operator.min() < -0.05


def test_signal_and_noise_have_the_stated_sizes():
    table = FactorTable(channels=200, length=3_000)
    rows = table.rows()
    outside = rows - rows @ table.operator().T
    assert outside.std() == pytest.approx(table.noise, rel=0.02)
    signal = rows.var(0) - table.noise**2
    assert signal.mean() == pytest.approx(1.0, abs=0.3)


def test_the_same_seed_gives_the_same_rows_and_another_seed_others():
    np.testing.assert_array_equal(FactorTable().rows(), FactorTable().rows())
    assert not np.array_equal(FactorTable().rows(), FactorTable(seed=1).rows())


def test_the_known_operator_is_better_than_own_lags_and_all_channels_lie_between():
    errors = linear_errors(FactorTable())
    known = errors["known operator"]
    assert known < errors["all channels"] < errors["own lags"]
    comparison = Comparison(errors=errors)
    assert comparison.gap_closed("own lags") == 0.0
    assert comparison.gap_closed("known operator") == 1.0


def test_networks_read_the_same_table(tmp_path):
    found = compare(FactorTable(channels=6, length=600), tmp_path, epochs=1, device="cpu")
    assert {"toa-gated", "softmax"} <= set(found.errors)
    assert all(0.5 < error < 3.0 for error in found.errors.values())
    again = compare(FactorTable(channels=6, length=600), tmp_path, epochs=1, device="cpu")
    assert again.errors == found.errors


def test_both_attentions_have_the_same_settings(tmp_path):
    file = FactorTable(channels=6, length=600).write(tmp_path / "table.csv")
    gated, softmax = (network_config(file, name, 1) for name in ("toa-gated", "softmax"))
    assert gated.model == softmax.model
    assert gated.training == softmax.training
    assert (gated.lookback, gated.horizon) == (48, 8)


def test_a_table_that_is_too_short_is_refused():
    with pytest.raises(ValueError, match=message("length must be at least 560, got 100")):
        FactorTable(length=100)
