from pathlib import Path

import pytest

from tests.support import run_without_shape_checks

CASES = Path(__file__).with_name("compile_cases.py")


def test_compiled_attentions_match_eager() -> None:
    run_without_shape_checks(CASES)


@pytest.mark.slow
def test_compiled_structures_and_inductor_match_eager() -> None:
    run_without_shape_checks(CASES, "-m", "slow")
