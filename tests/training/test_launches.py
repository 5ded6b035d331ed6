from pathlib import Path

import pytest

from tests.support import run_without_shape_checks


@pytest.mark.slow
def test_launches_of_a_step_under_the_interpreter() -> None:
    pytest.importorskip("triton", reason="needs Triton: pip install 'toa[triton]'")
    cases = Path(__file__).with_name("launch_cases.py")
    run_without_shape_checks(cases, TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")
