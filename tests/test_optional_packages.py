"""Test modules can be collected where packages of the extras are not installed, as on a machine with a GPU."""

import ast
import tomllib
from collections.abc import Iterator

from packaging.requirements import Requirement

from tests.support import ROOT

TESTS = ROOT / "tests"
# what every run of the tests needs, and runs of the kernels, whose modules are skipped otherwise
NEEDED = {"pytest", "hypothesis", "beartype", "triton"}


def optional_packages() -> set[str]:
    """Packages that only extras require."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {Requirement(line).name for lines in project["optional-dependencies"].values() for line in lines}
    required = {Requirement(line).name for line in project["dependencies"]}
    return extras - required - NEEDED


def is_skip(statement: ast.stmt) -> bool:
    """Whether it is `importorskip(...)`, or `NAME = pytest.importorskip(...)`."""
    return isinstance(statement, ast.Expr | ast.Assign) and "importorskip" in ast.unparse(statement)


def imported_at_once(tree: ast.Module) -> Iterator[str]:
    """Packages that are imported when the module is, up to the first statement that skips it."""
    for statement in tree.body:
        if is_skip(statement):
            return
        if isinstance(statement, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.module:
            yield statement.module.partition(".")[0]


def test_no_test_module_imports_an_optional_package_at_once() -> None:
    optional = optional_packages()
    assert {"polars", "pyarrow", "onnxruntime"} <= optional
    wrong = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in TESTS.rglob("*.py")
        for name in imported_at_once(ast.parse(path.read_text()))
        if name in optional
    }
    assert wrong == set()


def test_an_import_after_a_skip_is_allowed() -> None:
    text = "import os\nimport polars as pl\n"
    assert list(imported_at_once(ast.parse(text))) == ["os", "polars"]
    skipped = 'import os\npl = pytest.importorskip("polars")\nimport pyarrow\n'
    assert list(imported_at_once(ast.parse(skipped))) == ["os"]
