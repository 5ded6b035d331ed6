"""Systems compared over many data sets: ranks, wins and losses, and whether differences can be chance.

Alphabet: n data sets, k systems.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from jaxtyping import Float64

from toa._checks import check_choice
from toa.experiments.records import Record, check_record, read_record

ALPHA = 0.05
# scores closer than this are a tie: means over seeds round
_TIE = 1e-9
_LOWER_IS_BETTER = ("mse", "mae")
# what runs of one system may differ in
_SEED = "seed"


def read_results(paths: Iterable[Path]) -> list[Record]:
    """Records from files record.json, from files of one record a line, and from folders that hold either below them.

    Raises:
        ValueError: If there are none, or a file is no record.
    """
    paths = list(paths)
    found: list[Record] = []
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"results must be files or folders, but {path} is neither.")
        inside = [*path.rglob("record.json"), *path.rglob("*.jsonl")] if path.is_dir() else [path]
        for file in sorted(inside):
            found += _read_lines(file) if file.suffix == ".jsonl" else [read_record(file)]
    if not found:
        raise ValueError(f"results must hold records, got none in {', '.join(map(str, paths))}; run `toa run` first.")
    return found


def _read_lines(path: Path) -> list[Record]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [check_record(json.loads(line), f"line {number} of {path}") for number, line in enumerate(lines, 1)]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Scores:
    """One score for each data set and system, the mean over seeds.

    Args:
        values: (n, k).
        seeds: Of each data set.
        left_out: Data sets that not every system was run on alike, each with the reason.
    """

    task: str
    protocol: str
    metric: str
    datasets: tuple[str, ...]
    systems: tuple[str, ...]
    values: Float64[np.ndarray, "n k"]
    seeds: Mapping[str, tuple[int, ...]]
    left_out: Mapping[str, str]

    @property
    def lower_is_better(self) -> bool:
        """Whether the metric is an error."""
        return re.split("[/_]", self.metric)[-1] in _LOWER_IS_BETTER

    @property
    def gains(self) -> Float64[np.ndarray, "n k"]:
        """The values, turned so that more is better."""
        return -self.values if self.lower_is_better else self.values


def system_name(record: Record) -> str:
    """Backbone and attention, and that SOR is off where it could be on."""
    attention = record["config"].get("attention") or {}
    off = attention.get("sor") is False and str(attention.get("name", "")).startswith("toa")
    return f"{record['name']}{'-no-sor' if off else ''}"


def collect(records: Sequence[Record], metric: str) -> Scores:
    """The scores of a metric; records that do not belong together are refused.

    A data set counts if every system has a run there of each seed that any has. The others are left out, and said.

    Raises:
        ValueError: If records are of several tasks or protocols, of differing data under one name, of differing
            settings under one system, or there twice; or if none has the metric or no data set is whole.
    """
    task, protocol = (_same(records, *what) for what in ((("task",), "task"), (("config", "protocol"), "protocol")))
    known = sorted({name for record in records for name in record["metrics"]})
    check_choice("metric", metric, known)
    runs: dict[tuple[str, str], dict[int, Record]] = {}
    for record in records:
        cell = runs.setdefault((_block(record), system_name(record)), {})
        _check_new(record, cell)
        cell[record["seed"]] = record
    datasets = list(dict.fromkeys(dataset for dataset, _ in runs))
    systems = list(dict.fromkeys(system for _, system in runs))
    seeds, left_out = {}, {}
    for dataset in datasets:
        cells = {system: runs.get((dataset, system), {}) for system in systems}
        _check_data(dataset, cells)
        seeds[dataset] = tuple(sorted({seed for cell in cells.values() for seed in cell}))
        if reason := _incomplete(cells, seeds[dataset], metric):
            left_out[dataset] = reason
    whole = [dataset for dataset in datasets if dataset not in left_out]
    if not whole:
        reasons = "; ".join(f"{dataset}: {reason}" for dataset, reason in list(left_out.items())[:4])
        raise ValueError(f"a comparison needs a data set that every system was run on alike, got none ({reasons}).")
    values = [[mean(run["metrics"][metric] for run in runs[d, s].values()) for s in systems] for d in whole]
    return Scores(
        task=task,
        protocol=protocol,
        metric=metric,
        datasets=tuple(whole),
        systems=tuple(systems),
        values=np.array(values, dtype=np.float64),
        seeds={dataset: seeds[dataset] for dataset in whole},
        left_out=left_out,
    )


def _same(records: Sequence[Record], path: tuple[str, ...], what: str) -> str:
    """What all records say."""
    said: list[str] = []
    for record in records:
        value: Any = record
        for key in path:
            value = value.get(key, "none named") if isinstance(value, Mapping) else "none named"
        said.append(str(value))
    kinds = sorted(set(said))
    if len(kinds) > 1:
        raise ValueError(
            f"records must be of one {what} to be compared, got {', '.join(kinds)}; give the folders of one alone."
        )
    return kinds[0]


def _block(record: Record) -> str:
    """What a system is run on: the data set, and the horizon where there is one."""
    config = record["config"]
    name = Path(str(config["dataset"])).name.split("_TRAIN.ts")[0]
    return f"{name}-{config['horizon']}" if "horizon" in config else name


def _check_new(record: Record, cell: Mapping[int, Record]) -> None:
    """Refuse a run that is there already, or that differs from those of other seeds in more than the seed."""
    where = f"{system_name(record)} on {_block(record)}"
    if record["seed"] in cell:
        raise ValueError(
            f"records must have one run of {where} with seed {record['seed']}, got two (config hashes "
            f"{cell[record['seed']]['config_hash']} and {record['config_hash']}); leave one of them out."
        )
    for other in cell.values():
        ours, theirs = record["config"], other["config"]
        keys = [key for key in {**ours, **theirs} if key != _SEED and ours.get(key) != theirs.get(key)]
        if keys:
            raise ValueError(
                f"records of {where} must have one setting, got several that differ in {', '.join(sorted(keys))} "
                f"(seeds {other['seed']} and {record['seed']}); compare them in folders of their own."
            )


def _check_data(dataset: str, cells: Mapping[str, Mapping[int, Record]]) -> None:
    sums = {run["data_checksum"] for cell in cells.values() for run in cell.values()}
    if len(sums) > 1:
        raise ValueError(
            f"records of {dataset} must be of the same data, got {len(sums)} checksums: "
            f"{', '.join(sorted(str(s)[:16] for s in sums))}; run them again on one file."
        )


def _incomplete(cells: Mapping[str, Mapping[int, Record]], seeds: Sequence[int], metric: str) -> str:
    """Why a data set cannot count, or nothing."""
    for system, cell in cells.items():
        if not cell:
            return f"no run of {system}"
        if absent := [seed for seed in seeds if seed not in cell]:
            return f"no run of {system} with seed {', '.join(map(str, absent))}"
        if without := [seed for seed in seeds if metric not in cell[seed]["metrics"]]:
            return f"{metric} of {system} is undefined with seed {', '.join(map(str, without))}"
    return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """What is said of a system.

    Attributes:
        mean: Over data sets.
        rank: Average rank; 1 is best, ties share the mean of their ranks.
        wins: Data sets where it is better than the baseline; likewise ties and losses. None for the baseline.
        p: Of the Wilcoxon signed-rank test against the baseline, two-sided; None where it says nothing.
        p_holm: The same after Holm's correction for all systems that are tested.
    """

    system: str
    mean: float
    rank: float
    wins: int | None = None
    ties: int | None = None
    losses: int | None = None
    p: float | None = None
    p_holm: float | None = None


def least_p(count: int) -> float:
    """The smallest two-sided p that a signed-rank test of so many data sets can have: 2^(1 - n)."""
    return 2.0 ** (1 - count)


def compare(scores: Scores, baseline: str = "softmax") -> list[Row]:
    """A row for each system, best rank first.

    p is left out where data sets are too few for any p under 0.05, or where nothing differs.

    Args:
        scores: What is compared.
        baseline: A system, or the end of one's name: "softmax" is "patchtst/softmax" where that is the only one.
    """
    from scipy.stats import rankdata, wilcoxon

    base = scores.systems.index(find_system(scores, baseline))
    ranks = rankdata(-np.round(scores.gains / _TIE) * _TIE, axis=1)  # (n, k)
    rows, tested = [], []
    for place, system in enumerate(scores.systems):
        facts: dict[str, Any] = {"mean": float(scores.values[:, place].mean()), "rank": float(ranks[:, place].mean())}
        if place != base:
            gain = scores.gains[:, place] - scores.gains[:, base]  # (n,)
            gain[np.abs(gain) <= _TIE] = 0.0
            facts |= {"wins": int((gain > 0).sum()), "ties": int((gain == 0).sum()), "losses": int((gain < 0).sum())}
            if least_p(len(gain)) <= ALPHA and gain.any():
                facts["p"] = float(wilcoxon(gain).pvalue)
                tested.append(facts)
        rows.append((system, facts))
    for facts, corrected in zip(tested, holm([facts["p"] for facts in tested]), strict=True):
        facts["p_holm"] = corrected
    return sorted((Row(system=system, **facts) for system, facts in rows), key=lambda row: row.rank)


def holm(values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: the i-th smallest of m is times m - i + 1, none below one before it, at most 1."""
    corrected = [0.0] * len(values)
    highest = 0.0
    for done, place in enumerate(sorted(range(len(values)), key=lambda i: values[i])):
        highest = max(highest, min(1.0, values[place] * (len(values) - done)))
        corrected[place] = highest
    return corrected


def find_system(scores: Scores, name: str) -> str:
    """The one system of that name, or whose name ends in it after a slash."""
    if name in scores.systems:
        return name
    ends = [system for system in scores.systems if system.endswith(f"/{name}")]
    if len(ends) != 1:
        among = ends or scores.systems
        found = "several" if ends else "none"
        raise ValueError(
            f"baseline {name!r} must name one system, got {found} of {', '.join(among)}; name one of them."
        )
    return ends[0]
