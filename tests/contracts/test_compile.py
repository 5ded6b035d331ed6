from pathlib import Path

import pytest

from tests.support import run_without_shape_checks

CASES = Path(__file__).with_name("compile_cases.py")


def test_models_compile_to_one_graph_that_matches_eager() -> None:
    run_without_shape_checks(CASES)


@pytest.mark.slow
def test_every_model_compiles_with_every_attention() -> None:
    run_without_shape_checks(CASES, "-m", "slow")
