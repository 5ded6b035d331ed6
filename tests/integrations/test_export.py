import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.contracts.cases import CASES, Case
from tests.support import assert_near, message, scatter_parameters
from toa.integrations import convert, export_onnx, export_program
from toa.models import build_forecaster
from toa.nn import AttentionSpec, AutoCorrelation, Structure
from toa.ops import GATE_NORMS, SCORE_NORMS

onnxruntime = pytest.importorskip("onnxruntime")


def ready(model: nn.Module) -> nn.Module:
    return scatter_parameters(model, 0.1).eval()


def assert_file_agrees(path: Path, model: nn.Module, inputs: tuple[Tensor | None, ...]) -> None:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    given = [x for x in inputs if x is not None]
    names = [port.name for port in session.get_inputs()]
    assert names == ["series", "marks", "future_marks"][: len(given)]
    (out,) = session.run(None, {name: x.numpy() for name, x in zip(names, given, strict=True)})
    with torch.no_grad():
        assert_near(torch.from_numpy(out), model(*inputs), 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_exported_program_matches_the_model_for_other_batch_sizes(case: Case) -> None:
    model = ready(case.build())
    program = export_program(model, case.inputs(3)).module()
    for batch in (1, 2, 5):
        inputs = case.inputs(batch)
        assert_near(program(*inputs), model(*inputs), 1e-6)


def test_auto_correlation_exports_for_any_batch_size() -> None:
    layer = AutoCorrelation(4, factor=2).eval()
    program = export_program(layer, (torch.randn(2, 9, 4), torch.randn(2, 7, 4))).module()
    inputs = torch.randn(5, 9, 4), torch.randn(5, 7, 4)
    assert_near(program(*inputs), layer(*inputs), 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_onnx_file_matches_the_model_for_other_batch_sizes(case: Case, tmp_path) -> None:
    model = ready(case.build())
    export_onnx(model, tmp_path / "model.onnx", case.inputs(1))
    for batch in (1, 2, 5):
        assert_file_agrees(tmp_path / "model.onnx", model, case.inputs(batch))


SPECS = [
    *(AttentionSpec(name=f"toa-{v}", structure=s) for v in ("softmax", "gated") for s in ("dplr", "toeplitz")),
    *(AttentionSpec(name="toa-relu", score_norm=norm) for norm in SCORE_NORMS),  # type: ignore[arg-type]
    *(AttentionSpec(name="toa-gated", gate_norm=norm) for norm in GATE_NORMS),  # type: ignore[arg-type]
]


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS, ids=lambda s: "-".join(map(str, (s.name, *s.options().values()))))
@pytest.mark.parametrize("model_name", ["patchtst", "transformer"])
def test_structures_and_norms_match_in_onnx(spec: AttentionSpec, model_name: str, tmp_path) -> None:
    # a decoder is causal; 33 steps are an odd number, for structures that use the FFT
    settings: dict[str, Any] = {"embed_dim": 8, "num_heads": 2, "ff_dim": 12}
    settings |= {"num_layers": 1, "patch_len": 3, "stride": 3} if model_name == "patchtst" else {"label_len": 5}
    model = ready(build_forecaster(model_name, lookback=33, horizon=4, channels=2, attention=spec, settings=settings))
    export_onnx(model, tmp_path / "model.onnx", (torch.randn(2, 33, 2),))
    assert_file_agrees(tmp_path / "model.onnx", model, (torch.randn(5, 33, 2),))


@pytest.mark.slow
@pytest.mark.usefixtures("as_matrices")
@pytest.mark.parametrize("structure", ["toeplitz", "banded"])
def test_structures_as_matrices_match_in_onnx(structure: Structure, tmp_path) -> None:
    spec = AttentionSpec(name="toa-softmax", structure=structure)
    test_structures_and_norms_match_in_onnx(spec, "patchtst", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "sizes"), [("autoformer", {"moving_average": 5}), ("informer", {"num_heads": 2})])
def test_odd_lengths_match_in_onnx(name: str, sizes: dict[str, int], tmp_path) -> None:
    settings = {"embed_dim": 8, "ff_dim": 12, "label_len": 16, "factor": 2, **sizes}
    model = ready(build_forecaster(name, lookback=33, horizon=4, channels=2, settings=settings))
    export_onnx(model, tmp_path / "model.onnx", (torch.randn(2, 33, 2),))
    assert_file_agrees(tmp_path / "model.onnx", model, (torch.randn(5, 33, 2),))


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["toa-softmax", "toa-gated"])
def test_a_converted_encoder_exports(variant: str, tmp_path) -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12, batch_first=True), 1)
    model = ready(convert(encoder, variant, num_tokens=6).model)
    export_onnx(model, tmp_path / "model.onnx", (torch.randn(2, 6, 8),), output="tokens")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    assert [port.name for port in session.get_outputs()] == ["tokens"]
    x = torch.randn(5, 6, 8)
    assert_near(torch.from_numpy(session.run(None, {"src": x.numpy()})[0]), model(x), 1e-4)


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


def test_models_that_cannot_be_exported_raise() -> None:
    x = torch.randn(2, 8, 3)
    with pytest.raises(ValueError, match=message("model must be in evaluation mode", "call model.eval()")):
        export_program(model().train(), (x,))
    with pytest.raises(ValueError, match=message("must be on the CPU, got cpu, meta")):
        export_program(model(), (x.to("meta"),))
    with pytest.raises(ValueError, match=message("example must have tensors of one batch size", "got [0]")):
        export_program(model(), (x[:0],))
    with pytest.raises(ValueError, match=message("example must have tensors of one batch size", "got [1, 2]")):
        export_program(model(), (x, x[:1]))
    with pytest.raises(ValueError, match=message("example must have at most 1 arguments", "got 2")):
        export_program(Undecided().eval(), (x, x))
    with pytest.raises(ValueError, match=message("Undecided cannot be exported by torch.export: ")):
        export_program(Undecided().eval(), (x,))


def test_a_file_is_written_only_if_it_agrees_with_the_model(tmp_path) -> None:
    x = torch.randn(2, 8, 3)
    path = tmp_path / "model.onnx"
    cases: list[tuple[Any, str]] = [
        (Noisy().eval(), "Noisy must give the same output in onnxruntime"),
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
    with pytest.raises(ImportError, match=message(name, "install toa[onnx]")):
        export_onnx(model(), tmp_path / "model.onnx", (torch.randn(2, 8, 3),))
