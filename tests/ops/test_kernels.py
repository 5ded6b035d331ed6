from pathlib import Path

import pytest
import torch

from tests.support import run_without_shape_checks

# files of tests that need kernels, one process each: importing PyTorch and Triton takes seconds
FOLDER = Path(__file__).parent
CASES = [["triton_cases.py", "eager_cases.py"], ["mixing_cases.py", "row_kernel_cases.py", "step_kernel_cases.py"]]
INTERPRETER = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}


def run(files: list[str], *options: str, **environment: str) -> None:
    run_without_shape_checks(*(FOLDER / name for name in files), *options, **environment)


@pytest.mark.parametrize("files", CASES, ids=lambda files: files[0])
def test_kernels_under_the_interpreter(files) -> None:
    pytest.importorskip("triton", reason="needs Triton: pip install 'toa[triton]'")
    run(files, **INTERPRETER)


@pytest.mark.slow
@pytest.mark.parametrize("files", CASES, ids=lambda files: files[0])
def test_more_sizes_of_kernels_under_the_interpreter(files) -> None:
    pytest.importorskip("triton", reason="needs Triton: pip install 'toa[triton]'")
    run(files, "-m", "slow", **INTERPRETER)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("files", CASES, ids=lambda files: files[0])
def test_kernels_on_the_gpu(files) -> None:
    # compiling takes longest, so several processes compile
    run(files, "-m", "slow or not slow", "-n", "auto")
