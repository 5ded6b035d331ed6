"""What this machine can do: versions, devices, backends put to the test, data; for people and for bug reports.

Whatever is missing or broken is said in its place. Nothing of the library is imported before it is looked at.
"""

import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import toa

if TYPE_CHECKING:
    import torch

Facts = dict[str, Any]

# what an environment may change about results or speed
VARIABLES = (
    "TOA_DATA",
    "TOA_BACKEND",
    "TRITON_INTERPRET",
    "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
)
OK, FAILED, ABSENT = "ok", "failed", "cannot run here"

# largest error of a float32 backend against the formula in float64, over 1 + the largest value
_TOLERANCE = 1e-4
# sizes of the problem that backends are tried on: batch, queries, keys, heads, width; neither a multiple of a tile
_SIZES = (2, 33, 65, 2, 8)


def examine(data_dir: Path | None = None) -> Facts:
    """Everything, section by section, as plain values; a section that cannot be made says why under "error"."""
    sections: dict[str, Callable[[], Facts]] = {
        "machine": _machine,
        "packages": _packages,
        "extras": _extras,
        "environment": _environment,
        "devices": _devices,
        "backends": try_backends,
        "data": lambda: _data(data_dir),
    }
    return {name: _guarded(section) for name, section in sections.items()}


def failures(report: Mapping[str, Any]) -> list[str]:
    """Every self-test that failed, as "backend on device: why"."""
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
    """The report in plain lines, to be read or pasted."""
    lines: list[str] = []
    for title, section in report.items():
        lines += [title, *(f"  {line}" for line in _lines(section)), ""]
    wrong = failures(report)
    lines.append(f"self-tests: {len(wrong)} failed ({'; '.join(wrong)})" if wrong else "self-tests: none failed")
    return "\n".join(lines)


def _guarded(section: Callable[[], Facts]) -> Facts:
    # a broken installation may raise anything, and that is what is asked for
    try:
        return section()
    except Exception as error:
        return {"error": _said(error)}


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _lines(section: Mapping[str, Any]) -> Iterator[str]:
    width = max((len(name) for name, value in section.items() if not isinstance(value, Mapping)), default=0)
    for name, value in section.items():
        if isinstance(value, Mapping):
            if set(value) == {"status", "detail"}:
                yield f"{name}: {value['status']}" + (f" ({value['detail']})" if value["detail"] else "")
                continue
            yield name
            yield from (f"  {line}" for line in _lines(value))
        else:
            shown = (", ".join(map(str, value)) or "none") if isinstance(value, list) else value
            yield f"{name:<{width}}  {shown}"


def _machine() -> Facts:
    return {
        "toa": toa.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count() or 0,
    }


def _commit() -> str:
    try:
        import torch

        from toa.experiments.records import provenance

        return provenance(torch.device("cpu"), [])["commit"] or "none: not a checkout"
    except Exception as error:
        return f"not known ({_said(error)})"


def _packages() -> Facts:
    """Each base dependency, by what the installed package says of itself."""
    return {name: _installed(name, rule) for name, rule, extra in _requirements() if extra is None}


def _extras() -> Facts:
    """Each extra: whether all that it asks for is here."""
    extras: dict[str, dict[str, str]] = {}
    for name, rule, extra in _requirements():
        if extra is not None:
            extras.setdefault(extra, {})[name] = _installed(name, rule)
    return extras


def _requirements() -> Iterator[tuple[str, str, str | None]]:
    """Name, bounds and extra of all that the installed package asks for."""
    for line in requires("toa") or ():
        wanted, _, marker = line.partition(";")
        name = re.match(r"[\w.-]+", wanted)
        extra = re.search(r"""extra\s*==\s*['"]([\w.-]+)['"]""", marker)
        if name is not None:
            yield name[0], wanted[name.end() :].strip(), None if extra is None else extra[1]


def _installed(name: str, rule: str) -> str:
    try:
        found = version(name)
    except PackageNotFoundError:
        return f"not installed (wants {rule})"
    return found if _within(found, rule) else f"{found} (wants {rule})"


def _within(found: str, rule: str) -> bool:
    try:
        from packaging.specifiers import SpecifierSet
    except ImportError:
        return True
    return SpecifierSet(rule).contains(found, prereleases=True)


