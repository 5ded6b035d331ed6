"""The wheel holds everything that a user needs: it is built, installed outside the repository and run there."""

import os
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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # without hatchling here, pip fetches it
    isolation = ["--no-build-isolation"] if find_spec("hatchling") else []
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", *isolation, "-w", folder, ROOT, cwd=folder)
    (path,) = folder.glob("toa-*.whl")
    return path


@pytest.fixture(scope="module")
def commands(wheel, tmp_path_factory) -> Path:
    """Folder of the programs of a fresh environment with the wheel; the dependencies are those of this one."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, with_pip=False)
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    run(sys.executable, "-m", "pip", "--python", programs / "python", "install", "--no-deps", "-q", wheel, cwd=folder)
    scheme = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", "venv", vars=scheme))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return programs


def test_the_wheel_holds_all_files_of_the_package(wheel):
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if name.startswith("toa/")}
        metadata = next(name for name in archive.namelist() if name.endswith("METADATA"))
        text = archive.read(metadata).decode()
    source = ROOT / "src"
    files = {path.relative_to(source).as_posix() for path in (source / "toa").rglob("*") if path.is_file()}
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
