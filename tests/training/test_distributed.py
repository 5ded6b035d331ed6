import json
import os
import subprocess
import sys

import pytest
import torch

from tests.support import ROOT, message
from toa.training import make_fabric
from toa.training.distributed import resolve_devices


def play(folder, *cases: str):
    """The ranks' results of `distributed_cases`, from another process."""
    command = [sys.executable, "-m", "tests.training.distributed_cases", str(folder), *cases]
    environment = {**os.environ, "TOA_NO_SHAPE_CHECKS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    return play(tmp_path_factory.mktemp("ranks"), "shares", "curve")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    return play(tmp_path_factory.mktemp("stopped"), "resumed", "regrouped")


def test_two_ranks_share_a_batch_and_weight_their_losses(seen):
    whole = [0, 1, 2, 3, 4, 5, 6]
    even = [0, 1, 2, 3]
    (alone,), (first, second) = seen["shares"]["1"], seen["shares"]["2"]
    assert alone == [[whole, whole, 1.0, 1], [even, even, 1.0, 1], [[0], [0], 1.0, 1]]
    assert first == [[whole[:3], whole[:3], 6 / 7, 1], [even[:2], even[:2], 1.0, 1], [[0], [0], 1.0, 2]]
    assert second == [[whole[3:], whole[3:], 8 / 7, 1], [even[2:], even[2:], 1.0, 1], [[0], [0], 1.0, 2]]


def test_two_ranks_have_the_loss_curve_of_one(seen):
    """At the same total batch: shares of different sizes, batch norms, padding, clipping, gathered gradients."""
    (alone,), (first, second) = seen["curve"]["1"], seen["curve"]["2"]
    assert first == second
    for one, two in zip(alone, first, strict=True):
        assert len(one["losses"]) in (9, 15)
        for name in ("losses", "history", "statistics"):
            assert two[name] == pytest.approx(one[name], rel=1e-5, abs=1e-5), name
        assert two["best"] == one["best"]


@pytest.mark.slow
def test_a_signal_to_one_rank_stops_all_and_they_resume_to_the_same_weights(stopped):
    (alone,), ranks = stopped["resumed"]["1"], stopped["resumed"]["2"]
    assert alone["said"] == "stopped after 8 of 20 steps"
    # at the next observation, every three steps
    assert {rank["said"] for rank in ranks} == {"stopped after 9 of 20 steps"}
    assert all(rank["same"] for rank in (alone, *ranks))


@pytest.mark.slow
def test_each_rank_has_its_own_random_numbers_and_resumes_them(stopped):
    (alone,), (first, second) = stopped["resumed"]["1"], stopped["resumed"]["2"]
    assert alone["names"] == ["random.cpu", "random.own.0"]
    assert first["names"] == ["random-1.cpu", "random-1.own.0", *alone["names"]]
    assert first["draw"] != second["draw"]


@pytest.mark.slow
def test_two_processes_resume_a_run_of_one(stopped):
    assert stopped["regrouped"]["1"] == ["stopped"]
    first, second = stopped["regrouped"]["2"]
    assert first[0] == second[0] == 4
    assert first[1] != second[1]


@pytest.mark.slow
def test_every_model_trains_on_two_ranks(tmp_path):
    found = play(tmp_path, "models")["models"]
    (alone,), (first, second) = found["1"], found["2"]
    assert first == second
    for name, one in alone.items():
        assert (one["devices"], first[name]["devices"]) == (1, 2)
        # of the last three something is drawn, or computed from a rank's share; before PatchTST's batch norms shifts
        # have no gradient but rounding, which moves running means
        drawn = name in ("duet", "informer", "autoformer")
        rounded = name == "patchtst"
        allowed = 1e-4 if rounded else 1e-5
        if drawn:
            allowed = 0.5
        assert first[name]["losses"] == pytest.approx(one["losses"], abs=allowed), name


@pytest.fixture
def no_ranks(monkeypatch):
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "NODE_RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_ranks")
def test_devices_are_as_given_or_as_started_by_torchrun(monkeypatch):
    assert resolve_devices(None, None) == (1, 1)
    assert resolve_devices(3, None) == (3, 1)
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    monkeypatch.setenv("NODE_RANK", "1")
    assert resolve_devices(None, 2) == (1, 2)
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert resolve_devices(None, None) == resolve_devices(4, 2) == (4, 2)
    with pytest.raises(ValueError, match=message("devices must be 4", "got 8")):
        resolve_devices(8, None)
    with pytest.raises(ValueError, match=message("num_nodes must be 2", "got 1")):
        resolve_devices(None, 1)


@pytest.mark.usefixtures("no_ranks")
@pytest.mark.parametrize(
    ("devices", "num_nodes", "parts"),
    [
        (0, None, ("devices must be at least 1, got 0",)),
        (None, 0, ("num_nodes must be at least 1, got 0",)),
        (None, 2, ("MASTER_ADDR and NODE_RANK must be set on each of num_nodes=2 machines", "torchrun")),
    ],
)
def test_impossible_devices_raise_an_error(devices, num_nodes, parts):
    with pytest.raises(ValueError, match=message(*parts)):
        resolve_devices(devices, num_nodes)


def test_several_devices_have_no_index_and_must_exist(monkeypatch):
    with pytest.raises(ValueError, match=message("device must be cuda", "got cuda:1")):
        make_fabric(torch.device("cuda:1"), devices=2)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match=message("devices must be at most 1", "got 2")):
        make_fabric(torch.device("cuda"), devices=2)
