"""Models as files for other runtimes: PyTorch's exported programs and ONNX, for any number of rows.

Every model of `toa.models.BACKBONES` exports with every attention of `toa.nn.ATTENTIONS`, and so does a model that
`toa.convert` has changed, called without masks. What does not: a model on a GPU, whose kernels are of no use elsewhere,
one that is training, and one whose evaluation draws random numbers, as DUET's does with `mask_sampling="always"`.
"""

import inspect
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from toa._checks import check_positive
from toa._files import write_atomically

Inputs = tuple[Tensor | None, ...]


def export_program(model: nn.Module, example: Inputs) -> torch.export.ExportedProgram:
    """A model as one graph of PyTorch's functions, for any number of rows; `torch.export.save` writes it.

    Args:
        model: In evaluation mode, on the CPU.
        example: Arguments of a call. The first axis of every tensor is the batch, whose size is left open; all other
            sizes are settled.

    Raises:
        ValueError: If the model cannot be exported; the message says why.
    """
    _check_exportable(model, example)
    # sizes of 0 and 1 are always settled in tracing
    traced = _rows(example, max(2, _batch(example)))
    batch = torch.export.Dim("batch")
    shapes = tuple(None if x is None else {0: batch} for x in traced)
    try:
        with _quiet():
            return torch.export.export(model, traced, dynamic_shapes=_named(model, shapes))
    except Exception as error:
        raise ValueError(_refusal("torch.export", model, error)) from error


def export_onnx(
    model: nn.Module,
    path: str | Path,
    example: Inputs,
    *,
    output: str | Sequence[str] = "output",
    tolerance: float = 1e-4,
) -> None:
    """Write a model as an ONNX file, for any number of rows, and hold it to the model in onnxruntime.

    The file's inputs are named like the arguments of the model's `forward`. Before it is written, its outputs for one
    row and for one more than the example has are compared with the model's. It needs the extra `toa[onnx]`.

    Args:
        model: In evaluation mode, on the CPU.
        path: The file. It is written whole or not at all.
        example: Arguments of a call; see `export_program`.
        output: Name of the output; of several, their names, or one name and they are numbered from 0.
        tolerance: Largest error, relative to 1 + the largest output.

    Raises:
        ValueError: If the model cannot be exported, or what onnxruntime makes of it differs; no file is written.
        ImportError: If the extra is not installed.
    """
    check_positive("tolerance", tolerance)
    _check_installed()
    program = export_program(model, example)
    with torch.no_grad():
        names = _output_names(output, len(_flat(model(*example))))
    try:
        with _quiet():
            onnx = torch.onnx.export(
                program, dynamo=True, verbose=False, output_names=names, custom_translation_table=_translations()
            )
    except Exception as error:
        raise ValueError(_refusal("ONNX", model, error)) from error
    assert onnx is not None
    content = onnx.model_proto.SerializeToString()
    for rows in (1, _batch(example) + 1):
        _check_agreement(model, content, _rows(example, rows), tolerance)
    write_atomically(Path(path), content)


def _check_exportable(model: nn.Module, example: Inputs) -> None:
    if any(module.training for module in model.modules()):
        raise ValueError("model must be in evaluation mode to be exported, got one in training; call model.eval().")
    found = {tensor.device.type for tensor in (*model.parameters(), *model.buffers())}
    found |= {x.device.type for x in example if x is not None}
    if found - {"cpu"}:
        raise ValueError(
            f"model and example must be on the CPU to be exported, got {', '.join(sorted(found))}; "
            "call model.cpu(), since kernels of a GPU are of no use to another runtime."
        )
    sizes = {x.shape[0] if x.dim() else 0 for x in example if x is not None}
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(
            f"example must have tensors of one number of rows, at least 1, got {sorted(sizes)}; "
            "pass the arguments of a call, the batch first."
        )


def _check_installed() -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        try:
            __import__(name)
        except ImportError as error:
            raise ImportError(f"{name} is needed to export ONNX, and is not installed; install toa[onnx].") from error


def _check_agreement(model: nn.Module, content: bytes, inputs: Inputs, tolerance: float) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    given = [x for x in inputs if x is not None]
    # an argument that the model does not look at has an input all the same
    feed = {place.name: x.numpy(force=True) for place, x in zip(session.get_inputs(), given, strict=True)}
    with torch.no_grad():
        expected = _flat(model(*inputs))
    for found, exact in zip(session.run(None, feed), expected, strict=True):
        got = torch.from_numpy(found).double()
        error = ((got - exact.double()).abs().max() / (1.0 + exact.double().abs().max())).item()
        # not finite is not near
        if not error <= tolerance:
            raise ValueError(
                f"{type(model).__name__} must give in onnxruntime what it gives in PyTorch, within {tolerance:g}, "
                f"got an error of {error:.1e} for {_batch(inputs)} rows; raise the tolerance, unless the model draws "
                "random numbers in evaluation: then it cannot be exported."
            )


def _batch(example: Inputs) -> int:
    return next(x.shape[0] for x in example if x is not None)


def _rows(example: Inputs, count: int) -> Inputs:
    """So many rows, the example's over and over."""
    return tuple(None if x is None else x[torch.arange(count) % x.shape[0]] for x in example)


def _named(model: nn.Module, values: tuple[Any, ...]) -> dict[str, Any]:
    parameters = list(inspect.signature(model.forward).parameters)
    if len(values) > len(parameters):
        raise ValueError(f"forward takes {len(parameters)} arguments, got {len(values)} in the example")
    return dict(zip(parameters, values, strict=False))


def _flat(result: Tensor | tuple[Tensor | None, ...]) -> list[Tensor]:
    results = result if isinstance(result, tuple) else (result,)
    return [x for x in results if x is not None]


def _output_names(name: str | Sequence[str], count: int) -> list[str]:
    if not isinstance(name, str):
        if len(name) != count:
            raise ValueError(f"output must have a name for each of the {count} outputs, got {len(name)}: {list(name)}.")
        return list(name)
    return [name] if count == 1 else [f"{name}_{place}" for place in range(count)]


def _refusal(what: str, model: nn.Module, error: Exception) -> str:
    # exporters put advice first and the cause last
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = next((line for line in lines if "No ONNX function found" in line), lines[0] if lines else "no reason given")
    return f"{type(model).__name__} cannot be exported by {what}: {type(error).__name__}: {cause}"


def _translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Functions of PyTorch that its ONNX exporter does not know."""
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
def _quiet() -> Iterator[None]:
    """Without PyTorch's remarks on its own deprecations and on packages that it could do without."""
    log = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        log.setLevel(level)
