"""What `make demo` and `make test` install and print, with programs in place of Python and toa."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")

# stands for Python: makes an environment of programs that print what they are asked to do
PYTHON = """\
#!/bin/sh
case "$*" in
  "-m venv "*)
    mkdir -p .venv/bin
    cp "$0" .venv/bin/python
    for name in toa ruff mypy; do
      printf '#!/bin/sh\\necho "%s ran"; exit ${TOOL_CODE:-0}\\n' "$name" > .venv/bin/$name
      chmod +x .venv/bin/$name
    done ;;
  "-m pip "*) echo "WARNING: pip has a notice"; echo "$*" >> asked; exit ${PIP_CODE:-0} ;;
  "-m pytest "*) echo "pytest ran" ;;
esac
"""


@pytest.fixture
def project(tmp_path) -> Path:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    return tmp_path


def make(project: Path, target: str, **variables: str) -> tuple[int, str]:
    # a make around the tests would share its jobs
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", target, f"PYTHON={project}/python"]
    done = subprocess.run(
        command,
        cwd=project,
        env={**environment, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize(("target", "programs"), [("demo", ["toa"]), ("test", ["ruff", "mypy", "pytest"])])
def test_pip_is_quiet_and_the_duration_is_the_last_line(project, target, programs):
    code, printed = make(project, target)
    assert code == 0, printed
    assert "WARNING" not in printed
    assert "WARNING: pip has a notice" in (project / ".venv" / "pip.log").read_text()
    assert re.search(r"(?m)^the installation took \d+ s$", printed)
    for program in programs:
        assert f"{program} ran" in printed
    assert re.fullmatch(rf"make {target} took \d+ s", printed.splitlines()[-1])


@pytest.mark.parametrize("target", ["demo", "test"])
def test_a_failed_target_prints_its_duration_too(project, target):
    code, printed = make(project, target, TOOL_CODE="3")
    assert code != 0
    assert re.search(rf"(?m)^make {target} failed after \d+ s$", printed)


def test_the_output_of_pip_is_shown_if_it_fails_and_the_next_call_installs_again(project):
    code, printed = make(project, "demo", PIP_CODE="1")
    assert code != 0
    assert "WARNING: pip has a notice" in printed
    assert re.search(r"(?m)^the installation failed after \d+ s$", printed)
    assert "toa ran" not in printed
    assert "toa ran" in make(project, "demo")[1]


def test_every_installation_has_the_versions_of_the_constraints(project):
    make(project, "docs")
    asked = (project / "asked").read_text().splitlines()
    expected = "-m pip install --constraint constraints.txt --editable .[{}]"
    assert asked == [expected.format(extra) for extra in ("dev", "docs")]


def test_new_constraints_install_again(project):
    make(project, "demo")
    assert "installation" not in make(project, "demo")[1]
    os.utime(project / "constraints.txt", (2**32, 2**32))
    assert "installation" in make(project, "demo")[1]


def test_no_line_of_the_makefile_calls_pip_in_another_way():
    lines = [line for line in (ROOT / "Makefile").read_text().splitlines() if "pip install" in line]
    assert [line.split(" = ")[0] for line in lines] == ["install"]
