"""The script that counts how many functions, files and folders one command visits."""

import sys
from types import FunctionType

import pytest

from tests.support import load_script


@pytest.fixture
def count_trace():
    return load_script("benchmarks/count_trace.py")


def make_function(source: str, file: str, name: str, names: dict[str, object]) -> FunctionType:
    exec(compile(source, file, "exec"), names)
    function = names[name]
    assert isinstance(function, FunctionType)
    return function


def test_functions_files_and_changes_of_folder_are_counted(count_trace):
    package = count_trace.PACKAGE
    names: dict[str, object] = {}
    make_function("def inner():\n    return [x for x in (1, 2)]", str(package / "ops" / "a.py"), "inner", names)
    make_function("def near():\n    return inner()", str(package / "ops" / "b.py"), "near", names)
    call = make_function("def far():\n    near()\n    near()\n    inner()", str(package / "nn" / "c.py"), "far", names)
    before = sys.getprofile()
    trace = count_trace.traced(call)
    assert sys.getprofile() == before
    assert trace.functions == {("nn/c.py", "far"), ("ops/b.py", "near"), ("ops/a.py", "inner")}
    assert trace.files == {"nn/c.py", "ops/b.py", "ops/a.py"}
    assert set(trace.changes) == {("ops/b.py", "near"), ("ops/a.py", "inner")}
    assert trace.folders() == {("nn", "ops"): 2}


@pytest.mark.slow
def test_both_commands_can_be_traced(count_trace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    count_trace.write_table()
    for line in count_trace.commands().values():
        trace = count_trace.run_command(line)
        assert sum(trace.folders().values()) == len(trace.changes) > 0
        assert len(trace.files) < len(trace.functions)
