import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import ROOT

PACKAGE = ROOT / "src" / "toa"

_TASKS = {"ops", "nn", "models", "data"}
# what each room may import besides itself and the private modules; `models` go through `nn`, never to `ops`
MAY_IMPORT: dict[str, set[str]] = {
    "ops": set(),
    "data": set(),
    "nn": {"ops"},
    "models": {"nn"},
    "tasks": _TASKS,
    "theory": {"ops", "nn", "data"},
    "experiments": {*_TASKS, "tasks"},
    "report": {*_TASKS, "tasks", "experiments", "theory"},
    "estimators": {*_TASKS, "tasks"},
    "integrations": {*_TASKS, "tasks", "estimators"},
}
MAY_IMPORT["cli"] = MAY_IMPORT["__main__"] = {*MAY_IMPORT, "cli"}


def imported(tree: ast.AST, module: list[str]) -> Iterator[str]:
    """Dotted names that a module of the package `module` imports, relative ones resolved."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = module[: len(module) - node.level + 1] if node.level else []
            base = base + (node.module.split(".") if node.module else [])
            # a name may be a module: `from toa import ops`
            yield from (".".join([*base, alias.name]) for alias in node.names)


def rooms(names: Iterator[str]) -> set[str]:
    parts = (name.split(".") for name in names)
    return {part[1] for part in parts if part[0] == "toa" and len(part) > 1}


def wrong_arrows(package: Path) -> list[str]:
    wrong = []
    for path in sorted(package.rglob("*.py")):
        place = path.relative_to(package)
        room = place.parts[0].removesuffix(".py")
        tree = ast.parse(path.read_text())
        if place == Path("__init__.py"):
            # inside functions it may load rooms on first use
            tree.body = [node for node in tree.body if not isinstance(node, ast.FunctionDef)]
        found = rooms(imported(tree, ["toa", *place.parts[:-1]]))
        found = {name for name in found if not name.startswith("_") and name != room}
        if room.startswith("_") and room != "__main__":
            allowed: set[str] = set()
        elif room not in MAY_IMPORT:
            wrong.append(f"{place}: room {room!r} has no place in the order of imports")
            continue
        else:
            allowed = MAY_IMPORT[room]
        wrong += [f"{place}: {room} may not import {name}" for name in sorted(found - allowed)]
    return wrong


def test_imports_follow_the_order_of_the_rooms() -> None:
    assert wrong_arrows(PACKAGE) == []


def test_the_order_has_no_cycle() -> None:
    done: set[str] = set()
    left = {room: set(allowed) - {room, "cli", "__main__"} for room, allowed in MAY_IMPORT.items()}
    while left:
        ready = {room for room, allowed in left.items() if allowed <= done}
        assert ready, f"these import one another: {sorted(left)}"
        done |= ready
        left = {room: allowed for room, allowed in left.items() if room not in ready}


PLANTED = {
    "ops/x.py": ("from toa.nn import AttentionSpec", "ops may not import nn"),
    "ops/deep/er/x.py": ("from ....nn import y", "ops may not import nn"),
    "nn/x.py": ("import toa.models.patchtst", "nn may not import models"),
    "nn/y.py": ("def f():\n    from toa import data", "nn may not import data"),
    "models/x.py": ("from toa import ops, nn", "models may not import ops"),
    "models/y.py": ("from ..tasks import training", "models may not import tasks"),
    "models/z.py": ("from .. import theory", "models may not import theory"),
    "data/x.py": ("import toa.ops as o", "data may not import ops"),
    "tasks/x.py": ("import os, toa.experiments", "tasks may not import experiments"),
    "tasks/y.py": ("from toa.theory import z", "tasks may not import theory"),
    "theory/x.py": ("from toa.models import z", "theory may not import models"),
    "experiments/x.py": ("from toa.report import z", "experiments may not import report"),
    "estimators/x.py": ("from toa.experiments import z", "estimators may not import experiments"),
    "integrations/x.py": ("from toa import cli", "integrations may not import cli"),
    "report/x.py": ("import toa.cli", "report may not import cli"),
    "_checks.py": ("from toa.ops import z", "_checks may not import ops"),
    "__init__.py": ("from toa import ops", "__init__ may not import ops"),
    "corner/x.py": ("import os", "room 'corner' has no place in the order of imports"),
}
FINE = {
    "__init__.py": "def __getattr__(name):\n    import toa.ops",
    "_registry.py": "import toa._checks",
    "ops/__init__.py": "from toa.ops.api import x\nfrom . import api\nfrom .._checks import y\nimport torch",
    "nn/x.py": "from toa import __version__, ops\nfrom ..ops import y\nimport toa",
    "theory/x.py": "from toa import data, nn, ops",
    "report/x.py": "from toa import experiments, theory",
    "cli.py": "from toa import estimators, experiments, integrations, report, theory",
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
    assert wrong_arrows(plant(tmp_path, {**FINE, name: source})) == [f"{name}: {complaint}"]


def test_right_imports_are_not_complained_about(tmp_path) -> None:
    assert wrong_arrows(plant(tmp_path, FINE)) == []
