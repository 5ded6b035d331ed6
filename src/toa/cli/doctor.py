"""The command `toa doctor`: versions, devices, attention backends with a self-test, and data of this machine.

A part that is missing or broken is reported in its section. The library is imported only inside the sections.
"""

import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import toa

if TYPE_CHECKING:
    import torch

Facts = dict[str, Any]

# environment variables that change results or speed
VARIABLES = (
    "TOA_DATA",
    "TOA_BACKEND",
    "TRITON_INTERPRET",
    "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
)
# states of a check: it passed
OK = "ok"
# it ran and did not pass
FAILED = "failed"
# what it checks is not installed or has no device
ABSENT = "cannot run here"

# largest error of a float32 backend against the formula in float64, over 1 + the largest value
_TOLERANCE = 1e-4
# problem of the self-test: batch, queries, keys, heads, width; lengths are not multiples of a tile
_SIZES = (2, 33, 65, 2, 8)


def doctor(as_json: Annotated[bool, typer.Option("--json")] = False, data_dir: Path | None = None) -> None:
    """Print versions, devices, attention backends with a self-test, and data. Include it in bug reports.

    The exit status is 1 if a self-test fails, else 0.
    """
    report = examine(data_dir)
    typer.echo(json.dumps(report, indent=2) if as_json else as_text(report))
    if failures(report):
        raise typer.Exit(1)


def examine(data_dir: Path | None = None) -> Facts:
    """All sections as plain values; a section that fails has only the key "error"."""
    sections: dict[str, Callable[[], Facts]] = {
        "machine": _machine,
        "packages": lambda: _requirements()[""],
        "extras": lambda: {extra: found for extra, found in _requirements().items() if extra},
        "environment": lambda: {name: _short(os.environ[name]) for name in VARIABLES if name in os.environ},
        "devices": _devices,
        "backends": try_backends,
        "data": lambda: _data(data_dir),
    }
    report: Facts = {}
    for name, section in sections.items():
        # a broken installation may raise anything, and the report must show it
        try:
            report[name] = section()
        except Exception as error:
            report[name] = {"error": _in_one_line(error)}
    return report


def failures(report: Mapping[str, Any]) -> list[str]:
    """Every failed self-test as "backend on device: reason"."""
    backends = report["backends"]
    if "error" in backends:
        return [f"backends: {backends['error']}"]
    return [
        f"{name} on {device}: {found['detail']}"
        for device, tried in backends.items()
        for name, found in tried["tests"].items()
        if found["status"] == FAILED
    ]


def as_text(report: Mapping[str, Any]) -> str:
    """The report as plain lines."""
    lines: list[str] = []
    for title, section in report.items():
        lines += [title, *(f"  {line}" for line in _lines(section)), ""]
    wrong = failures(report)
    lines.append(f"self-tests: {len(wrong)} failed ({'; '.join(wrong)})" if wrong else "self-tests: none failed")
    return "\n".join(lines)


def _in_one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _lines(section: Mapping[str, Any]) -> Iterator[str]:
    width = max((len(name) for name, value in section.items() if not isinstance(value, Mapping)), default=0)
    for name, value in section.items():
        if isinstance(value, Mapping) and set(value) == {"status", "detail"}:
            yield f"{name}: {value['status']}" + (f" ({value['detail']})" if value["detail"] else "")
        elif isinstance(value, Mapping):
            yield name
            yield from (f"  {line}" for line in _lines(value))
        else:
            shown = (", ".join(map(str, value)) or "none") if isinstance(value, list) else value
            yield f"{name:<{width}}  {shown}"


def _machine() -> Facts:
    try:
        import torch

        from toa.experiments.records import provenance

        commit = provenance(torch.device("cpu"), [])["commit"] or "none: not a checkout"
    except Exception as error:
        commit = f"unknown ({_in_one_line(error)})"
    return {
        "toa": toa.__version__,
        "commit": commit,
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count() or 0,
    }


def _requirements() -> dict[str, dict[str, str]]:
    """Installed versions of the requirements of the package, by extra; those that are always needed are under ""."""
    from packaging.requirements import Requirement

    package = distribution("toa")
    extras = package.metadata.get_all("Provides-Extra") or []
    found: dict[str, dict[str, str]] = {"": {}}
    for requirement in map(Requirement, package.requires or ()):
        marker = requirement.marker
        extra = ""
        if marker is not None and not marker.evaluate({"extra": ""}):
            extra = next((one for one in extras if marker.evaluate({"extra": one})), "other platforms")
        wants = f"(wants {requirement.specifier})"
        try:
            installed = version(requirement.name)
            fits = requirement.specifier.contains(installed, prereleases=True)
            shown = installed if fits else f"{installed} {wants}"
        except PackageNotFoundError:
            shown = f"not installed {wants}"
        found.setdefault(extra, {})[requirement.name] = shown
    return found


