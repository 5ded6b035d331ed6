import pytest

from tests.campaign import hostile, load
from tests.campaign.memory import QUICK

SIZES = {
    "threads on one estimator": 16,
    "processes on one folder": 3,
    "processes on one file": 3,
    "processes on one folder of a model": 2,
    "processes on one folder of results": 2,
    "processes on one download": 3,
    "rows of a stream": 200_000,
    "runs of a sweep": 500,
    "memory": len(QUICK),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", load.PARTS)
def test_load_changes_no_answer_and_grows_nothing(name, tmp_path):
    assert load.PARTS[name][0](tmp_path, 0, SIZES.get(name, 500), seed=0).failures == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [*hostile.COMMANDS, *hostile.ESTIMATORS])
def test_no_name_of_a_column_breaks_a_command_or_an_estimator(name, tmp_path):
    outcome = hostile.try_names(name, tmp_path, seed=0, numbers=range(0, len(hostile.NAMES), 3))
    assert outcome.failures == []
    assert outcome.counts["loaded"]


@pytest.mark.slow
@pytest.mark.parametrize("name", hostile.ESTIMATORS)
def test_no_numbers_break_an_estimator(name, tmp_path):
    assert hostile.try_numbers(name, tmp_path, seed=0, numbers=range(len(hostile.NUMBERS))).failures == []
