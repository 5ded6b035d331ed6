"""The campaign keeps the results of one commit, and runs what is missing."""

import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from tests.campaign.outcome import Outcome
from tests.campaign.parts import Part, all_parts
from tests.campaign.running import Campaign, run_parts


def attempt(folder, first, count, *, seed):
    return Outcome(counts=Counter(tried=count), failures=[f"file {first} of seed {seed}"] if first == 4 else [])


def broken(folder, first, count, *, seed):
    raise RuntimeError("nothing was written")


def run(path, *parts, commit="a", keep_older=False):
    campaign = Campaign(path, 7, keep_older=keep_older)
    campaign.about["commit"] = commit
    run_parts(campaign, parts, 2, lambda beside: ThreadPoolExecutor(1))
    return campaign


def part(name="x", wanted=6, work=attempt, alone=False):
    return Part(name=name, wanted=wanted, step=4, attempt=work, alone=alone)


def test_results_are_kept_after_each_step_and_name_what_is_bad(tmp_path):
    path = tmp_path / "campaign.json"
    campaign = run(path, part("x"), part("y", 3))
    assert {name: stored["counts"] for name, stored in campaign.parts.items()} == {"x": {"tried": 6}, "y": {"tried": 3}}
    assert json.loads(path.read_text())["parts"] == campaign.parts
    assert campaign.state([part("x"), part("y"), part("z")]) == [
        "x: file 4 of seed 7",
        "y: 3 of 6",
        "z: 0 of 6",
    ]


def test_a_part_of_another_commit_runs_again_unless_older_ones_are_kept(tmp_path):
    path = tmp_path / "campaign.json"
    run(path, part(), commit="a")
    assert run(path, part(), commit="a").parts["x"]["tried"] == 6
    kept = run(path, part(), commit="b", keep_older=True)
    assert kept.parts["x"]["commit"] == "a"
    assert kept.state([part()]) == ["x: file 4 of seed 7"]
    unfinished = run(path, part(wanted=9), commit="b", keep_older=True)
    assert unfinished.parts["x"]["commit"] == "b"
    again = run(path, part(), commit="c")
    assert again.parts["x"]["commit"] == "c"
    assert again.parts["x"]["counts"] == {"tried": 6}
    campaign = Campaign(path, 7)
    assert campaign.state([part()])[-1] == f"x: of commit c, not {campaign.about['commit']}"


def test_a_part_that_breaks_off_is_bad_and_the_others_run(tmp_path):
    campaign = run(tmp_path / "campaign.json", part("x", work=broken), part("y", 3), part("z", 3, alone=True))
    lines = campaign.state([part("x"), part("y", 3), part("z", 3)])
    assert lines == ["x: ends with RuntimeError: 'nothing was written'", "x: 0 of 6"]


def test_parts_that_measure_run_alone(tmp_path):
    running = []
    beside = []
    lock = threading.Lock()

    def watched(folder, first, count, *, seed):
        with lock:
            running.append(first)
            beside.append(len(running))
        threading.Event().wait(0.01)
        with lock:
            running.pop()
        return Outcome()

    run(tmp_path / "campaign.json", *(part(name, 4, watched, alone=True) for name in "abc"))
    assert beside == [1, 1, 1]


def test_the_file_names_what_is_planned_and_leaves_out_what_is_gone(tmp_path):
    path = tmp_path / "campaign.json"
    campaign = run(path, part("x"), part("y"))
    campaign.plan([part("y"), part("z", 5)])
    campaign.write()
    assert list(Campaign(path, 7).parts) == ["y"]
    assert json.loads(path.read_text())["planned"] == {"y": 6, "z": 5}


def test_parts_have_different_names_and_those_that_measure_are_alone():
    parts = list(all_parts(files=20_000, kills=1_000, faults=80))
    names = [part.name for part in parts]
    assert len(set(names)) == len(names)
    assert [part.name for part in parts if part.alone] == [name for name in names if name.startswith("load ")]
    assert names[-1] == "load memory"
