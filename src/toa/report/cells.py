"""The paper's cells with what was measured of each: ours beside published, or why there is nothing."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from toa._checks import check_choice
from toa.experiments.paper.published import PublishedNumber, published_numbers
from toa.experiments.paper.tables import TABLES, Cell, missing_data, protocol_job, table_cells
from toa.experiments.run import Job
from toa.report.evidence import Evidence, Key, Run, setting_of
from toa.report.ranks import decimals, ranks

Status = Literal["measured", "partial", "failed", "not run", "no data", "no settings"]
STATUSES: tuple[Status, ...] = ("measured", "partial", "failed", "not run", "no data", "no settings")

# of anomaly detection the other rules, by which the same runs were measured
_STRICT = {"f1_pa": "strict/f1"}


@dataclass(frozen=True, kw_only=True)
class Line:
    """A published number and ours.

    Attributes:
        number: The paper's.
        protocol: The settings that ours follow, and the rules where there are several.
        metric: What is read in the records.
        own: Whether it is the protocol that the table is held to; else it stands beside.
        values: Ours by seed; of a mean rank one value without a seed. Empty if there is none.
        runs: The records that it is made of.
        status: "measured", or why there is no value.
        reason: The same in words.
    """

    number: PublishedNumber
    protocol: str
    metric: str
    own: bool = True
    values: Mapping[int | None, float]
    runs: tuple[Run, ...] = ()
    status: Status
    reason: str = ""

    @property
    def task(self) -> str:
        """Of the table."""
        return TABLES[self.number.table].task

    @property
    def comparable(self) -> bool:
        """Whether the published number is of the same metric."""
        return self.metric not in _STRICT.values()

    @cached_property
    def mean(self) -> float | None:
        """Over seeds."""
        return fmean(self.values.values()) if self.values else None

    @cached_property
    def spread(self) -> float | None:
        """Standard deviation over seeds, of a sample; None of fewer than two."""
        return stdev(self.values.values()) if len(self.values) > 1 else None

    @property
    def difference(self) -> float | None:
        """Ours less the published number."""
        return None if self.mean is None or not self.comparable else self.mean - self.number.value


def paper_lines(evidence: Evidence, *, tables: Iterable[str] | None = None, data_dir: Path | None = None) -> list[Line]:
    """A line for each published number, followed by those of other protocols and rules that there are records of.

    A record counts for a number if its config is that of the number's protocol in everything but the seed.

    Args:
        evidence: What was read.
        tables: Names of tables; all if None.
        data_dir: Where data are looked for, to say what keeps a number from being run.

    Raises:
        ValueError: If a table is unknown.
    """
    names = list(TABLES) if tables is None else list(tables)
    for name in names:
        check_choice("table", name, TABLES)
    filler = _Filler(evidence, data_dir)
    return [line for name in names for cell in table_cells(name) for line in filler.lines(cell)]


class _Filler:
    """Finds what belongs to cells."""

    def __init__(self, evidence: Evidence, data_dir: Path | None) -> None:
        self._index = evidence.by_setting()
        self._failed = {failed.setting: failed for failed in evidence.failed}
        self._disputed = evidence.disputed
        self._data_dir = data_dir
        self._keys: dict[Job, Key] = {}
        self._missing: dict[tuple[str, tuple[str, ...]], str] = {}
        self._protocols: dict[str, list[str]] = {}
        for run in evidence.runs:
            known = self._protocols.setdefault(run.record["task"], [])
            if (name := run.record["config"].get("protocol")) is not None and name not in known:
                known.append(name)

    def lines(self, cell: Cell) -> Iterator[Line]:
        """The cell's own line, then the others."""
        table = TABLES[cell.number.table]
        own = table.protocols.get(cell.number.backbone, "paper" if table.task == "demixing" else "")
        keys = [self._key(job) for job in cell.jobs]
        yield self._line(cell, keys, _with_rules(own, cell.metric), cell.metric, own=True)
        if cell.number.metric in _STRICT:
            yield from self._beside(cell, keys, own, _STRICT[cell.number.metric])
        if len(cell.jobs) != 1:
            return
        for protocol in self._protocols.get(table.task, []):
            if protocol != own and (key := _other_key(cell, protocol)) is not None:
                yield from self._beside(cell, [key], protocol, cell.metric)

    def _beside(self, cell: Cell, keys: Sequence[Key], protocol: str, metric: str) -> Iterator[Line]:
        line = self._line(cell, keys, _with_rules(protocol, metric), metric, own=False)
        if line.values:
            yield line

    def _line(self, cell: Cell, keys: Sequence[Key], protocol: str, metric: str, *, own: bool) -> Line:
        found = [
            {seed: run for seed, run in self._index.get(key, {}).items() if metric in run.record["metrics"]}
            for key in keys
        ]
        values = _ranked(cell, found) if cell.combine == "rank" else _averaged(found, metric, cell.factor)
        if values:
            # a mean rank has no seed of its own, and is made of all
            runs = [run for one in found for seed, run in one.items() if seed in values or cell.combine == "rank"]
            status: Status = "measured"
            reason = ""
        else:
            runs = [run for one in found for run in one.values()]
            status, reason = self._lack(cell, keys, found)
        return Line(
            number=cell.number,
            protocol=protocol,
            metric=metric,
            own=own,
            values=values,
            runs=tuple(runs),
            status=status,
            reason=reason,
        )

    def _lack(self, cell: Cell, keys: Sequence[Key], found: Sequence[Mapping[int | None, Run]]) -> tuple[Status, str]:
        """Why a cell has no value."""
        if cell.reason:
            return "no settings", cell.reason
        failed = [self._failed[key] for key, one in zip(keys, found, strict=True) if key in self._failed and not one]
        if failed:
            return "failed", f"{failed[0].error} ({failed[0].path})"
        done = sum(bool(one) for one in found)
        missing = self._missing_files(cell)
        if done == len(found):
            return "partial", "no seed has all its runs"
        if done:
            return "partial", f"{done} of {len(found)} runs are there{'; ' if missing else ''}{missing}"
        if any(key in self._disputed for key in keys):
            return "partial", "its records contradict one another; see what is left out"
        if any(key in self._index for key in keys):
            return "partial", f"{cell.metric} is undefined in its records"
        return ("no data", missing) if missing else ("not run", "not run yet")

    def _key(self, job: Job) -> Key:
        if job not in self._keys:
            self._keys[job] = setting_of(job.task, job.config)
        return self._keys[job]

    def _missing_files(self, cell: Cell) -> str:
        """What of a cell's data is not here, in words; "" if it all is."""
        place = (TABLES[cell.number.table].task, cell.datasets)
        if place not in self._missing:
            files = ", ".join(file for one in missing_data(cell, self._data_dir) for file in one.files)
            self._missing[place] = f"file missing: {files}" if files else ""
        return self._missing[place]


