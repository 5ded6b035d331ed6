"""Read records: strictly, or with a list of everything that does not count."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from toa._checks import check_choice
from toa._files import CHECKSUM, parse_json
from toa.experiments.records import CLAIM, RECORD, Record, check_record, config_hash, hashed_values, read_record
from toa.experiments.run import ERROR
from toa.report.operators import OPERATORS_FILE
from toa.tasks import TASKS

# records of a hyperparameter search do not count as runs of a protocol, even with the protocol's settings
SEARCH = "search.jsonl"
# JSON files beside records that are not records
_OTHERS = (CLAIM, OPERATORS_FILE, "efficiency.json")
# trials of a search have no test error
_TRIALS = "trials.jsonl"
# trials that compare attentions and choose no setting
_SIGNED = "signed-trials.jsonl"
# trials that test an explanation and choose no setting
_POOLED = "pooled-trials.jsonl"

# task and config without the seed
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
        return _where(self.path, self.line)


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """Everything found in some files.

    Attributes:
        runs: At most one run per setting and seed.
        failed: Settings of runs that ended with an error, with the error and its file.
        disputed: Settings whose records contradict each other.
        notes: Remarks on duplicates and defaults.
        trials: Number of trials of a search by task and backbone, then of softmax and of TOA.
        signed: Trials of the comparison of signed attentions.
    """

    runs: tuple[Run, ...]
    failed: Mapping[Setting, str] = field(default_factory=dict)
    skipped: tuple[Skipped, ...] = ()
    disputed: frozenset[Setting] = frozenset()
    notes: tuple[str, ...] = ()
    trials: Mapping[tuple[str, str], Counter[str]] = field(default_factory=dict)
    signed: tuple[Trial, ...] = ()


def unclean(record: Mapping[str, Any]) -> str:
    """What is wrong with the commit of a record: "dirty" with changes that were not committed, "unknown", or ""."""
    commit = str(record.get("commit") or "")
    return "dirty" if commit.endswith("-dirty") else "" if re.fullmatch("[0-9a-f]{7,40}", commit) else "unknown"


def setting_of(task: str, config: Any) -> Setting:
    """The setting of a config."""
    return task, _canonical({name: value for name, value in asdict(config).items() if name != "seed"})


def read_records(paths: Iterable[Path]) -> list[Record]:
    """Read record.json and .jsonl files, or all of them below folders; every one must be valid."""
    paths = list(paths)
    found: list[Record] = []
    for path in paths:
        _check_exists(path)
        for file in sorted([*path.rglob(RECORD), *path.rglob("*.jsonl")]) if path.is_dir() else [path]:
            if file.suffix == ".jsonl":
                lines = enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
                found += [
                    check_record(parse_json(text, _where(file, line)), _where(file, line)) for line, text in lines
                ]
            else:
                found.append(read_record(file))
    if not found:
        raise ValueError(
            f"results must contain records, got none in {', '.join(map(str, paths))}; run `toa run` first."
        )
    return found


def read_evidence(paths: Iterable[Path]) -> Evidence:
    """Read all records of files and folders: record.json, other JSON files with a record, and lines of .jsonl files.

    Records that are incomplete, were altered, have a config that this version cannot read, or contradict another
    record of the same run are skipped and listed.
    """
    reader = _Reader()
    for path in paths:
        _check_exists(path)
        files = [path]
        if path.is_dir():
            found = sorted([*path.rglob("*.json"), *path.rglob("*.jsonl")])
            files = [file for file in found if file.name not in _OTHERS]
        for file in files:
            reader.read(file, named=not path.is_dir())
    return reader.evidence()


class _Reader:
    """Reads files one after another and collects the results."""

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._unsealed = 0
        self._failed: dict[Setting, str] = {}
        self._skipped: list[Skipped] = []
        self._seen: set[Path] = set()
        self._scores: dict[Path, int] = {}
        self._trials: dict[tuple[str, str], set[str]] = {}
        self._signed: list[Trial] = []
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
        lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        if path.name == _SIGNED:
            self._read_signed(path, lines)
        elif path.name.endswith(_TRIALS):
            self._count_trials(path, lines)
        elif path.name == SEARCH:
            for number, line in lines:
                self._note_commit(self._parse(line, _where(path, number)), path)
            self._skip(str(path), f"{len(lines)} records of a hyperparameter search, not compared with the paper")
        elif path.suffix == ".jsonl":
            for number, line in lines:
                self._read_record(line, path, number, named=True)
        elif path.name == ERROR:
            self._read_failure(text, path)
        else:
            self._read_record(text, path, 0, named=named or path.name == RECORD)

    def _read_record(self, text: str, path: Path, line: int, *, named: bool) -> None:
        content = self._parse(text, _where(path, line))
        if isinstance(content, Mapping) and "benchmark" in content:
            self._scores[path] = self._scores.get(path, 0) + 1
            return
        is_record = isinstance(content, Mapping) and "config_hash" in content and "metrics" in content
        if content is None or not (named or is_record):
            return
        try:
            record = check_record(content, _where(path, line))
            config, added = _checked_config(record)
            if wrong := [name for name, value in record["metrics"].items() if not math.isfinite(value)]:
                raise ValueError(f"its metrics must be finite, got other values for {', '.join(wrong)}.")
        except ValueError as error:
            self._skip(_where(path, line), str(error))
            return
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

    def _note_commit(self, content: Any, path: Path) -> None:
        if isinstance(content, Mapping):
            self._commits.setdefault(path, Counter())[unclean(content)] += 1

    def _count_trials(self, path: Path, lines: Iterable[tuple[int, str]]) -> None:
        for number, line in lines:
            content = self._parse(line, _where(path, number))
            self._note_commit(content, path)
            if path.name != _POOLED and isinstance(content, Mapping) and isinstance(content.get("trial"), str):
                # classification has no horizon
                task = "forecast" if content.get("horizon") else "classify"
                self._trials.setdefault((task, str(content.get("backbone"))), set()).add(content["trial"])

    def _read_signed(self, path: Path, lines: Iterable[tuple[int, str]]) -> None:
        for number, line in lines:
            if (content := self._parse(line, _where(path, number))) is None:
                continue
            self._note_commit(content, path)
            try:
                backbone, name, dataset = (str(content[key]) for key in ("backbone", "trial", "dataset"))
                trial = Trial(backbone, name, dataset, int(content["windows"]), float(content["validation"]))
                if not (trial.trial.strip() and 0 < trial.error < math.inf):
                    raise ValueError(f"got trial {trial.trial!r} with validation error {trial.error}")
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                self._skip(_where(path, number), f"it must be a trial with a validation error above 0 ({error!r})")
            else:
                self._signed.append(trial)

    def _read_failure(self, text: str, path: Path) -> None:
        if (content := self._parse(text, str(path))) is None:
            return
        try:
            setting = setting_of(content["task"], TASKS[content["task"]].config_from(content["config"]))
            self._failed[setting] = f"{content['error']} ({path})"
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._skip(str(path), f"it must be the error of a run of this version, got something else ({error!r})")

    def _parse(self, text: str, where: str) -> Any:
        try:
            return parse_json(text, where)
        except ValueError as error:
            self._skip(where, f"it is not valid JSON ({error}), for example because writing stopped; run it again")
            return None

    def _skip(self, where: str, reason: str) -> None:
        self._skipped.append(Skipped(where=where, reason=reason))

    def evidence(self) -> Evidence:
        """Everything that was read, with one run per setting and seed."""
        groups: dict[Setting, dict[int | None, list[Run]]] = {}
        for run in self._runs:
            groups.setdefault(run.setting, {}).setdefault(run.seed, []).append(run)
        kept: list[Run] = []
        disputed: set[Setting] = set()
        duplicates = other_backends = 0

        def dispute(runs: list[Run], rule: str) -> None:
            disputed.add(runs[0].setting)
            self._skip(" and ".join(run.where for run in runs), f"{rule}; remove the wrong ones")

        for seeds in groups.values():
            chosen: list[Run] = []
            for same in seeds.values():
                fast = _of_kernels(same)
                other_backends += len(same) - len(fast)
                same = fast
                metrics = [run.record["metrics"] for run in same]
                names = dict.fromkeys(name for one in metrics for name in one)
                if other := [name for name in names if len({one.get(name) for one in metrics}) > 1]:
                    dispute(same, f"records of one config must agree, got different {', '.join(other)}")
                else:
                    chosen.append(same[0])
                    duplicates += len(same) - 1
            checksums = {str(run.record.get("data_checksum")) for run in chosen}
            if len(checksums) > 1:
                dispute(chosen, f"records of one setting must use the same data, got {len(checksums)} checksums")
            else:
                kept += chosen
        lacking = Counter((str(run.record["task"]), run.added) for run in kept if run.added)
        notes = [
            f"{count} records of task {task} have no {', '.join(added)}; the default is used."
            for (task, added), count in lacking.items()
        ]
        if duplicates:
            notes.append(f"{duplicates} records occur again with the same setting and metrics, and count once.")
        if other_backends:
            notes.append(f"{other_backends} records of another backend do not count: the kernels made the same runs.")
        notes += [f"{count} scores of `toa bench` in {file} are not compared." for file, count in self._scores.items()]
        for file, found in self._commits.items():
            if bad := found["dirty"] + found["unknown"]:
                notes.append(
                    f"{bad} of {found.total()} records in {file} name no clean commit: {found['dirty']} a dirty one, "
                    f"{found['unknown']} none."
                )
        if self._unsealed:
            notes.append(f"{self._unsealed} of {len(self._runs)} records are without checksum: edits are not noticed.")
        return Evidence(
            runs=tuple(kept),
            failed=self._failed,
            skipped=tuple(self._skipped),
            disputed=frozenset(disputed),
            notes=tuple(notes),
            trials={
                key: Counter("toa" if trial.startswith("toa-") else trial.split()[0] for trial in found if trial)
                for key, found in self._trials.items()
            },
            signed=tuple(self._signed),
        )


def _of_kernels(runs: list[Run]) -> list[Run]:
    """The runs of the Triton kernels, if there are any: backends round differently, and one of them counts."""
    return [run for run in runs if run.record.get("backend") == "triton"] or runs


def _check_exists(path: Path) -> None:
    if not path.exists():
        raise FileNotFoundError(f"results must be files or folders, got {path}, which does not exist.")


def _where(path: Path, line: int) -> str:
    return f"line {line} of {path}" if line else str(path)


def _checked_config(record: Record) -> tuple[Any, tuple[str, ...]]:
    """The config of a record as an object of this version, and the keys that the record lacks."""
    task, values = str(record.get("task")), record.get("config")
    check_choice("task", task, TASKS)
    if not isinstance(values, Mapping):
        raise ValueError(f"its config must be a mapping, got {values!r}.")
    if (found := config_hash(values)) != record["config_hash"]:
        raise ValueError(f"its config must have the hash {record['config_hash']}, got {found}: the record was altered.")
    try:
        config = TASKS[task].config_from(values)
    except (ValueError, TypeError, AttributeError) as error:
        # without the long list of known names
        short = str(error).partition("; known:")[0].rstrip(".")
        raise ValueError(f"another version wrote it ({short}); repeat its command to run it again.") from None
    return config, tuple(_missing_keys(hashed_values(config), values))


def _missing_keys(complete: Mapping[str, Any], found: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in complete.items():
        if name not in found:
            yield f"{prefix}{name}"
        elif isinstance(value, Mapping) and isinstance(found[name], Mapping):
            yield from _missing_keys(value, found[name], f"{prefix}{name}.")


def _canonical(values: Any) -> str:
    return json.dumps(values, sort_keys=True, separators=(",", ":"))
