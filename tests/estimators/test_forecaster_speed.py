from pathlib import Path

import pytest

from tests.support import run_without_shape_checks

CASES = Path(__file__).with_name("speed_cases.py")


@pytest.mark.slow
def test_forecasts_are_as_fast_as_promised() -> None:
    run_without_shape_checks(CASES)
