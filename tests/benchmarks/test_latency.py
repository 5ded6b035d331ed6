import pytest

from tests.estimators.signals import quick
from tests.support import load_script


@pytest.fixture(scope="module")
def bench():
    return load_script("benchmarks/latency.py")


def test_each_call_is_timed_by_both_clocks(bench, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(bench, "ROWS", 100)
    monkeypatch.setattr(bench, "CONTEXT", 60)
    quick(epochs=1).fit(bench.make_rows(100)).save(tmp_path / "model.toa")
    times = bench.measure(tmp_path / "model.toa", 3)
    assert list(times) == [*bench.ONCE, *bench.CALLS]
    assert {kind: len(calls) for kind, calls in times.items()} == dict.fromkeys(bench.ONCE, 1) | dict.fromkeys(
        bench.CALLS, 3
    )
    assert all(set(call) == {"wall", "cpu"} for calls in times.values() for call in calls)


def test_calls_of_all_processes_share_one_percentile(bench) -> None:
    once = {kind: [{"wall": 2.0, "cpu": 1.0}] for kind in bench.ONCE}
    calls = [{kind: [{"wall": value, "cpu": 1.0}] * 50 for kind in bench.CALLS} for value in (10.0, 30.0)]
    summary = bench.summarise([once | part for part in calls])
    assert summary["load"]["wall"] == {"median": 2.0, "largest": 2.0, "least": 2.0}
    assert summary["predict"]["wall"] == {"median": 20.0, "largest": 30.0, "p99": 30.0}