def _short(path: object) -> str:
    """A path without the name of the user."""
    home = Path.home()
    inside = home != Path("/") and Path(str(path)).is_relative_to(home)
    return str(Path("~") / Path(str(path)).relative_to(home)) if inside else str(path)


def _devices() -> Facts:
    import torch

    facts: Facts = {"cpu": f"{torch.get_num_threads()} threads"}
    if not torch.cuda.is_available():
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        return facts | {"cuda": f"none (PyTorch is {built})"}
    for index in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(index)
        capability = f"capability {found.major}.{found.minor}, CUDA {torch.version.cuda}"
        facts[f"cuda:{index}"] = f"{found.name}, {found.total_memory / 2**30:.0f} GiB, {capability}"
    return facts


def try_backends() -> Facts:
    """Per device: the backend that "auto" selects, and a self-test of output and gradients of every backend."""
    import torch

    from toa import ops

    report: Facts = {}
    for device in ("cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))):
        try:
            auto = ops.choose_backend(device=device)
        except ValueError as error:
            auto = _in_one_line(error)
        report[device] = {"auto": auto, "tests": {name: _self_test(name, device) for name in ops.BACKENDS}}
    return report


def _self_test(backend: str, device: str) -> Facts:
    """Compare output and gradients in float32 with the reference in float64; the reference itself is tested too."""
    import torch

    from toa import ops
    from toa.ops._backend import Problem

    worst = 0.0
    try:
        for activation in (name for name, entry in ops.ACTIVATIONS.items() if entry.fused):
            objection = ops.BACKENDS[backend].objection(
                Problem(activation=activation, device=torch.device(device), dtype=torch.float32, width=_SIZES[-1])
            )
            if objection is not None:
                return {"status": ABSENT, "detail": objection}
            exact = _results("reference", activation, torch.float64, device)
            for got, wanted in zip(_results(backend, activation, torch.float32, device), exact, strict=True):
                error = (got.double() - wanted).abs().max() / (1.0 + wanted.abs().max())
                worst = max(worst, error.item() if error.isfinite() else float("inf"))
    except Exception as error:
        # a compiler or a driver may raise anything
        return {"status": FAILED, "detail": _in_one_line(error)}
    status = OK if worst <= _TOLERANCE else FAILED
    return {"status": status, "detail": f"largest error {worst:.0e}, allowed {_TOLERANCE:.0e}"}


def _results(backend: str, activation: str, dtype: "torch.dtype", device: str) -> list["torch.Tensor"]:
    """Output and gradients of a small problem, the same for every backend."""
    import torch

    from toa import ops

    batch, queries, keys, heads, width = _SIZES
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int, std: float = 1.0) -> "torch.Tensor":
        drawn = torch.randn(*shape, generator=generator, dtype=torch.float64) * std
        return drawn.to(device, dtype).requires_grad_()

    tensors: Facts = {
        "q": normal(batch, queries, heads, width),
        **{name: normal(batch, keys, heads, width) for name in ("k", "v")},
        **{name: normal(heads, keys, keys, std=keys**-0.5) for name in ("s1", "s2")},
    }
    if ops.ACTIVATIONS[activation].gated:
        tensors |= {"gate_q": normal(batch, queries, heads, width), "gate_k": normal(batch, keys, heads, width)}
    output = ops.operator_attention(**tensors, activation=activation, scale=width**-0.5, backend=backend)
    gradients = torch.autograd.grad(output.square().mean(), list(tensors.values()))
    return [output.detach(), *gradients]


def _data(data_dir: Path | None) -> Facts:
    """Each searched folder with the catalogued data sets in it."""
    from toa.cli.data import find_datasets
    from toa.data import data_folders

    folders = data_folders(data_dir)
    datasets = find_datasets(data_dir)
    found: Facts = {_short(folder): [] if folder.is_dir() else "no such folder" for folder in folders}
    for name, paths in datasets.items():
        if paths:
            home = next((folder for folder in folders if paths[0].is_relative_to(folder)), None)
            found.setdefault("with aeon" if home is None else _short(home), []).append(name)
    missing = sum(not paths for paths in datasets.values())
    return found | {"not here": f"{missing} of {len(datasets)} sets; `toa data list` names them all"}
