from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.ops.test_kernels import FILES, INTERPRETER
from tests.support import run_without_shape_checks

FOLDERS = ("nn", "contracts")
CASES = [Path(__file__).parent / folder / "compile_cases.py" for folder in FOLDERS]


def test_compiled_attentions_and_models_match_eager_and_kernels_the_reference() -> None:
    """Kernels, layers and models in one process: importing PyTorch, its compiler and Triton takes seconds."""
    kernels = FILES if find_spec("triton") else []
    run_without_shape_checks(*kernels, *CASES, "-m", "not slow", **INTERPRETER)


@pytest.mark.slow
def test_every_compiled_attention_and_model_matches_eager() -> None:
    run_without_shape_checks(*CASES, "-m", "slow")