def _averaged(found: Sequence[Mapping[int | None, Run]], metric: str, factor: float) -> dict[int | None, float]:
    """For each seed that all settings have, the mean over them."""
    seeds = [seed for seed in (found[0] if found else {}) if all(seed in one for one in found)]
    return {
        seed: factor * fmean(one[seed].record["metrics"][metric] for one in found)
        for seed in sorted(seeds, key=lambda seed: -1 if seed is None else seed)
    }


def _ranked(cell: Cell, found: Sequence[Mapping[int | None, Run]]) -> dict[int | None, float]:
    """The variant's mean rank over data sets, among all variants of the full table."""
    if not found or not all(found):
        return {}
    full = [row for row in published_numbers() if row.table == "classification"]
    variants = list(dict.fromkeys(row.variant for row in full))
    means = [fmean(run.record["metrics"][cell.metric] for run in one.values()) for one in found]
    # settings come data set by data set, a variant after another
    blocks = [means[start : start + len(variants)] for start in range(0, len(means), len(variants))]
    place = variants.index(cell.number.variant)
    digits = max(decimals(row.text) for row in full)
    return {None: fmean(ranks(block, "classification", digits)[place] for block in blocks)}


def _with_rules(protocol: str, metric: str) -> str:
    """The protocol, and the rules of measurement where a metric names them."""
    rules, slash, _ = metric.partition("/")
    return f"{protocol}, {rules}" if slash else protocol


def _other_key(cell: Cell, protocol: str) -> Key | None:
    """The setting of a cell's run under another protocol; None if that has no such run."""
    number, task = cell.number, TABLES[cell.number.table].task
    horizon = int(number.horizon) if number.horizon.isdecimal() else None
    try:
        job = protocol_job(task, protocol, cell.datasets[0], horizon, number.backbone, number.variant)
    except ValueError:
        return None
    return setting_of(task, job.config)


def departure(run: Run) -> str:
    """Why a run is no cell of the paper: where its config departs from its protocol's, as far as that can be told."""
    record, config = run.record, run.record["config"]
    attention = config.get("attention") or {}
    variant = f"{attention.get('name', '')}{'-nosor' if attention.get('sor') is False else ''}"
    try:
        job = protocol_job(
            record["task"], config["protocol"], config["dataset"], config.get("horizon"), config["backbone"], variant
        )
    except (ValueError, KeyError):
        return "no run that the paper has"
    theirs = json.loads(setting_of(record["task"], job.config)[1])
    names = [name for name in _flat(theirs) | _flat(config) if _flat(theirs).get(name) != _flat(config).get(name)]
    names = [name for name in names if name != "seed"]
    if not names:
        return f"a run of {config['protocol']} that no table of the paper has"
    return f"not as {config['protocol']} has it: {', '.join(names)}"


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found
