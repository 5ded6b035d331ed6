from pathlib import Path

import pytest

from tests.support import run_without_shape_checks

CASES = Path(__file__).with_name("compile_cases.py")


def test_every_attention_trains_as_one_graph_that_matches_eager() -> None:
    run_without_shape_checks(CASES)


@pytest.mark.slow
def test_every_structure_and_inductor_match_eager_too() -> None:
    run_without_shape_checks(CASES, "-m", "slow")
