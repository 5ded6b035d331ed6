"""The search for the protocol `toa`: run the trials of search.toml, then choose by validation error.

    python benchmarks/search.py lines --stage stage1 > runs.txt
    toa reproduce --runs runs.txt --executor pool --workers 16 --out runs
    python benchmarks/search.py collect runs results/search/trials.jsonl
    python benchmarks/search.py table results/search/trials.jsonl

Every trial sets `test=false`: no test error is measured, so none can enter a choice. `collect` fails on a
record that has one.
"""

import argparse
import json
import shlex
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

PLAN = Path(__file__).with_suffix(".toml")
_KEPT = ("config_hash", "data_checksum", "seed", "device", "commit", "command", "versions", "wall_s", "best_epoch")


def trials(plan: dict[str, Any], stages: list[str]) -> Iterator[tuple[str, str, str]]:
    """Backbone, family (softmax or toa) and trial, in the order of the plan."""
    for stage in stages:
        for backbone, families in plan[stage].items():
            for family, listed in families.items():
                yield from ((backbone, family, trial) for trial in listed)


def lines(plan: dict[str, Any], stages: list[str], datasets: list[str] | None) -> Iterator[str]:
    """Options of one `toa run` per trial and set, the long runs first."""
    for dataset in reversed(datasets or plan["datasets"]):
        for backbone, _, trial in trials(plan, stages):
            attention, *settings = trial.split()
            words = ["--dataset", dataset, "--horizon", str(plan["horizon"]), "--backbone", backbone]
            words += ["--attention", attention, "--protocol", "toa-paper", "--seed", str(plan["seed"])]
            yield shlex.join([*words, *(w for setting in [*settings, "test=false"] for w in ("--set", setting))])


def collect(folder: Path, target: Path) -> None:
    """One line per finished trial: what was run and its validation error."""
    rows = {}
    if target.exists():
        rows = {row["config_hash"]: row for row in map(json.loads, target.read_text().splitlines())}
    for path in sorted(folder.rglob("record.json")):
        record = json.loads(path.read_text())
        if record["config"].get("test", True):
            raise SystemExit(f"{path} must be a run with test=false, got one with a test error; leave it out.")
        words = shlex.split(record["command"])
        settings = [words[i + 1] for i, word in enumerate(words) if word == "--set" and words[i + 1] != "test=false"]
        config = record["config"]
        row = {key: record[key] for key in _KEPT} | {
            "backbone": config["backbone"],
            "dataset": config["dataset"],
            "horizon": config["horizon"],
            "trial": " ".join([config["attention"]["name"], *settings]),
            "epochs": len(record["history"]),
            "windows": record["windows"]["train"],
            "validation": record["metrics"][f"val_{config['loss']}"],
            "operators": record["operators"],
        }
        rows[row["config_hash"]] = row
    target.write_text("".join(json.dumps(row, sort_keys=True, separators=(",", ":")) + "\n" for row in rows.values()))
    print(f"{len(rows)} trials in {target}")


def table(plan: dict[str, Any], stages: list[str], path: Path) -> str:
    """Per backbone, family and class of sets: trials by their mean validation error relative to plain softmax."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in map(json.loads, path.read_text().splitlines()):
        found[row["backbone"], row["trial"], row["dataset"]] = row
    text = []
    for backbone in dict.fromkeys(name for name, _, _ in trials(plan, stages)):
        base = {d: found[backbone, "softmax", d] for d in plan["datasets"] if (backbone, "softmax", d) in found}
        for family in ("softmax", "toa"):
            text += [f"\n### {backbone}, {family}\n", "| trial | small | large | " + " | ".join(base) + " | M = 0 |"]
            text.append("| --- " * (4 + len(base)) + "|")
            ranked = []
            for trial in [t for b, f, t in trials(plan, stages) if (b, f) == (backbone, family)]:
                ratios = {
                    d: found[backbone, trial, d]["validation"] / base[d]["validation"]
                    for d in base
                    if (backbone, trial, d) in found
                }
                groups = defaultdict(list)
                for d, ratio in ratios.items():
                    groups[base[d]["windows"] < plan["small_below"]].append(ratio)
                small, large = (mean(groups[k]) if groups[k] else float("nan") for k in (True, False))
                used = [found[backbone, trial, d]["operators"]["contributions"]["operators"] for d in ratios]
                used = [f"{100 * u:.1f}" for u in used if u is not None]
                cells = " | ".join(f"{ratios.get(d, float('nan')):.4f}" for d in base)
                ranked.append((small + large, f"| {trial} | {small:.4f} | {large:.4f} | {cells} | {', '.join(used)} |"))
            text += [line for _, line in sorted(ranked)]
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("lines", "collect", "table"))
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--stage", action="append")
    parser.add_argument("--dataset", action="append")
    options = parser.parse_args()
    plan = tomllib.loads(PLAN.read_text())
    stages = options.stage or [name for name in plan if name.startswith("stage")]
    if options.action == "lines":
        print("\n".join(lines(plan, stages, options.dataset)))
    elif options.action == "collect":
        collect(*options.paths)
    else:
        print(table(plan, stages, *options.paths))


if __name__ == "__main__":
    main()
