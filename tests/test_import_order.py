import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import toa
from tests.support import ROOT

PACKAGE = ROOT / "src" / "toa"
# the packages beside it, from left to right: each may import those before it
BESIDE = {"toa_paper": ROOT / "src" / "toa_paper", "toa_bench": ROOT / "benchmarks" / "toa_bench"}

_TRAINING = {"ops", "nn", "models", "data"}
# folders that each folder may import, besides itself and the private modules; `models` import `nn`, never `ops`
MAY_IMPORT: dict[str, set[str]] = {
    "ops": set(),
    "data": set(),
    "nn": {"ops"},
    "models": {"nn"},
    "training": _TRAINING,
    "experiments": {*_TRAINING, "training"},
    "estimators": {*_TRAINING, "training"},
    # pages of estimators are above them
    "report": {*_TRAINING, "training", "experiments", "estimators"},
    "integrations": {*_TRAINING, "training", "estimators", "experiments"},
}
MAY_IMPORT["cli"] = MAY_IMPORT["__main__"] = {*MAY_IMPORT, "cli"}
# what is reached against the order, by a late import or an attribute of the package: pages and exports of estimators
REACHED_LATE = {
    "estimators/classifier.py": {"toa.report.page"},
    "estimators/detector.py": {"toa.report.page"},
    "estimators/forecaster.py": {"toa.integrations.export_onnx", "toa.report.page"},
}
# third-party packages that each private module may import; private modules import no folder
PRIVATE: dict[str, set[str]] = {
    "__init__": set(),
    "_checks": {"torch"},
    "_console": {"rich"},
    "_files": {"torch"},
    "_limits": set(),
    "_plugins": set(),
    "_registry": set(),
    "_threads": {"threadpoolctl"},
}
# third-party packages that only these folders and private modules may import
ONLY_IN = {
    "click": {"cli"},
    "huggingface_hub": {"estimators"},
    "matplotlib": {"cli", "report"},
    "neuralforecast": {"integrations"},
    "ray": {"experiments", "integrations"},
    "requests": {"data"},
    "rich": {"_console", "cli"},
    "triton": {"ops"},
    "typer": {"cli"},
}


def imported(tree: ast.AST, module: list[str]) -> Iterator[str]:
    """Dotted names that a module of the package `module` imports, relative ones resolved; also by `import_module`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = module[: len(module) - node.level + 1] if node.level else []
            base = base + (node.module.split(".") if node.module else [])
            # a name may be a module: `from toa import ops`
            yield from (".".join([*base, alias.name]) for alias in node.names)
        elif isinstance(node, ast.Call) and dotted(node.func).endswith("import_module"):
            yield from (str(name.value) for name in node.args[:1] if isinstance(name, ast.Constant))


def dotted(node: ast.AST) -> str:
    """A name with its attributes, `toa.report.write_results`; "" for another expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return ""


