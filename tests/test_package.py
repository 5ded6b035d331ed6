import ast
import importlib
import importlib.metadata
import inspect
import json
import re
import subprocess
import sys
import tomllib
from importlib.resources import files
from typing import Any

import pytest

import toa
import toa.nn
import toa.ops
from tests.support import ROOT

SOURCES = sorted((ROOT / "src").rglob("*.py"))
PICKLES = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_toa_does_not_import_torch_or_any_folder() -> None:
    loaded = run("import sys, toa; print(*(m for m in sys.modules if m == 'torch' or m.startswith('toa')))")
    assert loaded.split() == ["toa"]


def test_folders_load_on_first_use() -> None:
    assert run("import toa; print(toa.ops.operator_attention.__name__)") == "operator_attention"
    assert {"ops", "nn", "__version__"} <= set(dir(toa))
    with pytest.raises(AttributeError, match="module 'toa' has no attribute 'opps'"):
        _ = toa.opps


def test_types_are_shipped() -> None:
    assert files("toa").joinpath("py.typed").is_file()


def test_version_is_the_installed_one_and_has_one_source() -> None:
    assert toa.__version__ == importlib.metadata.version("toa")
    assert re.fullmatch(r"\d+\.\d+\.\d+([a-z.]+\d+)?", toa.__version__)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" in project["project"]["dynamic"]
    assert f'__version__ = "{toa.__version__}"' in (ROOT / project["tool"]["hatch"]["version"]["path"]).read_text()
    assert f"\nversion: {toa.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_every_supported_python_is_named_and_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = [f"3.{minor}" for minor in range(11, 15)]
    assert project["requires-python"] == ">=3.11,<3.15"
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert named == versions
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text()
    assert f"python: {json.dumps(versions)}" in workflow
    assert "(3, 11) <= v <= (3, 14)" in (ROOT / "Makefile").read_text()


def test_every_dependency_is_bounded_and_every_extra_has_a_reason() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    project = tomllib.loads(text)["project"]
    extras = project["optional-dependencies"]
    for line in (*project["dependencies"], *(line for lines in extras.values() for line in lines)):
        assert re.fullmatch(r"[\w-]+(\[\w+\])?>=[\d.]+,<[\d.]+(; .+)?", line), line
    for name in extras.keys() - {"dev"}:
        assert re.search(rf"(?m)^# .+\n{name} = \[", text), f"the extra {name} needs a comment with its reason above it"


def test_calls_in_the_examples_of_modules_have_arguments_that_exist() -> None:
    checked = 0
    wrong = []
    # without integrations, whose packages take long to import
    for path in (path for path in SOURCES if path.parent.name != "integrations"):
        documented = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        for line in re.findall(r"^ {4,}(\w.*\(.*)$", documented, re.MULTILINE):
            try:
                calls = [node for node in ast.walk(ast.parse(line)) if isinstance(node, ast.Call)]
            except SyntaxError:
                continue
            module = importlib.import_module(".".join(path.relative_to(ROOT / "src").with_suffix("").parts))
            for call in calls:
                thing: Any = module
                for name in ast.unparse(call.func).split("."):
                    thing = getattr(thing, name, None)
                if inspect.isfunction(thing) or inspect.ismethod(thing) or inspect.isclass(thing):
                    names = {one.arg for one in call.keywords} - {None}
                    known = inspect.signature(thing).parameters
                    free = any(one.kind is one.VAR_KEYWORD for one in known.values())
                    wrong += [] if free or names <= set(known) else [f"{path.name}: {line}"]
                    checked += 1
    assert wrong == []
    assert checked > 30


@pytest.mark.parametrize("package", [toa.ops, toa.nn], ids=lambda package: package.__name__)
def test_public_names_exist_and_are_documented(package) -> None:
    assert package.__doc__
    missing = []
    for name in package.__all__:
        thing = getattr(package, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            # a dataclass without a docstring gets its signature as one
            if not thing.__doc__ or thing.__doc__.startswith(f"{name}("):
                missing.append(name)
            methods = vars(thing).items() if inspect.isclass(thing) else ()
            missing += [
                f"{name}.{method}"
                for method, value in methods
                if inspect.isfunction(value) and not method.startswith("_") and not value.__doc__
            ]
    assert missing == []


@pytest.mark.parametrize("package", [toa.ops, toa.nn], ids=lambda package: package.__name__)
def test_public_names_are_listed_once_and_in_order(package) -> None:
    assert len(set(package.__all__)) == len(package.__all__)
    constants = [name for name in package.__all__ if name.isupper()]
    classes = [name for name in package.__all__ if name[0].isupper() and not name.isupper()]
    functions = [name for name in package.__all__ if name[0].islower()]
    assert package.__all__ == sorted(constants) + sorted(classes) + sorted(functions)


def test_a_public_name_belongs_to_one_package_and_no_other_module_defines_it() -> None:
    trees = {path.relative_to(ROOT / "src"): ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES}
    public: dict[str, list[str]] = {}
    defined: dict[str, list[str]] = {}
    for path, tree in trees.items():
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            if path.name == "__init__.py" and len(path.parts) > 2 and names == ["__all__"]:
                for name in ast.literal_eval(node.value):  # type: ignore[attr-defined]
                    public.setdefault(name, []).append(str(path.parent))
            # functions of the commands have the names of the commands
            if path.parts[1] != "cli" or isinstance(node, ast.ClassDef):
                names += [node.name] if isinstance(node, ast.ClassDef | ast.FunctionDef) else []
            for name in names:
                defined.setdefault(name, []).append(str(path))
    assert len(public) > 200
    assert {name: places for name, places in public.items() if len(places) > 1} == {}
    assert {name: defined[name] for name in public if len(set(defined.get(name, []))) > 1} == {}


def test_nothing_pickles() -> None:
    assert SOURCES
    found = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [f"{path.relative_to(ROOT)}: {name}" for name in names if name.split(".")[0] in PICKLES]
    assert found == []
