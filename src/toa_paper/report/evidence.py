"""Read records, with a list of everything that does not count; `toa.experiments.read_records` is strict instead."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from toa._checks import ArgumentError, check_choice
from toa._files import CHECKSUM, parse_json
from toa._limits import shorten
from toa.experiments.claims import CLAIM
from toa.experiments.records import (
    RECORD,
    Record,
    check_record,
    check_results_exist,
    config_hash,
    hashed_values,
    name_line,
)
from toa.experiments.run import ERROR
from toa.report.operators import OPERATORS_FILE
from toa.training import TASKS
from toa_paper.report.costs import StepRatio, attention_costs

# records of a hyperparameter search do not count as runs of a protocol, even with the protocol's settings
SEARCH = "search.jsonl"
# JSON files beside records that are not records
_OTHERS = (CLAIM, OPERATORS_FILE)
# times of training steps; a case in both files counts in the first
_STEPS = ("training_step.json", "efficiency.json")
# trials of a search have no test error
_TRIALS = "trials.jsonl"
# trials that compare attentions and choose no setting
_SIGNED = "signed-trials.jsonl"
# trials that test an explanation and choose no setting
_POOLED = "pooled-trials.jsonl"

# task and config without the seed and the name of the protocol: equal settings are the same run under both protocols
Setting = tuple[str, str]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Run:
    """A record that counts.

    Attributes:
        record: As read, with defaults for config keys that newer versions added.
        path, line: Where it was read; line 0 means the complete file.
        setting: Equal for runs that differ only in the seed.
        seed: None if nothing is random.
        added: Config keys that the stored record lacks.
    """

    record: Record
    path: Path
    line: int
    setting: Setting
    seed: int | None
    added: tuple[str, ...]

    @property
    def where(self) -> str:
        """File and line, for messages."""
        return name_line(self.path, self.line)


class Skipped(NamedTuple):
    """Something that was read and does not count."""

    where: str
    reason: str


class Trial(NamedTuple):
    """A run of a search on one data set; `trial` is an attention and its settings, `error` that of validation."""

    backbone: str
    trial: str
    dataset: str
    windows: int
    error: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """Everything found in some files.

    Attributes:
        runs: At most one run per setting and seed.
        failed: Settings of runs that ended with an error, with the error and its file.
        disputed: Settings whose records contradict each other.
        trials: Number of trials of a search by task and backbone, then by family.
        costs: Time of a step with an attention over one with softmax, by case and attention.
    """

    runs: list[Run] = field(default_factory=list)
    failed: dict[Setting, str] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)
    disputed: set[Setting] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    trials: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)
    signed: list[Trial] = field(default_factory=list)
    costs: dict[tuple[str, str], StepRatio] = field(default_factory=dict)

    @cached_property
    def by_setting(self) -> dict[Setting, dict[int | None, Run]]:
        """Runs by setting and seed."""
        runs: dict[Setting, dict[int | None, Run]] = {}
        for run in self.runs:
            runs.setdefault(run.setting, {})[run.seed] = run
        return runs


def unclean(record: Mapping[str, Any]) -> str:
    """What is wrong with the commit of a record: "dirty" with changes that were not committed, "unknown", or ""."""
    commit = str(record.get("commit") or "")
    if commit.endswith("-dirty"):
        return "dirty"
    return "" if re.fullmatch("[0-9a-f]{7,40}", commit) else "unknown"


def setting_of(task: str, config: Any) -> Setting:
    """The setting of a config."""
    return task, _canonical({k: value for k, value in asdict(config).items() if k not in ("seed", "protocol")})


def read_evidence(paths: Iterable[Path]) -> Evidence:
    """Read all records of files and folders: record.json, other JSON files with a record, and lines of .jsonl files.

    Records that are incomplete, were altered, have a config that this version cannot read, or contradict another
    record of the same run are skipped and listed.
    """
    reader = _Reader()
    for path in paths:
        check_results_exist(path)
        files = [path]
        if path.is_dir():
            all_files = sorted([*path.rglob("*.json"), *path.rglob("*.jsonl")])
            files = [file for file in all_files if file.name not in _OTHERS]
        for file in files:
            reader.read(file, named=not path.is_dir())
    return reader.evidence()


class _Reader:
    """Reads files one after another and collects the results."""

    def __init__(self) -> None:
        self._evidence = Evidence()
        self._runs: list[Run] = []
        self._unsealed = 0
        self._seen: set[Path] = set()
        self._scores: Counter[Path] = Counter()
        self._trials: dict[tuple[str, str], set[str]] = {}
        self._costs: dict[str, dict[tuple[str, str], StepRatio]] = {name: {} for name in _STEPS}
        self._commits: dict[Path, Counter[str]] = {}

    def read(self, path: Path, *, named: bool) -> None:
        """Read a file; `named` if the user gave its path, so that it must be a record."""
        if path.resolve() in self._seen:
            return
        self._seen.add(path.resolve())
        try:
            text = path.read_text(encoding="utf-8")
        except ValueError:
            self._skip(str(path), "it is not a text file")
            return
        lines = [(0, text)]
        if path.suffix == ".jsonl":
            lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        for number, line in lines:
            try:
                content = parse_json(line, name_line(path, number))
            except ValueError as error:
                reason = f"it is not valid JSON ({error}), for example because writing stopped; run it again"
                self._skip(name_line(path, number), reason)
                continue
            try:
                self._take(content, path, number, named)
            except ValueError as error:
                self._skip(name_line(path, number), str(error))
        if path.name == SEARCH:
            self._skip(str(path), f"{len(lines)} records of a hyperparameter search, not compared with the paper")

    def _take(self, content: Any, path: Path, line: int, named: bool) -> None:
        """Take the content of a file or line; the name of the file tells what it is."""
        trial = path.name.endswith(_TRIALS)
        if (trial or path.name == SEARCH) and isinstance(content, Mapping):
            self._note_commit(content, path)
        if content is None or path.name == SEARCH:
            return
        if path.name in _STEPS:
            self._take_steps(content, path)
        elif path.name == _SIGNED:
            self._evidence.signed.append(_signed_trial(content))
        elif trial:
            self._take_trial(content, path)
        elif path.name == ERROR:
            try:
                setting = setting_of(content["task"], TASKS[content["task"]].config_from(content["config"]))
                self._evidence.failed[setting] = f"{content['error']} ({path})"
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ArgumentError(
                    "it", "be the error of a run of this version", f"something else ({shorten(error)})"
                ) from None
        elif isinstance(content, Mapping) and "benchmark" in content:
            self._scores[path] += 1
        else:
            is_record = isinstance(content, Mapping) and "config_hash" in content and "metrics" in content
            if is_record or named or line or path.name == RECORD:
                self._take_record(content, path, line)

    def _take_trial(self, content: Any, path: Path) -> None:
        """Count a trial that chose a setting."""
        if path.name != _POOLED and isinstance(content, Mapping) and isinstance(content.get("trial"), str):
            # classification has no horizon
            task = "forecast" if content.get("horizon") else "classify"
            self._trials.setdefault((task, str(content.get("backbone"))), set()).add(content["trial"])

    def _take_steps(self, content: Any, path: Path) -> None:
        """Take the times of training steps; a file without softmax, or with another content, has no costs."""
        try:
            self._costs[path.name] |= attention_costs([content])
        except (KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
            raise ArgumentError(
                "it", "have the times of training steps", f"something else ({shorten(error)})"
            ) from None

    def _take_record(self, content: Any, path: Path, line: int) -> None:
        record = check_record(content, name_line(path, line))
        config, added = _checked_config(record)
        if wrong := [name for name, value in record["metrics"].items() if not math.isfinite(value)]:
            raise ArgumentError("its metrics", "be finite", f"other values for {', '.join(wrong)}")
        self._unsealed += CHECKSUM not in content
        self._note_commit(record, path)
        self._runs.append(
            Run(
                record={**record, "config": json.loads(_canonical(asdict(config)))},
                path=path,
                line=line,
                setting=setting_of(record["task"], config),
                seed=getattr(config, "seed", None),
                added=added,
            )
        )

    def _note_commit(self, content: Mapping[str, Any], path: Path) -> None:
        self._commits.setdefault(path, Counter())[unclean(content)] += 1

    def _skip(self, where: str, reason: str) -> None:
        self._evidence.skipped.append(Skipped(where=where, reason=reason))

    def _dispute(self, runs: list[Run], rule: str) -> None:
        self._evidence.disputed.add(runs[0].setting)
        self._skip(" and ".join(run.where for run in runs), f"{rule}; remove the wrong ones")

    def evidence(self) -> Evidence:
        """Everything that was read, with one run per setting and seed."""
        duplicates, other_backends = self._choose_runs()
        self._evidence.notes.extend(self._notes(duplicates, other_backends))
        for key, trials in self._trials.items():
            self._evidence.trials[key] = Counter(map(_family, filter(None, trials)))
        for costs in self._costs.values():
            self._evidence.costs.update(
                {case: cost for case, cost in costs.items() if case not in self._evidence.costs}
            )
        return self._evidence

    def _choose_runs(self) -> tuple[int, int]:
        """Keep one run per setting and seed; returns the numbers of equal records and of those of other backends."""
        groups: dict[Setting, dict[int | None, list[Run]]] = {}
        for run in self._runs:
            groups.setdefault(run.setting, {}).setdefault(run.seed, []).append(run)
        duplicates = other_backends = 0
        for seeds in groups.values():
            chosen: list[Run] = []
            for runs in seeds.values():
                # backends round differently: runs of the Triton kernels count, if there are any
                same = [run for run in runs if run.record.get("backend") == "triton"] or runs
                other_backends += len(runs) - len(same)
                metrics = [run.record["metrics"] for run in same]
                names = dict.fromkeys(name for values in metrics for name in values)
                if other := [name for name in names if len({values.get(name) for values in metrics}) > 1]:
                    self._dispute(same, f"records of one config must agree, got different {', '.join(other)}")
                else:
                    chosen.append(same[0])
                    duplicates += len(same) - 1
            checksums = {str(run.record.get("data_checksum")) for run in chosen}
            if len(checksums) > 1:
                self._dispute(chosen, f"records of one setting must use the same data, got {len(checksums)} checksums")
            else:
                self._evidence.runs.extend(chosen)
        return duplicates, other_backends

    def _notes(self, duplicates: int, other_backends: int) -> list[str]:
        """What a reader should know about the records, in sentences."""
        notes: list[str] = []
        lacking = Counter((str(run.record["task"]), run.added) for run in self._evidence.runs if run.added)
        for (task, added), count in lacking.items():
            notes.append(f"{count} records of task {task} have no {', '.join(added)}; the default is used.")
        if duplicates:
            notes.append(f"{duplicates} records occur again with the same setting and metrics, and count once.")
        if other_backends:
            notes.append(f"{other_backends} records of another backend do not count: the kernels made the same runs.")
        notes += [f"{count} scores of `toa bench` in {file} are not compared." for file, count in self._scores.items()]
        for file, counts in self._commits.items():
            if bad := counts["dirty"] + counts["unknown"]:
                notes.append(
                    f"{bad} of {counts.total()} records in {file} name no clean commit: {counts['dirty']} a dirty one, "
                    f"{counts['unknown']} none."
                )
        if self._unsealed:
            notes.append(f"{self._unsealed} of {len(self._runs)} records are without checksum: edits are not noticed.")
        return notes


def _family(trial: str) -> str:
    """The family of a trial of a search: "TOA", "no mixing", or the name of its attention."""
    if "model.mix_channels=false" in trial:
        return "no mixing"
    return "TOA" if trial.startswith("toa-") else trial.split()[0]


def _signed_trial(content: Any) -> Trial:
    try:
        backbone, name, dataset = (str(content[key]) for key in ("backbone", "trial", "dataset"))
        trial = Trial(backbone, name, dataset, int(content["windows"]), float(content["validation"]))
        if not (trial.trial.strip() and 0 < trial.error < math.inf):
            raise ValueError(f"got trial {trial.trial!r} with validation error {trial.error}")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"it must be a trial with a validation error above 0 ({shorten(error)})") from None
    return trial


def _checked_config(record: Record) -> tuple[Any, tuple[str, ...]]:
    """The config of a record as an object of this version, and the keys that the record lacks."""
    task = str(record.get("task"))
    values = record.get("config")
    check_choice("task", task, TASKS)
    if not isinstance(values, Mapping):
        raise ArgumentError("its config", "be a mapping", repr(values))
    if (actual := config_hash(values)) != record["config_hash"]:
        raise ArgumentError("its config", f"have the hash {record['config_hash']}", f"{actual}: the record was altered")
    try:
        config = TASKS[task].config_from(values)
    except (ValueError, TypeError, AttributeError) as error:
        # without the long list of known names
        short = str(error).partition("; known:")[0].rstrip(".")
        raise ValueError(f"another version wrote it ({short}); repeat its command to run it again.") from None
    return config, tuple(_missing_keys(hashed_values(config), values))


def _missing_keys(complete: Mapping[str, Any], stored: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in complete.items():
        if name not in stored:
            yield f"{prefix}{name}"
        elif isinstance(value, Mapping) and isinstance(stored[name], Mapping):
            yield from _missing_keys(value, stored[name], f"{prefix}{name}.")


def _canonical(values: Any) -> str:
    return json.dumps(values, sort_keys=True, separators=(",", ":"))
