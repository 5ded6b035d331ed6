import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support import message, run_without_shape_checks
from toa.integrations import export_onnx, export_program
from toa.models import build_forecaster

CASES = Path(__file__).with_name("export_cases.py")


def test_some_models_export_and_match() -> None:
    run_without_shape_checks(CASES)


@pytest.mark.slow
def test_every_model_exports_with_every_attention_and_matches() -> None:
    run_without_shape_checks(CASES, "-m", "slow")


def model() -> nn.Module:
    return build_forecaster("dlinear", lookback=8, horizon=2, channels=3, settings={"moving_average": 3}).eval()


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


class Undecided(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class Strange(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.special.airy_ai(x)


def test_models_that_cannot_be_exported_are_refused() -> None:
    x = torch.randn(2, 8, 3)
    with pytest.raises(ValueError, match=message("model must be in evaluation mode", "call model.eval()")):
        export_program(model().train(), (x,))
    with pytest.raises(ValueError, match=message("must be on the CPU to be exported, got cpu, meta; call model.cpu()")):
        export_program(model(), (x.to("meta"),))
    with pytest.raises(ValueError, match=message("tensors of one number of rows, at least 1, got [0]")):
        export_program(model(), (x[:0],))
    with pytest.raises(ValueError, match=message("tensors of one number of rows", "got [1, 2]")):
        export_program(model(), (x, x[:1]))
    with pytest.raises(ValueError, match=message("Undecided cannot be exported by torch.export: ")):
        export_program(Undecided().eval(), (x,))


def test_a_file_is_written_only_if_it_agrees_with_the_model(tmp_path) -> None:
    x = torch.randn(2, 8, 3)
    path = tmp_path / "model.onnx"
    cases: list[tuple[Any, str]] = [
        (Noisy().eval(), "Noisy must give in onnxruntime what it gives in PyTorch, within 0.0001, got an error of"),
        (Strange().eval(), "Strange cannot be exported by ONNX: ConversionError: "),
    ]
    for refused, reason in cases:
        with pytest.raises(ValueError, match=message(reason)):
            export_onnx(refused, path, (x,))
        assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match=message("tolerance must be positive, got 0")):
        export_onnx(model(), path, (x,), tolerance=0.0)


@pytest.mark.parametrize("name", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_named(name, monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=message(f"{name} is needed to export ONNX", "install toa[onnx]")):
        export_onnx(model(), tmp_path / "model.onnx", (torch.randn(2, 8, 3),))
