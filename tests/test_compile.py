from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.ops.test_kernels import FILES, INTERPRETER
from tests.support import run_without_shape_checks

# cases of layers and of models, each run in a process of its own
LAYERS = Path(__file__).parent / "nn" / "compile_cases.py"
MODELS = Path(__file__).parent / "contracts" / "compile_cases.py"


def test_a_compiled_attention_matches_eager_and_kernels_the_reference() -> None:
    """Kernels and a layer in one process: importing PyTorch, its compiler and Triton takes seconds."""
    kernels = FILES if find_spec("triton") else []
    run_without_shape_checks(*kernels, LAYERS, "-m", "not slow", **INTERPRETER)


@pytest.mark.slow
def test_every_compiled_attention_and_model_matches_eager() -> None:
    run_without_shape_checks(LAYERS, MODELS, "-m", "slow")
