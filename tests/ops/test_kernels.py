from pathlib import Path

import pytest
import torch

from tests.support import run_without_shape_checks

# files of tests that need kernels: of attention, of mixing, over rows, and those that spare a step launches
CASES = ["triton_cases", "mixing_cases", "row_kernel_cases", "step_kernel_cases"]


@pytest.mark.parametrize("cases", CASES)
def test_kernels_under_the_interpreter(cases) -> None:
    pytest.importorskip("triton", reason="needs Triton: pip install 'toa[triton]'")
    run_without_shape_checks(Path(__file__).with_name(f"{cases}.py"), TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("cases", CASES)
def test_kernels_on_the_gpu(cases) -> None:
    # compiling takes longest, and each process compiles
    run_without_shape_checks(Path(__file__).with_name(f"{cases}.py"), "-n", "auto")
