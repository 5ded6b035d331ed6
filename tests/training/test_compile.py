import shutil
from pathlib import Path

import pytest

from tests.support import message, run_without_shape_checks
from tests.training.test_loop import Small, run
from toa.training import TrainingConfig


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_compiled_training():
    # PyTorch's compiler calls what PyTorch has deprecated
    own = "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"
    run_without_shape_checks(Path(__file__).with_name("compile_cases.py"), "-W", own)


def test_compile_without_a_compiler_raises_an_error_before_training(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ValueError, match=message("training.compile must be false", "C++ compiler", "install g++")):
        run(Small(), config=TrainingConfig(compile=True))
