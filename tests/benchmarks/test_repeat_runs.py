"""A sample of stored runs is repeated: it is the same for everybody, and settings must not have changed."""

import json
import shlex
import sys
from typing import Any

import pytest

from tests.support import load_script
from toa.cli.sweep import read_runs
from toa.experiments.records import config_hash, write_record

SCRIPT = load_script("benchmarks/repeat_runs.py")


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    """The records of one folder: they are read quickly."""
    found: dict[str, Any] = SCRIPT.stored_runs(["anomaly"])
    return found


@pytest.fixture
def data_but_for_msl(monkeypatch):
    monkeypatch.setattr(SCRIPT, "data_are_here", lambda record: record["config"]["dataset"] != "MSL")


def test_the_sample_is_drawn_per_group_from_short_runs_with_data(stored, data_but_for_msl):
    sample = SCRIPT.draw(stored.values(), per_group=3, seconds=60.0)
    assert sample == SCRIPT.draw(reversed(list(stored.values())), per_group=3, seconds=60.0)
    groups = [SCRIPT.group_of(record) for record in sample]
    assert len(set(groups)) == 4
    assert max(map(groups.count, groups)) == 3
    seconds = [record["wall_s"] for record in sample]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[0] <= 60.0
    assert not any(record["config"]["dataset"] == "MSL" for record in sample)


@pytest.mark.parametrize("folders", [["anomaly"], pytest.param(SCRIPT.FOLDERS, marks=pytest.mark.slow)], ids=len)
def test_the_command_of_a_stored_run_means_the_settings_of_its_record(folders, tmp_path):
    # options that say where a run was made
    places = ("--device", "--out", "--data-dir")
    lines = {}
    for key, record in SCRIPT.stored_runs(folders).items():
        words = shlex.split(record["command"])
        kept = [w for w, before in zip(words, [None, *words], strict=False) if not {w, before} & set(places)]
        lines[key] = shlex.join(kept)
    assert len(lines) >= (200 if folders == ["anomaly"] else 2500)
    (tmp_path / "runs.txt").write_text("\n".join(lines.values()), encoding="utf-8")
    assert [config_hash(job.config) for job in read_runs(tmp_path / "runs.txt")] == list(lines)


def run_script(monkeypatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["repeat_runs.py", *words])
    SCRIPT.main()


def test_a_repeated_run_stands_beside_the_stored_one_and_other_seeds(stored, tmp_path, monkeypatch):
    first = next(one for one in stored.values() if one["config"]["dataset"] == "SMAP" and one["seed"] == 2024)
    metrics = {name: 2 * value for name, value in first["metrics"].items()}
    (tmp_path / "runs").mkdir()
    write_record(tmp_path / "runs" / "record.json", {**first, "metrics": metrics, "commit": "0123456789ab"})
    monkeypatch.setattr(SCRIPT, "TARGET", tmp_path / "repeats.json")
    monkeypatch.setattr(SCRIPT, "ROOT", tmp_path)
    monkeypatch.setattr(SCRIPT, "stored_runs", lambda: stored)
    run_script(monkeypatch, "collect", str(tmp_path / "runs"))
    (pair,) = json.loads((tmp_path / "repeats.json").read_text(encoding="utf-8"))["pairs"]
    assert (pair["commit"], pair["stored_commit"]) == ("0123456789ab", first["commit"])
    assert pair["repeated"] == 2 * pair["stored"] == metrics[pair["metric"]]
    same = [
        one
        for one in stored.values()
        if SCRIPT.setting_of(one["task"], SCRIPT.config_of(one))
        == SCRIPT.setting_of(first["task"], SCRIPT.config_of(first))
    ]
    assert len(pair["other_seeds"]) == len(same) - 1 > 0

    # a second repetition replaces the first, but not the stored value; others stay
    other = {**pair, "command": "toa run --dataset other"}
    early = {**pair, "stored": 9.0, "stored_commit": "e" * 12}
    (tmp_path / "repeats.json").write_text(json.dumps({"pairs": [early, other], "note": 1}), encoding="utf-8")
    write_record(tmp_path / "runs" / "record.json", {**first, "commit": "ba9876543210"})
    run_script(monkeypatch, "collect", str(tmp_path / "runs"))
    content = json.loads((tmp_path / "repeats.json").read_text(encoding="utf-8"))
    assert content["note"] == 1
    (again,) = (one for one in content["pairs"] if one["command"] == first["command"])
    assert (again["stored"], again["stored_commit"]) == (9.0, "e" * 12)
    assert again["repeated"] == first["metrics"][pair["metric"]]
    assert {one["command"]: one["commit"] for one in content["pairs"]} == {
        first["command"]: "ba9876543210",
        other["command"]: "0123456789ab",
    }


def test_a_run_with_other_settings_than_the_stored_one_is_an_error(stored, tmp_path, monkeypatch, capsys):
    first = next(iter(stored.values()))
    changed = {**first, "config": {**first["config"], "batch_size": 7}}
    write_record(tmp_path / "record.json", changed)
    monkeypatch.setattr(SCRIPT, "stored_runs", lambda: stored)
    with pytest.raises(SystemExit):
        run_script(monkeypatch, "collect", str(tmp_path))
    assert first["command"] in capsys.readouterr().err
