from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

from tests.support import message
from toa.nn import SequenceOperator, build_attention
from toa.training import TrainingConfig
from toa.training.optimization import OPTIMIZERS, make_optimizer, set_rates


def rates(schedule, epochs: int = 10, steps: int = 5, **options) -> list[float]:
    config = TrainingConfig(epochs=epochs, learning_rate=1.0, schedule=schedule, **options)
    return [config.rate(step, steps) for step in range(epochs * steps)]


def test_type1_halves_after_the_second_epoch():
    assert rates("type1", steps=1)[:5] == [1.0, 1.0, 0.5, 0.25, 0.125]


def test_type3_shrinks_after_the_fourth_epoch():
    assert rates("type3", steps=1)[:6] == pytest.approx([1.0, 1.0, 1.0, 1.0, 0.9, 0.81])


def test_epoch_schedules_keep_their_rate_within_an_epoch():
    for schedule in ("type1", "type3", "cosine", "constant"):
        found = rates(schedule)
        assert all(len(set(found[i : i + 5])) == 1 for i in range(0, 50, 5))


def test_cosine_falls_from_epoch_to_epoch():
    found = rates("cosine", steps=1)
    assert found[0] == 1.0
    assert found[5] == pytest.approx(0.5)
    assert all(a > b for a, b in pairwise(found))


@pytest.mark.parametrize("pct_start", [0.2, 0.3, 0.4])
def test_onecycle_matches_torch(pct_start):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    torchs = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=50, pct_start=pct_start)
    expected = []
    for _ in range(50):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        torchs.step() if len(expected) < 50 else None
    assert rates("onecycle", pct_start=pct_start) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("epochs", "pct_start"), [(10, 0.1), (2, 0.5)])
def test_onecycle_of_few_steps_begins_at_its_highest_rate(epochs, pct_start):
    config = TrainingConfig(learning_rate=1.0, epochs=epochs, schedule="onecycle", pct_start=pct_start)
    found = [config.rate(step, 1) for step in range(epochs)]
    assert found[0] == 1.0
    assert all(a > b for a, b in pairwise(found))


def test_warmup_cosine_rises_then_falls_to_zero():
    found = rates("warmup-cosine", epochs=1, steps=100, warmup=10)
    assert found[0] == pytest.approx(0.1)
    assert found[9] == found[10] == 1.0
    assert all(a >= b for a, b in pairwise(found[10:]))
    assert found[-1] < 1e-3


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_gets_its_settings_and_rate(name):
    config = TrainingConfig(optimizer=name, betas=(0.8, 0.9), weight_decay=0.1)
    optimizer = make_optimizer(nn.Linear(2, 2), config, torch.device("cpu"))
    assert type(optimizer) is OPTIMIZERS[name]
    set_rates(optimizer, replace(config, learning_rate=0.25), 0, 1)
    (group,) = optimizer.param_groups
    assert (group["lr"], group["betas"], group["weight_decay"]) == (0.25, (0.8, 0.9), 0.1)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"epochs": 0}, ("epochs must be at least 1, got 0",)),
        ({"learning_rate": 0.0}, ("learning_rate must be positive, got 0.0",)),
        ({"learning_rate": float("nan")}, ("learning_rate must be positive, got nan",)),
        ({"schedule": "linear"}, ("unknown schedule 'linear'", "type1", "onecycle")),
        ({"optimizer": "sgd"}, ("unknown optimizer 'sgd'", "adamw, adam, radam")),
        ({"clip_norm": -1.0}, ("clip_norm must be positive, got -1.0",)),
        ({"accumulate": 0}, ("accumulate must be at least 1, got 0",)),
        ({"patience": 0}, ("patience must be at least 1, got 0",)),
        ({"pct_start": 1.0}, ("pct_start must lie in (0, 1), got 1.0",)),
    ],
)
def test_wrong_settings_raise(change, parts):
    with pytest.raises(ValueError, match=message(*parts)):
        TrainingConfig(**change)


@pytest.mark.parametrize("attention", ["softmax", "toa-gated"])
def test_operators_can_have_their_own_weight_decay(attention):
    layer = build_attention(attention, 8, 2, 5)
    offsets = {p for m in layer.modules() if isinstance(m, SequenceOperator) for p in m.parameters()}
    config = TrainingConfig(weight_decay=0.1, operator_weight_decay=0.0)
    optimizer = make_optimizer(layer, config, torch.device("cpu"))
    decays = {p: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decays == {p: 0.0 if p in offsets else 0.1 for p in layer.parameters()}


def test_negative_decay_of_operators_raises():
    with pytest.raises(ValueError, match=message("operator_weight_decay must be at least 0", "-1")):
        TrainingConfig(operator_weight_decay=-1.0)


def test_operators_can_have_their_own_learning_rate():
    layer = build_attention("toa-relu", 8, 2, 5)
    offsets = {p for m in layer.modules() if isinstance(m, SequenceOperator) for p in m.parameters()}
    config = TrainingConfig(learning_rate=0.1, operator_rate=10.0, weight_decay=0.3)
    optimizer = make_optimizer(layer, config, torch.device("cpu"))
    for rate in (0.1, 0.02):
        set_rates(optimizer, replace(config, learning_rate=rate), 0, 1)
        found = {p: group["lr"] for group in optimizer.param_groups for p in group["params"]}
        assert found == {p: pytest.approx(10 * rate if p in offsets else rate) for p in layer.parameters()}
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.3}


def test_operator_rate_of_zero_raises():
    with pytest.raises(ValueError, match=message("operator_rate must be", "0")):
        TrainingConfig(operator_rate=0.0)


def test_rate_on_the_device_is_written_only_if_it_changes():
    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(layer.parameters(), lr=torch.tensor(1.0), capturable=True)
    (group,) = optimizer.param_groups
    lr = group["lr"]
    versions = []
    for rate in (0.5, 0.5, 0.25, 0.5):
        set_rates(optimizer, TrainingConfig(learning_rate=rate), 0, 1)
        versions.append(lr._version)
        assert group["lr"] is lr
        assert float(lr) == rate
    assert versions == [1, 1, 2, 3]
