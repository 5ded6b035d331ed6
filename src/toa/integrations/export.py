"""Export models to other runtimes as exported programs of PyTorch and as ONNX files, for any batch size.

Every model of `toa.models.BACKBONES` exports with every attention of `toa.nn.ATTENTIONS`, and so does a model changed
by `toa.convert` if it is called without masks. A model on a GPU, in training mode, or with random numbers in evaluation
(DUET with `mask_sampling="always"`) does not export.
"""

import copy
import inspect
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from toa._checks import ArgumentError, check_at_most, check_positive
from toa._files import write_atomically
from toa.models.pretrained import PretrainedForecaster

Inputs = tuple[Tensor | None, ...]


def export_program(model: nn.Module, example: Inputs) -> torch.export.ExportedProgram:
    """A model as one graph of PyTorch functions, for any batch size; `torch.export.save` writes it to a file.

    Args:
        model: In evaluation mode, on the CPU.
        example: Arguments of a call. The first axis of every tensor is the batch; all other sizes are fixed.
    """
    _check_exportable(model, example)
    parameters = list(inspect.signature(model.forward).parameters)
    if len(example) > len(parameters):
        raise ArgumentError("example", f"have at most {len(parameters)} arguments, as forward", len(example))
    # tracing always fixes sizes of 0 and 1
    traced = _repeated(example, max(2, _batch_size(example)))
    batch = torch.export.Dim("batch")
    shapes = {name: None if x is None else {0: batch} for name, x in zip(parameters, traced, strict=False)}
    with _exporting("torch.export", model):
        return torch.export.export(model, traced, dynamic_shapes=shapes)


def export_onnx(
    model: nn.Module,
    path: str | Path,
    example: Inputs,
    *,
    output: str | Sequence[str] = "output",
    tolerance: float = 1e-4,
) -> None:
    """Write a model as an ONNX file for any batch size, after comparing it with the model in onnxruntime.

    The inputs of the file have the names of the model's `forward` arguments. The comparison uses batch size one and the
    batch size of the example plus one. Needs the extra `toa[onnx]`.

    Args:
        model: In evaluation mode, on the CPU.
        path: The file. It is written completely or not at all.
        example: Arguments of a call; see `export_program`.
        output: Name of the output. For several outputs their names, or one name to which numbers from 0 are added.
        tolerance: Largest error, relative to 1 + the largest output.

    Raises:
        ValueError: If the model cannot be exported, or its outputs in onnxruntime differ; no file is written.
    """
    check_positive("tolerance", tolerance)
    for package in ("onnx", "onnxscript", "onnxruntime"):
        try:
            __import__(package)
        except ImportError as error:
            raise ImportError(f"{package} must be installed to export ONNX; install toa[onnx].") from error
    program = export_program(model, example)
    with torch.no_grad():
        count = len(_as_list(model(*example)))
    names = list(output)
    if isinstance(output, str):
        names = [output] if count == 1 else [f"{output}_{index}" for index in range(count)]
    if len(names) != count:
        raise ArgumentError("output", f"have one name for each of the {count} outputs", f"{len(names)}: {names}")
    with _exporting("ONNX", model):
        onnx = torch.onnx.export(
            program, dynamo=True, verbose=False, output_names=names, custom_translation_table=_translations()
        )
    assert onnx is not None
    content = _with_names(onnx.model_proto).SerializeToString()
    for size in (1, _batch_size(example) + 1):
        _check_agreement(model, content, _repeated(example, size), tolerance)
    write_atomically(Path(path), content)


def export_pretrained(model: PretrainedForecaster, path: str | Path, *, context: int, horizon: int) -> None:
    """Write a pretrained forecaster as an ONNX file for contexts (B, `context`) and this horizon.

    The input "context" has NaN for missing values; shorter series are filled with NaN on the left. The output
    "quantiles" is (B, `horizon`, Q), in the units of the context. Other arguments as in `export_onnx`.
    """
    check_at_most("context", context, "that of the model", model.config.context, "cut the series")
    example = torch.arange(2.0 * context).sin().view(2, context)
    fixed = FixedHorizon(copy.deepcopy(model).cpu(), horizon).eval()
    export_onnx(fixed, path, (example,), output="quantiles")


class FixedHorizon(nn.Module):
    """A pretrained forecaster whose only argument is the context."""

    def __init__(self, model: PretrainedForecaster, horizon: int) -> None:
        super().__init__()
        self.model = model
        self.horizon = horizon

    def forward(self, context: Tensor) -> Tensor:
        """Quantiles (B, P, Q)."""
        return self.model(context, self.horizon)