def reached_by_attribute(tree: ast.AST) -> set[str]:
    """Dotted names that start at the package, `toa.report.write_results`, each in its full length."""
    names = {dotted(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names = {name for name in names if name.startswith("toa.")}
    return {name for name in names if not any(other.startswith(f"{name}.") for other in names)}


def folder_of(path: Path) -> str:
    """Folder, or private module, of a file under the package."""
    return path.parts[0].removesuffix(".py")


def trees(package: Path) -> Iterator[tuple[Path, ast.Module]]:
    """Each file of a package with its content."""
    for path in sorted(package.rglob("*.py")):
        yield path.relative_to(package), ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imports_of(package: Path, name: str = "toa") -> dict[Path, set[str]]:
    """Dotted names that each file imports, also inside functions, or reaches by attributes of the package."""
    found = {}
    for place, tree in trees(package):
        if place == Path("__init__.py"):
            # its functions load folders on first use
            tree.body = [node for node in tree.body if not isinstance(node, ast.FunctionDef)]
        late = REACHED_LATE.get(place.as_posix(), set()) if name == "toa" else set()
        found[place] = (set(imported(tree, [name, *place.parts[:-1]])) | reached_by_attribute(tree)) - late
    return found


def wrong_imports(package: Path) -> list[str]:
    """Complaints about imports against the order of folders, or of a package that belongs elsewhere."""
    wrong = []
    for place, names in imports_of(package).items():
        folder = folder_of(place)
        if folder not in MAY_IMPORT and folder not in PRIVATE:
            wrong.append(f"{place}: {folder!r} is missing in the order of imports")
            continue
        parts = [name.split(".") for name in names]
        inside = {part[1] for part in parts if part[0] == "toa" and len(part) > 1}
        outside = {part[0] for part in parts} - {"toa"} - sys.stdlib_module_names
        folders = {name for name in inside if not name.startswith("_") and name != folder}
        # public names of the package itself, such as `toa.Forecaster`, are in these folders
        folders = {toa._NAMES.get(name, name) for name in folders} - {folder}
        bad = folders - MAY_IMPORT.get(folder, set())
        # it never imports the packages that build on it
        bad |= outside & BESIDE.keys()
        bad |= {name for name in outside if folder not in ONLY_IN.get(name, {folder})}
        if folder in PRIVATE:
            bad |= outside - PRIVATE[folder]
        wrong += [f"{place}: {folder} may not import {name}" for name in sorted(bad)]
    return wrong


def reached(package: Path, folder: str) -> set[str]:
    """Third-party packages that files of a folder import, directly or through other modules of the package."""
    found = imports_of(package)
    modules = {".".join(("toa", *path.with_suffix("").parts)).removesuffix(".__init__"): path for path in found}
    todo = [path for path in found if folder_of(path) == folder]
    seen = set(todo)
    outside = set()
    while todo:
        for name in found[todo.pop()]:
            parts = name.split(".")
            if parts[0] != "toa":
                outside.add(parts[0])
            # a name of a module, or a module; importing it runs the packages around it
            for end in range(1, len(parts) + 1):
                path = modules.get(".".join(parts[:end]))
                if path is not None and path not in seen:
                    seen.add(path)
                    todo.append(path)
    return outside


def test_imports_follow_the_order_of_the_folders() -> None:
    assert wrong_imports(PACKAGE) == []


@pytest.mark.parametrize("folder", ["ops", "nn", "models", "data", "training", "estimators", "integrations"])
def test_the_library_never_reaches_the_command_line(folder) -> None:
    found = reached(PACKAGE, folder)
    assert "torch" in found
    assert found & {"typer", "click"} == set()


def test_a_package_reached_through_a_private_module_is_found(tmp_path) -> None:
    files = {
        "__init__.py": "",
        "estimators/__init__.py": "from toa.estimators.base import x",
        "estimators/base.py": "def f():\n    from toa._terminal import bar",
        "_terminal.py": "import typer",
    }
    assert reached(plant(tmp_path, files), "estimators") == {"typer"}


def test_the_order_has_no_cycle() -> None:
    done: set[str] = set()
    left = {folder: set(allowed) - {folder, "cli", "__main__"} for folder, allowed in MAY_IMPORT.items()}
    while left:
        ready = {folder for folder, allowed in left.items() if allowed <= done}
        assert ready, f"these import one another: {sorted(left)}"
        done |= ready
        left = {folder: allowed for folder, allowed in left.items() if folder not in ready}


def test_what_is_reached_against_the_order_is_still_reached() -> None:
    """A name that is no longer reached late must leave the list."""
    found = {
        place.as_posix(): reached_by_attribute(tree) | set(imported(tree, ["toa", *place.parts[:-1]]))
        for place, tree in trees(PACKAGE)
    }
    assert {place: names - found[place] for place, names in REACHED_LATE.items() if names - found[place]} == {}


@pytest.mark.parametrize("name", BESIDE)
def test_a_package_beside_the_library_imports_only_packages_left_of_it(name) -> None:
    right = [*BESIDE][[*BESIDE].index(name) + 1 :]
    imports = imports_of(BESIDE[name], name)
    assert imports
    wrong = {
        str(place): sorted(other for other in names if other.split(".")[0] in right) for place, names in imports.items()
    }
    assert {place: names for place, names in wrong.items() if names} == {}


PLANTED = {
    "ops/x.py": ("from toa.nn import AttentionSpec", "ops may not import nn"),
    "ops/deep/er/x.py": ("from ....nn import y", "ops may not import nn"),
    "nn/x.py": ("import toa.models.patchtst", "nn may not import models"),
    "nn/y.py": ("def f():\n    from toa import data", "nn may not import data"),
    "models/x.py": ("from toa import ops, nn", "models may not import ops"),
    "models/y.py": ("from ..training import loop", "models may not import training"),
    "models/z.py": ("from .. import report", "models may not import report"),
    "data/x.py": ("import toa.ops as o", "data may not import ops"),
    "training/x.py": ("import os, toa.experiments", "training may not import experiments"),
    "training/y.py": ("from toa.report import z", "training may not import report"),
    "training/p.py": ("from toa_paper.theory import z", "training may not import toa_paper"),
    "cli/p.py": ("def f():\n    import toa_paper.cli", "cli may not import toa_paper"),
    "cli/q.py": ("from importlib import import_module\nimport_module('toa_bench.cli')", "cli may not import toa_bench"),
    "estimators/a.py": ("import toa\ndef f():\n    toa.report.page.write()", "estimators may not import report"),
    "estimators/b.py": ("import toa\nx = toa.integrations", "estimators may not import integrations"),
    "training/b.py": ("import toa\nx = toa.Forecaster(3)", "training may not import estimators"),
    "experiments/x.py": ("from toa.report import z", "experiments may not import report"),
    "estimators/x.py": ("from toa.experiments import z", "estimators may not import experiments"),
    "integrations/x.py": ("from toa import cli", "integrations may not import cli"),
    "report/x.py": ("import toa.cli", "report may not import cli"),
    "_checks.py": ("from toa.ops import z", "_checks may not import ops"),
    "__init__.py": ("from toa import ops", "__init__ may not import ops"),
    "corner/x.py": ("import os", "'corner' is missing in the order of imports"),
    "_corner.py": ("import os", "'_corner' is missing in the order of imports"),
    "_console.py": ("import typer", "_console may not import typer"),
    "_limits.py": ("def f():\n    import torch", "_limits may not import torch"),
    "estimators/y.py": ("from typer import Option", "estimators may not import typer"),
    "training/z.py": ("import matplotlib.pyplot as plt", "training may not import matplotlib"),
}
FINE = {
    "__init__.py": "def __getattr__(name):\n    import toa.ops",
    "_registry.py": "import toa._checks",
    "ops/__init__.py": "from toa.ops.api import x\nfrom . import api\nfrom .._checks import y\nimport torch",
    "nn/x.py": "from toa import __version__, ops\nfrom ..ops import y\nimport toa\nx = toa.__version__",
    "report/x.py": "import toa\nfrom toa import experiments\nx = toa.experiments.run.z",
    "cli.py": "from toa import estimators, experiments, integrations, report",
    "__main__.py": "from toa.cli import app",
}


def plant(folder: Path, files: dict[str, str]) -> Path:
    for name, source in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return folder


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_wrong_import_is_caught(tmp_path, name) -> None:
    source, complaint = PLANTED[name]
    assert wrong_imports(plant(tmp_path, {**FINE, name: source})) == [f"{name}: {complaint}"]


def test_right_imports_are_not_complained_about(tmp_path) -> None:
    assert wrong_imports(plant(tmp_path, FINE)) == []
