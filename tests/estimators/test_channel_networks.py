"""Networks of columns: attentions are compared at the rolling origins, saved and loaded; only with enough effort."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch

from tests.estimators.stages import only
from tests.estimators.test_all_columns import frame_of, led_columns
from tests.support import message
from toa.estimators import Forecaster, channel_networks
from toa.estimators.channel_networks import ATTENTIONS, ChannelNetworks, limit_of
from toa.estimators.effort import EFFORTS

# few steps of a tiny model: the networks need not be good
STEPS = 34
TINY: dict[str, Any] = {"embed_dim": 8, "num_heads": 2, "num_layers": 1, "ff_dim": 8, "dropout": 0.0}
BATCH = 8


@pytest.fixture(scope="module")
def trained() -> Iterator[Forecaster]:
    limit = STEPS * BATCH * 6
    with mock.patch.multiple(channel_networks, _TRIAL=0.9, _BATCH=BATCH, _SIZES=TINY), mock.patch.dict(EFFORTS):
        EFFORTS.register("channels")(replace(EFFORTS["least"], channel_windows=limit))
        with only("channels"):
            yield Forecaster(2, season=1, effort="channels").fit(frame_of(led_columns(250)))


def test_both_attentions_are_compared_at_the_origins(trained):
    assert trained.choice_ is not None
    assert set(ATTENTIONS) <= set(trained.choice_.ensemble.errors)
    assert set(trained.weights_) <= set(ATTENTIONS)
    networks = [method.network for method in trained.fitted_.panel_methods.values()]
    assert {network.architecture["backbone"] for network in networks} == {"itransformer"}
    assert all("instance_norm" in network.architecture["settings"] for network in networks)
    assert np.isfinite(trained.predict().drop(columns="date").to_numpy()).all()


def test_a_saved_network_of_columns_gives_the_same_forecast(trained, tmp_path):
    trained.save(tmp_path / "m.toa")
    table = frame_of(led_columns(150, seed=3))
    loaded = Forecaster.load(tmp_path / "m.toa")
    pd.testing.assert_frame_equal(loaded.predict(table), trained.predict(table), rtol=1e-5)


def test_a_network_of_another_horizon_is_refused(trained):
    family = ChannelNetworks()
    tensors, facts = family.save(trained.fitted_.panel_methods)
    assert family.load(tensors, facts, 1, 2)
    with pytest.raises(ValueError, match=message("a network of columns must have the horizon 3, got 2")):
        family.load(tensors, facts, 1, 3)


def test_quick_effort_on_a_processor_trains_none():
    settings = Forecaster(2, effort="quick", device="cpu").settings_of_fit()
    assert ChannelNetworks().candidates(settings, 1) == {}
    thorough = Forecaster(2, effort="thorough", device="cpu").settings_of_fit()
    assert set(ChannelNetworks().candidates(thorough, 1)) == set(ATTENTIONS)
    assert limit_of(EFFORTS["thorough"], "cpu") > 0


def test_quick_effort_on_a_gpu_trains_them_but_an_effort_without_networks_does_not(monkeypatch):
    monkeypatch.setattr(channel_networks, "resolve_device", lambda device: torch.device("cuda"))
    assert limit_of(EFFORTS["quick"], "auto") == EFFORTS["thorough"].channel_windows
    assert limit_of(EFFORTS["least"], "auto") == 0
