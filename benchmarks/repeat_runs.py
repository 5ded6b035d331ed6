"""Repeat a random sample of stored runs with the code of today, and compare their metrics with the stored ones.

    python benchmarks/repeat_runs.py lines > runs.txt
    toa reproduce --runs runs.txt --executor pool --workers 16 --out runs
    python benchmarks/repeat_runs.py collect runs
    make pages

The sample is drawn per task, protocol and backbone, from runs of at most `--seconds` whose data are here. `collect`
adds the runs to those of earlier calls. It raises an error if a command means other settings today than in its record,
or if its data have changed.
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from toa._files import write_atomically
from toa.experiments import experiment_of
from toa.experiments.records import RECORD, config_hash, read_record, read_records
from toa.training import TASKS
from toa_paper.report.evidence import setting_of

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "results" / "repeats.json"
FOLDERS = ("anomaly", "classification", "forecasting")
# searches, detectors that are no run, and runs whose protocol has other settings today
LEFT_OUT = ("search.jsonl", "detectors.jsonl", "toa-unnormalised.jsonl", "two-axis-small.jsonl")
SEED = 2026


def stored_runs(folders: Iterable[str] = FOLDERS) -> dict[str, Any]:
    """Stored records of `toa run` on a GPU, by the hash of their settings."""
    paths = [path for name in folders for path in sorted((ROOT / "results" / name).glob("*.jsonl"))]
    found = read_records(path for path in paths if path.name not in LEFT_OUT)
    return {hash_of(one): one for one in found if one["device"].startswith("NVIDIA")}


def hash_of(record: Any) -> str:
    """The hash that a config has today: older records lack settings that were added later."""
    return config_hash(config_of(record))


def config_of(record: Any) -> Any:
    """The config of a record."""
    return TASKS[record["task"]].config_from(record["config"])


def group_of(record: Any) -> tuple[str, str, str]:
    """Task, protocol and backbone of a record."""
    return record["task"], record["config"]["protocol"], record["config"]["backbone"]


def draw(records: Iterable[Any], *, per_group: int, seconds: float) -> list[Any]:
    """Draw the sample, the longest runs first. The order of a group is random, but the same in every draw."""
    groups: dict[tuple[str, str, str], list[Any]] = {}
    for record in sorted(records, key=lambda one: config_hash([SEED, hash_of(one)])):
        found = groups.setdefault(group_of(record), [])
        if len(found) < per_group and record["wall_s"] <= seconds and data_are_here(record):
            found.append(record)
    return sorted((one for found in groups.values() for one in found), key=lambda one: -one["wall_s"])


def data_are_here(record: Any) -> bool:
    """Whether the files of a run have the checksum that its record states."""
    return TASKS[record["task"]].current_checksum(config_of(record), None) == record["data_checksum"]


def compare(stored: Any, repeated: Any, seeds: Iterable[Any]) -> dict[str, Any]:
    """One line of the comparison: both test metrics and commits, and that metric of other seeds of the stored run."""
    task, protocol, backbone = group_of(stored)
    metric = next(name for name, label in experiment_of(task).summary_metrics.items() if label != "val")
    line = {"task": task, "protocol": protocol, "backbone": backbone, "metric": metric, "command": stored["command"]}
    line |= {"device": repeated["device"], "torch": repeated["versions"]["torch"]}
    line |= {"stored": stored["metrics"][metric], "repeated": repeated["metrics"][metric]}
    line |= {"stored_commit": stored["commit"], "commit": repeated["commit"]}
    return line | {"other_seeds": [one["metrics"][metric] for one in seeds if one["seed"] != stored["seed"]]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("lines", "collect"))
    parser.add_argument("folder", nargs="?", type=Path, help="collect: folder of finished runs")
    parser.add_argument("--per-group", type=int, default=8, help="lines: runs per task, protocol and backbone")
    parser.add_argument("--seconds", type=float, default=60.0, help="lines: longest stored run time")
    options = parser.parse_args()
    stored = stored_runs()
    if options.action == "lines":
        for record in draw(stored.values(), per_group=options.per_group, seconds=options.seconds):
            print(record["command"])
    elif options.folder is None:
        parser.error("collect needs the folder of the runs")
    else:
        cells: dict[Any, list[Any]] = {}
        for one in stored.values():
            cells.setdefault(setting_of(one["task"], config_of(one)), []).append(one)
        commands = {one["command"]: one for one in stored.values()}
        pairs = []
        for path in sorted(options.folder.rglob(RECORD)):
            one = read_record(path)
            own = commands.get(one["command"])
            if own is None or (hash_of(own), own["data_checksum"]) != (hash_of(one), one["data_checksum"]):
                parser.error(f"{path} must be a stored run with the same settings and data, got {one['command']}")
            pairs.append(compare(own, one, cells[setting_of(own["task"], config_of(own))]))
        content = json.loads(TARGET.read_text(encoding="utf-8")) if TARGET.exists() else {"pairs": []}
        found = {pair["command"]: pair for pair in content["pairs"]}
        for pair in pairs:
            # the stored record may be a repetition by now: the first one stays
            first = {
                name: found.get(pair["command"], pair)[name] for name in ("stored", "stored_commit", "other_seeds")
            }
            found[pair["command"]] = pair | first
        content["pairs"] = sorted(found.values(), key=lambda pair: pair["command"])
        write_atomically(TARGET, (json.dumps(content, indent=1, sort_keys=True) + "\n").encode())
        print(f"{len(pairs)} repeated runs in {TARGET.relative_to(ROOT)}, which has {len(found)}")


if __name__ == "__main__":
    main()
