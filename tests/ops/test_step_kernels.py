from pathlib import Path

import pytest
import torch

from tests.support import run_without_shape_checks

CASES = Path(__file__).with_name("step_kernel_cases.py")


def test_kernels_that_spare_launches_under_the_interpreter() -> None:
    pytest.importorskip("triton", reason="needs Triton: pip install 'toa[triton]'")
    run_without_shape_checks(CASES, TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_kernels_that_spare_launches_on_the_gpu() -> None:
    run_without_shape_checks(CASES)