def _with_names(proto: Any) -> Any:
    """The graph with the axis "batch", which the exporter names like "s90"."""
    graph = proto.graph
    own = {axis.dim_param for value in graph.input for axis in value.type.tensor_type.shape.dim if axis.dim_param}
    for value in (*graph.input, *graph.output, *graph.value_info):
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param:
                axis.dim_param = re.sub(r"\w+", lambda word: "batch" if word[0] in own else word[0], axis.dim_param)
    return proto


def _check_exportable(model: nn.Module, example: Inputs) -> None:
    if any(module.training for module in model.modules()):
        raise ArgumentError("model", "be in evaluation mode", "a model in training mode", "call model.eval()")
    devices = {tensor.device.type for tensor in (*model.parameters(), *model.buffers())}
    devices |= {x.device.type for x in example if x is not None}
    if devices - {"cpu"}:
        raise ArgumentError(
            "model and example",
            "be on the CPU",
            ", ".join(sorted(devices)),
            "call model.cpu(): other runtimes cannot use GPU kernels",
        )
    sizes = {x.shape[0] if x.dim() else 0 for x in example if x is not None}
    if len(sizes) != 1 or 0 in sizes:
        raise ArgumentError(
            "example",
            "have tensors of one batch size, at least 1",
            sorted(sizes),
            "pass the arguments of a call, with the batch as first axis",
        )


def _check_agreement(model: nn.Module, content: bytes, inputs: Inputs, tolerance: float) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    given = [x for x in inputs if x is not None]
    # the file has an input for every argument, also for one that the model ignores
    feed = {port.name: x.numpy(force=True) for port, x in zip(session.get_inputs(), given, strict=True)}
    with torch.no_grad():
        expected = _as_list(model(*inputs))
    for found, exact in zip(session.run(None, feed), expected, strict=True):
        got = torch.from_numpy(found).double()
        error = ((got - exact.double()).abs().max() / (1.0 + exact.double().abs().max())).item()
        # written so that NaN is an error
        if not error <= tolerance:
            raise ArgumentError(
                type(model).__name__,
                f"give the same output in onnxruntime as in PyTorch, within {tolerance:g}",
                f"an error of {error:.1e} for batch size {_batch_size(inputs)}",
                "raise the tolerance. A model that draws random numbers in evaluation cannot be exported",
            )


def _batch_size(example: Inputs) -> int:
    return next(x.shape[0] for x in example if x is not None)


def _repeated(example: Inputs, batch_size: int) -> Inputs:
    """The example repeated or cut to a batch size."""
    return tuple(None if x is None else x[torch.arange(batch_size) % x.shape[0]] for x in example)


def _as_list(result: Tensor | tuple[Tensor | None, ...]) -> list[Tensor]:
    results = result if isinstance(result, tuple) else (result,)
    return [x for x in results if x is not None]


def _translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """ONNX forms of PyTorch functions that its exporter does not support."""
    from onnxscript import opset18

    op: Any = opset18

    def cdist(x1: Any, x2: Any, p: float, compute_mode: int | None = None) -> Any:
        """‖x1_i - x2_j‖ for (B, M, F) and (B, N, F)."""
        if p != 2.0:
            raise NotImplementedError(f"cdist with p={p}")
        rows = op.Unsqueeze(x1, op.Constant(value_ints=[-2]))  # (B, M, 1, F)
        columns = op.Unsqueeze(x2, op.Constant(value_ints=[-3]))  # (B, 1, N, F)
        squared = op.ReduceSumSquare(op.Sub(rows, columns), op.Constant(value_ints=[-1]), keepdims=0)
        return op.Sqrt(squared)

    return {torch.ops.aten._cdist_forward.default: cdist}


@contextmanager
def _exporting(exporter: str, model: nn.Module) -> Iterator[None]:
    """Hide PyTorch's own deprecation and registration messages; raise ValueError with the cause of a failure."""
    log = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.simplefilter("ignore", FutureWarning)
            yield
    except Exception as error:
        # the first line of the message, unless a later one names a missing ONNX function
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no reason given"]
        cause = next((line for line in lines if "No ONNX function found" in line), lines[0])
        name = type(model).__name__
        raise ValueError(f"{name} cannot be exported by {exporter}: {type(error).__name__}: {cause}") from error
    finally:
        log.setLevel(level)
