import pytest

from tests.campaign.kills import kill_runs


@pytest.mark.slow
def test_killed_runs_end_like_a_run_left_alone(tmp_path):
    outcome = kill_runs(tmp_path, seed=0, kills=20)
    assert outcome.failures == []
    assert outcome.counts["after a checkpoint"] * 3 >= outcome.counts["kills"]
