"""What is measured of a layer when training diverges."""

from types import SimpleNamespace

import pytest
import torch

from tests.support import load_script
from toa.nn import intercepted
from toa.nn.attention import SoftmaxAttention
from toa.nn.operator_attention import TemporalOperatorAttention


def measure(layer, tokens):
    script = load_script("benchmarks/divergence.py")
    rows = []

    def keep(name, query, attended):
        rows.append(script.measure_layer(layer, query, attended))
        return attended

    with torch.no_grad(), intercepted(torch.nn.Sequential(layer), keep):
        layer(tokens, tokens, tokens)
    return rows[0]


def test_equal_keys_give_equal_weights_and_an_entropy_of_one():
    layer = SoftmaxAttention(8, 2, 5)
    found = measure(layer, torch.ones(3, 5, 8))
    assert found["entropy"] == pytest.approx(1.0, abs=1e-5)
    assert found["mean key"] == pytest.approx(1.0, abs=1e-5)
    assert found["offset"] == 0.0


def test_an_operator_whose_rows_add_up_raises_the_scores_of_equal_keys_by_the_number_of_keys():
    torch.manual_seed(0)
    layer = TemporalOperatorAttention(8, 2, 5, "softmax", operator_std=0.0).eval()
    tokens = torch.ones(3, 5, 8)
    before = measure(layer, tokens)
    with torch.no_grad():
        dict(layer.named_parameters())["s1.offset"].fill_(0.1)
    after = measure(layer, tokens)
    assert after["offset"] == pytest.approx(5 * 0.1, rel=1e-5)
    assert after["score"] == pytest.approx((1 + 5 * 0.1) * before["score"], rel=1e-4)


def test_the_arm_with_a_rate_per_column_has_a_lower_rate_for_more_columns(monkeypatch):
    script = load_script("benchmarks/divergence.py")
    rates: list[float] = []

    def stop(*names, changes, **options):
        rates.extend(float(one.split("=")[1]) for one in changes if one.startswith("training.operator_rate"))
        raise KeyboardInterrupt

    monkeypatch.setattr(script, "resolve", stop)
    args = SimpleNamespace(width=8, layers=1, batch=2, rate=1e-3, data_dir=None, steps=1, every=1)
    for columns in (20, 170):
        with pytest.raises(KeyboardInterrupt):
            script.train_arm("toa-softmax, operator rate 10 / N", columns, args)
    assert rates == [10 / 20, 10 / 170]
