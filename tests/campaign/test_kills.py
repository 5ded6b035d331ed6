import pytest

from tests.campaign.kills import WORKS, kill, kill_sweeps


@pytest.mark.parametrize("name", ["fit", "download"])
def test_killed_writes_leave_whole_files_and_no_parts(name, tmp_path):
    outcome = kill(name, tmp_path, seed=0, kills=12)
    assert outcome.failures == []
    if name != "download":
        assert outcome.counts["during a part of a file"] > 3


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKS)
def test_killed_work_ends_like_work_left_alone(name, tmp_path):
    outcome = kill(name, tmp_path, seed=1, kills=20)
    assert outcome.failures == []
    if name == "run":
        assert outcome.counts["after a checkpoint"] * 3 >= outcome.counts["kills"]
        assert outcome.counts["during a part of a file"]
        assert outcome.counts["during the record"]


@pytest.mark.slow
def test_killed_sweeps_end_like_a_sweep_left_alone(tmp_path):
    assert kill_sweeps(tmp_path, seed=0, kills=2).failures == []
