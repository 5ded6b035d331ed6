"""The rows of `make test-machines` are what their names say, and failures are counted."""

import itertools
import json
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import shuffled
from tests.machines import Row, machines, main, run_row
from tests.support import busy_core, message

# pytest starts several times as fast without the plugins that are installed
NO_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
NUMPY = 'import json, numpy; print(json.dumps(numpy.show_config(mode="dicts")["SIMD Extensions"].get("found", [])))'


def row_named(name: str) -> Row:
    return next(row for row in machines(7) if row.name == name)


def test_there_are_five_rows_that_change_one_thing_each():
    assert [row.name for row in machines()] == [
        "numpy-reduced",
        "torch-default",
        "torch-avx2",
        "random-order",
        "busy-core",
    ]
    assert [row.name for row in machines() if row.busy] == ["busy-core"]
    assert row_named("random-order").variables["TOA_TEST_ORDER"] == "7"


def test_numpy_is_reduced_to_its_baseline():
    environment = {**os.environ, **row_named("numpy-reduced").variables}
    done = subprocess.run([sys.executable, "-W", "error", "-c", NUMPY], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


def test_a_row_sets_its_variables_and_counts_its_tests(tmp_path):
    (tmp_path / "test_row.py").write_text(
        "import os, pytest\n"
        "def test_variable(): assert os.environ['SOME_VARIABLE'] == 'some value'\n"
        "def test_wrong(): assert 1 == 2\n"
        "def test_skipped(): pytest.skip('not here')\n"
    )
    row = Row(name="some", about="", variables={"SOME_VARIABLE": "some value", **NO_PLUGINS})
    outcome = run_row(row, [str(tmp_path)], tmp_path / "logs")
    assert (outcome.tests, outcome.passed, outcome.skipped, outcome.exit_code) == (3, 1, 1, 1)
    assert [test.rpartition("::")[2] for test in outcome.failures] == ["test_wrong"]
    assert "assert 1 == 2" in (tmp_path / "logs" / "some.log").read_text()


def test_a_run_that_counts_nothing_raises(tmp_path):
    with pytest.raises(RuntimeError, match=message("pytest must count the tests of some, got none; read", "some.log")):
        run_row(Row(name="some", about="", variables=NO_PLUGINS), ["--no-such-option", str(tmp_path)], tmp_path)


def test_an_unknown_row_raises():
    with pytest.raises(ValueError, match=message("unknown row 'numpy'", "known: numpy-reduced")):
        main(["numpy"])


def test_a_random_order_repeats_and_keeps_the_tests_of_a_file_together():
    items: list[Any] = [SimpleNamespace(path=f"file {place // 5}", place=place) for place in range(50)]

    def order(seed: int) -> list[int]:
        mixed: list[Any] = shuffled(items, seed)
        return [item.place for item in mixed]

    orders = [order(seed) for seed in (1, 1, 2)]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    assert sorted(orders[0]) == list(range(50))
    files = [place // 5 for place in orders[0]]
    assert sum(before != after for before, after in itertools.pairwise(files)) == 9


def test_the_busy_process_ends_with_its_block():
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def watched(*arguments, **options):
        started.append(start(*arguments, **options))
        return started[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", watched)
        with busy_core():
            assert started[0].poll() is None
    assert started[0].poll() is not None
