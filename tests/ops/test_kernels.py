from pathlib import Path

import pytest
import torch

from tests.support import run_without_shape_checks

# tests that need kernels; tests/test_compile.py runs the quick ones
FILES = sorted(Path(__file__).parent.glob("*_cases.py"))
INTERPRETER = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.slow
def test_more_kernels_under_the_interpreter() -> None:
    pytest.importorskip("triton", reason="needs Triton: pip install 'toa[triton]'")
    run_without_shape_checks(*FILES, "-m", "slow", **INTERPRETER)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_kernels_on_the_gpu() -> None:
    # compiling takes longest, so several processes compile
    run_without_shape_checks(*FILES, "-m", "slow or not slow", "-n", "auto")
