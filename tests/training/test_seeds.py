"""A fit depends on its seed only, not on other threads, and leaves the global random state alone."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.estimators.signals import wide
from toa.estimators import AnomalyDetector, Classifier, Forecaster
from toa.models import BACKBONES, build_forecaster
from toa.nn import AttentionSpec
from toa.ops.dropout import initial_weights, kept_random_state, plain_dropout, random_numbers
from toa.training.distributed import numerics, seeded

CPU = torch.device("cpu")


def forecaster(seed: int) -> dict[str, torch.Tensor]:
    settings = {"dropout": 0.2}
    attention = {"name": "toa-gated", "sor": True, "dropout": 0.1}
    how: dict[str, Any] = {
        "model": "toa",
        "lookback": 12,
        "epochs": 1,
        "batch_size": 16,
        "attention": attention,
        "settings": settings,
    }
    model = Forecaster(6, seed=seed, **how)
    return model.fit(wide(120)).model_.state_dict()


def test_fits_in_threads_equal_fits_alone():
    alone = [forecaster(seed) for seed in range(2)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(forecaster, [0, 1] * 2))
    for seed, weights in zip([0, 1] * 2, together, strict=True):
        assert all(torch.equal(weights[name], value) for name, value in alone[seed].items())


def test_fitting_and_loading_leave_the_global_random_state_unchanged(tmp_path):
    cases = np.random.default_rng(0).normal(size=(8, 1, 16))
    before = torch.get_rng_state()
    Classifier(model="toa", epochs=1).fit(cases, [0, 1] * 4)
    AnomalyDetector(epochs=1, window=8).fit(cases.ravel())
    model = Forecaster(2, lookback=4, epochs=1).fit(cases.ravel())
    model.save(tmp_path / "model.toa")
    Forecaster.load(tmp_path / "model.toa")
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("backbone", ["patchtst", "informer", "duet", "tsmixer", "transformer", "autoformer"])
def test_a_thread_s_generator_draws_what_the_global_one_draws(backbone):
    """Stored runs were seeded globally: the numbers must not change."""
    x = torch.randn(3, 48, 2, generator=torch.Generator().manual_seed(0))

    def draw() -> tuple[torch.Tensor, nn.Module]:
        spec = AttentionSpec(name="toa-gated", sor=True) if backbone in ("patchtst", "transformer", "duet") else None
        settings = {"label_len": 24} if "label_len" in BACKBONES[backbone].settings("forecast") else {}
        with initial_weights():
            model = build_forecaster(backbone, lookback=48, horizon=12, channels=2, attention=spec, settings=settings)
        return model.train()(x), model

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        expected, model = draw()
    with seeded(7, CPU):
        got, own = draw()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), own.parameters(), strict=True))
    assert torch.equal(got, expected)


def test_plain_dropout_draws_what_pytorch_draws():
    x = torch.ones(40, 50)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        expected = F.dropout(x, 0.3)
    with random_numbers(torch.Generator().manual_seed(3)):
        assert torch.equal(plain_dropout(x, 0.3), expected)


def test_dropout_of_everything_leaves_zeros():
    with random_numbers(torch.Generator()):
        assert torch.equal(plain_dropout(torch.ones(3), 1.0), torch.zeros(3))


def test_a_compiled_fit_seeds_only_the_generator_that_it_restores(monkeypatch):
    seeds: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    with seeded(7, CPU, compiled=True):
        drawn = torch.rand(3)
    assert torch.equal(drawn, torch.rand(3, generator=torch.Generator().manual_seed(7)))
    assert seeds == []


@pytest.mark.filterwarnings("error")
def test_a_state_is_kept_for_one_device_of_many(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    before = torch.get_rng_state()
    with kept_random_state(CPU):
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_run_waits_for_the_settings_of_another_thread():
    def deterministic() -> bool:
        with numerics(CPU, tf32=False):
            return torch.are_deterministic_algorithms_enabled()

    with ThreadPoolExecutor(1) as pool:
        with numerics(CPU, tf32=False, deterministic=True):
            other = pool.submit(deterministic)
            with pytest.raises(TimeoutError):
                other.result(0.2)
        assert not other.result(60)


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5, True, "1", None])
def test_seeds_have_a_range(seed):
    with pytest.raises(ValueError, match="seed must be an integer from 0 to"):
        Forecaster(2, seed=seed, lookback=4).fit(np.arange(60.0))


def test_deterministic_runs_use_one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with numerics(CPU, tf32=False, deterministic=True):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
