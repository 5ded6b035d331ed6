"""The wheel holds everything that a user needs: it is built, installed outside the repository and run there."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support import ROOT

pytestmark = pytest.mark.slow


def run(*words: object, cwd: Path) -> str:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment = {**kept, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [str(word) for word in words]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(source: Path, folder: Path) -> Path:
    """The wheel of a source tree."""
    # without hatchling here, pip fetches it
    isolation = ["--no-build-isolation"] if find_spec("hatchling") else []
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", *isolation, "-w", folder, source, cwd=folder)
    (path,) = folder.glob("toa-*.whl")
    return path


def install(wheel: Path, folder: Path) -> Path:
    """Folder of the programs of a fresh environment with a wheel; the dependencies are those of this one."""
    venv.create(folder, with_pip=False)
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    run(sys.executable, "-m", "pip", "--python", programs / "python", "install", "--no-deps", "-q", wheel, cwd=folder)
    scheme = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", "venv", vars=scheme))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return programs


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def commands(wheel, tmp_path_factory) -> Path:
    return install(wheel, tmp_path_factory.mktemp("fresh"))


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    """Folder of the programs of a fresh environment with the library alone: neither toa_paper nor toa_bench."""
    source = tmp_path_factory.mktemp("library")
    shutil.copytree(ROOT / "src" / "toa", source / "src" / "toa", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    project = (ROOT / "pyproject.toml").read_text()
    # without the tables of their entry points, and without their folders
    project = re.sub(r'\[project\.entry-points\."toa\.\w+"\]\n(\w+ = .*\n)+', "", project)
    project = re.sub(r"^packages = .*$", 'packages = ["src/toa"]', project, flags=re.MULTILINE)
    assert "entry-points" not in project
    (source / "pyproject.toml").write_text(project)
    return install(build(source, tmp_path_factory.mktemp("library-wheel")), tmp_path_factory.mktemp("library-fresh"))


def test_the_wheel_holds_all_files_of_the_package(wheel):
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if name.startswith(("toa/", "toa_paper/"))}
        metadata = next(name for name in archive.namelist() if name.endswith("METADATA"))
        text = archive.read(metadata).decode()
    source = ROOT / "src"
    files = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    assert shipped == {name for name in files if "__pycache__" not in name}
    assert "Requires-Python: <3.15,>=3.11" in text


def test_the_installed_package_is_the_one_that_runs(commands, tmp_path):
    where = run(commands / "python", "-c", "import toa; print(toa.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(commands.parent)


def test_commands_run_outside_the_repository(commands, tmp_path):
    assert "forecast" in run(commands / "toa", "--help", cwd=tmp_path)
    assert "torch" in run(commands / "toa", "doctor", cwd=tmp_path)
    lines = ["time,load", *(f"2026-01-{1 + k // 24:02}T{k % 24:02}:00,{(k % 24) / 10 + k / 100}" for k in range(200))]
    (tmp_path / "own.csv").write_text("\n".join(lines) + "\n")
    quick = ("--horizon", 6, "--lookback", 24, "--epochs", 1, "--backbone", "dlinear", "--device", "cpu")
    run(commands / "toa", "forecast", "own.csv", *quick, cwd=tmp_path)
    assert (tmp_path / "forecast.csv").read_text().startswith("time,load")


def test_the_demo_runs_outside_the_repository(commands, tmp_path):
    run(commands / "toa", "demo", "--steps", 2, "--device", "cpu", cwd=tmp_path)
    assert (tmp_path / "runs" / "demo" / "index.html").stat().st_size > 10_000


# tests of the other packages, of records, pages and the repository; all others are those of the library
OTHERS = {
    "paper",
    "benchmarks",
    "campaign",
    "test_count_trace.py",
    "test_docs.py",
    "test_documented_commands.py",
    "test_duplicates.py",
    "test_import_order.py",
    "test_language.py",
    "test_package.py",
    "test_page_tables.py",
    "test_readme.py",
    "test_results.py",
    "test_sizes.py",
    "test_stored_configs.py",
    "test_stored_runs.py",
    "test_wheel.py",
}


def test_the_library_alone_has_its_commands_and_modules_and_no_others(library, tmp_path):
    assert run(library / "python", "-c", "import toa, sys; print(toa.__file__)", cwd=tmp_path).startswith(
        str(library.parent)
    )
    check = "from importlib.util import find_spec; print(find_spec('toa_paper'), find_spec('toa_bench'))"
    assert run(library / "python", "-c", check, cwd=tmp_path).split() == ["None", "None"]
    text = run(library / "toa", "--help", cwd=tmp_path)
    assert re.findall(r"^│ (\w+)  ", text, flags=re.MULTILINE) == [
        *("run", "compare", "watch", "forecast", "detect", "classify", "doctor", "explain", "data")
    ]
    tasks = "from toa.training import TASKS; print(*TASKS)"
    assert run(library / "python", "-c", tasks, cwd=tmp_path).split() == ["anomaly", "classify", "forecast"]
    # modules of extras that are not installed here raise ImportError with the name of the extra
    modules = """
import importlib, pkgutil, toa
for module in pkgutil.walk_packages(toa.__path__, "toa."):
    if module.name != "toa.__main__":
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            assert "install toa[" in str(error), module.name
"""
    run(library / "python", "-c", modules, cwd=tmp_path)


def test_the_library_alone_passes_its_tests(library):
    ignored = [f"--ignore=tests/{name}" for name in sorted(OTHERS)]
    assert all((ROOT / "tests" / name).exists() for name in OTHERS)
    done = run(
        library / "python", "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", *ignored, "tests", cwd=ROOT
    )
    assert re.search(r"\d{4,} passed", done), done[-500:]
