from pathlib import Path

import pytest
import torch

from tests.support import run_without_shape_checks

# tests that need kernels, in one process: importing PyTorch, its compiler and Triton takes seconds
FILES = sorted(Path(__file__).parent.glob("*_cases.py"))
INTERPRETER = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.parametrize("cases", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_kernels_under_the_interpreter(cases) -> None:
    pytest.importorskip("triton", reason="needs Triton: pip install 'toa[triton]'")
    run_without_shape_checks(*FILES, "-m", cases, **INTERPRETER)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_kernels_on_the_gpu() -> None:
    # compiling takes longest, so several processes compile
    run_without_shape_checks(*FILES, "-m", "slow or not slow", "-n", "auto")