def _environment() -> Facts:
    return {name: _short(os.environ[name]) for name in VARIABLES if name in os.environ}


def _short(path: object) -> str:
    """A path without the name of its owner."""
    home = str(Path.home())
    text = str(path)
    return f"~{text[len(home) :]}" if home != "/" and (text == home or text.startswith(home + os.sep)) else text


def _devices() -> Facts:
    import torch

    facts: Facts = {"cpu": f"{torch.get_num_threads()} threads"}
    if not torch.cuda.is_available():
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        return facts | {"cuda": f"none (PyTorch is {built})"}
    for index in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(index)
        memory = f"{found.total_memory / 2**30:.0f} GiB"
        facts[f"cuda:{index}"] = (
            f"{found.name}, {memory}, capability {found.major}.{found.minor}, CUDA {torch.version.cuda}"
        )
    return facts


def try_backends() -> Facts:
    """On each device: which backend "auto" takes, and each one's output and gradients against the formula."""
    import torch

    from toa import ops

    devices = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    report: Facts = {}
    for device in devices:
        try:
            auto = ops.choose_backend(device=device)
        except ValueError as error:
            auto = _said(error)
        report[device] = {"auto": auto, "tests": {name: _tried(name, device) for name in ops.BACKENDS}}
    return report


def _tried(backend: str, device: str) -> Facts:
    import torch

    from toa import ops
    from toa.ops._backend import Problem

    worst = 0.0
    try:
        for activation in ops.ACTIVATIONS:
            where = torch.device(device)
            objection = ops.BACKENDS[backend].objection(
                Problem(activation=activation, device=where, dtype=torch.float32, width=_SIZES[-1])  # type: ignore[arg-type]
            )
            if objection is not None:
                return {"status": ABSENT, "detail": objection}
            exact = _results("reference", activation, torch.float64, device)
            for got, wanted in zip(_results(backend, activation, torch.float32, device), exact, strict=True):
                error = (got.double() - wanted).abs().max() / (1.0 + wanted.abs().max())
                worst = max(worst, error.item() if error.isfinite() else float("inf"))
    except Exception as error:
        # a compiler or a driver may raise anything
        return {"status": FAILED, "detail": _said(error)}
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

    tensors = {
        "q": normal(batch, queries, heads, width),
        **{name: normal(batch, keys, heads, width) for name in ("k", "v")},
        **{name: normal(heads, keys, keys, std=keys**-0.5) for name in ("s1", "s2")},
    }
    if activation == "gated":
        tensors |= {"gate_q": normal(batch, queries, heads, width), "gate_k": normal(batch, keys, heads, width)}
    output = ops.operator_attention(
        **tensors,  # type: ignore[arg-type]
        activation=activation,  # type: ignore[arg-type]
        scale=width**-0.5,
        backend=backend,
    )
    gradients = torch.autograd.grad(output.square().mean(), list(tensors.values()))
    return [output.detach(), *gradients]


def _data(data_dir: Path | None) -> Facts:
    """Each folder that is looked in, with the sets of the catalogue that it has."""
    from toa.data import (
        ANOMALY_SETS,
        CLASSIFICATION_SETS,
        DATASETS,
        data_folders,
        locate,
        locate_anomaly,
        locate_classification,
    )
    from toa.data.location import DatasetNotFoundError

    places: dict[str, Callable[[str], Path]] = {}
    places |= dict.fromkeys(DATASETS, lambda name: locate(DATASETS[name], data_dir))
    places |= dict.fromkeys(ANOMALY_SETS, lambda name: locate_anomaly(ANOMALY_SETS[name], data_dir)[1][0])
    places |= dict.fromkeys(
        CLASSIFICATION_SETS, lambda name: locate_classification(CLASSIFICATION_SETS[name], data_dir)[0]
    )
    folders = data_folders(data_dir)
    found: Facts = {_short(folder): [] for folder in folders}
    missing = 0
    for name, place in places.items():
        try:
            path = place(name)
        except DatasetNotFoundError:
            missing += 1
            continue
        home = next((folder for folder in folders if path.is_relative_to(folder)), None)
        found.setdefault("with aeon" if home is None else _short(home), []).append(name)
    for folder in folders:
        if not folder.is_dir():
            found[_short(folder)] = "no such folder"
    return found | {"not here": f"{missing} of {len(places)} sets; `toa data list` names them all"}
