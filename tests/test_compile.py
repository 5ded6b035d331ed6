from pathlib import Path

import pytest

from tests.support import run_without_shape_checks

# layers and models in one process: importing PyTorch and its compiler takes seconds
FOLDERS = ("nn", "contracts")
CASES = [Path(__file__).parent / folder / "compile_cases.py" for folder in FOLDERS]


def test_compiled_attentions_and_models_match_eager() -> None:
    run_without_shape_checks(*CASES)


@pytest.mark.slow
def test_every_compiled_attention_and_model_matches_eager() -> None:
    run_without_shape_checks(*CASES, "-m", "slow")
