"""What a report stands on: records of any runs, each with where it was read, and all that could not count."""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from toa._checks import check_choice
from toa.experiments.claims import CLAIM
from toa.experiments.records import Record, check_record
from toa.experiments.run import config_from
from toa.experiments.runner import ERROR, RECORD
from toa.report.operators import OPERATORS_FILE
from toa.tasks import TASKS

# records of a search of settings, which are no runs of a protocol even where a setting tried is the protocol's
SEARCH = "search.jsonl"
# what stands beside records and is none
_OTHERS = (CLAIM, OPERATORS_FILE, "efficiency.json")

Key = tuple[str, str]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Run:
    """A record that may count.

    Attributes:
        record: As it was read, but for its config, which is whole: what later versions added has its default.
        path, line: Where it was read; line 0 is the whole file.
        setting: The task and the config but for the seed: runs that differ in nothing else have the same.
        seed: None where there is nothing random.
        added: Keys of the config that the record was written without.
    """

    record: Record
    path: Path
    line: int
    setting: Key
    seed: int | None
    added: tuple[str, ...]

    @property
    def where(self) -> str:
        """Its place in words."""
        return f"line {self.line} of {self.path}" if self.line else str(self.path)


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """A run that ended in an error, and where that is written."""

    setting: Key
    error: str
    path: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Skipped:
    """Something that was read and does not count."""

    where: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """All that was found.

    Attributes:
        runs: What counts: one for each setting and seed.
        failed: Runs that ended in an error.
        skipped: What does not count.
        disputed: Settings of which records contradict one another.
        notes: What was settled on the way.
    """

    runs: tuple[Run, ...]
    failed: tuple[Failed, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    disputed: frozenset[Key] = frozenset()
    notes: tuple[str, ...] = ()

    def by_setting(self) -> dict[Key, dict[int | None, Run]]:
        """Runs of each setting by seed."""
        index: dict[Key, dict[int | None, Run]] = {}
        for run in self.runs:
            index.setdefault(run.setting, {})[run.seed] = run
        return index


def setting_of(task: str, config: Any) -> Key:
    """The key of a config's setting."""
    plain = {name: value for name, value in asdict(config).items() if name != "seed"}
    return task, _canonical(plain)


def read_evidence(paths: Iterable[Path]) -> Evidence:
    """Records in files and below folders: record.json, other JSON files that hold one, and one a line of .jsonl files.

    What is no whole record, was altered, has a config that this version cannot read, or contradicts another record of
    the same run is left out and named.

    Raises:
        FileNotFoundError: If a path is not there.
    """
    reader = _Reader()
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"results must be files or folders, but {path} is neither.")
        for file in _files(path):
            reader.read(file, named=not path.is_dir())
    settled = _settle_all(reader.runs)
    notes = [*_additions(settled.kept)]
    if settled.twice:
        notes.append(f"{settled.twice} records stand in two places, alike in setting and metrics, and count once.")
    return Evidence(
        runs=tuple(settled.kept),
        failed=tuple(reader.failed),
        skipped=(*reader.skipped, *settled.skipped),
        disputed=frozenset(settled.disputed),
        notes=tuple(notes),
    )


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in (*path.rglob("*.json"), *path.rglob("*.jsonl")) if file.name not in _OTHERS)


class _Reader:
    """Reads files one after another, and keeps what came of each."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.failed: list[Failed] = []
        self.skipped: list[Skipped] = []
        self._seen: set[Path] = set()

    def read(self, path: Path, *, named: bool) -> None:
        """Read a file; `named` if somebody asked for it, so that it has to be a record."""
        if path.resolve() in self._seen:
            return
        self._seen.add(path.resolve())
        try:
            text = path.read_text(encoding="utf-8")
        except ValueError:
            self._skip(str(path), "it is no text")
            return
        if path.name == SEARCH:
            lines = sum(bool(line.strip()) for line in text.splitlines())
            self._skip(str(path), f"{lines} records of a search of settings, which stand apart from the paper's cells")
        elif path.suffix == ".jsonl":
            for number, line in enumerate(text.splitlines(), 1):
                if line.strip():
                    self._read_record(line, path, number, named=True)
        elif path.name == ERROR:
            self._read_failure(text, path)
        else:
            self._read_record(text, path, 0, named=named or path.name == RECORD)

    def _read_record(self, text: str, path: Path, line: int, *, named: bool) -> None:
        where = f"line {line} of {path}" if line else str(path)
        content = self._parse(text, where)
        if content is None or (not named and not _is_like_a_record(content)):
            return
        try:
            record = check_record(content, where)
            config, added = _settle(record)
            _check_metrics(record)
        except ValueError as error:
            self._skip(where, str(error))
            return
        task = record["task"]
        seed = getattr(config, "seed", None)
        whole = {**record, "config": json.loads(_canonical(asdict(config)))}
        run = Run(record=whole, path=path, line=line, setting=setting_of(task, config), seed=seed, added=added)
        self.runs.append(run)

    def _read_failure(self, text: str, path: Path) -> None:
        content = self._parse(text, str(path))
        if content is None:
            return
        try:
            setting = setting_of(content["task"], config_from(content["task"], content["config"]))
            self.failed.append(Failed(setting=setting, error=str(content["error"]), path=path))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._skip(str(path), f"it must be the error of a run of this version, got something else ({error!r})")

    def _parse(self, text: str, where: str) -> Any:
        try:
            return json.loads(text)
        except ValueError as error:
            self._skip(where, f"it is no whole JSON ({error}), as when a process is killed in writing; run it again")
            return None

    def _skip(self, where: str, reason: str) -> None:
        self.skipped.append(Skipped(where=where, reason=reason))


def _is_like_a_record(content: Any) -> bool:
    return isinstance(content, Mapping) and "config_hash" in content and "metrics" in content


def _settle(record: Record) -> tuple[Any, tuple[str, ...]]:
    """The config of a record as this version has it, and the keys that it lacks."""
    task, values = str(record.get("task")), record.get("config")
    check_choice("task", task, TASKS)
    if not isinstance(values, Mapping):
        raise ValueError(f"its config must be a table of settings, got {values!r}.")
    found = hashlib.sha256(_canonical(values).encode()).hexdigest()[:16]
    if found != record["config_hash"]:
        raise ValueError(f"its config must have the hash {record['config_hash']}, got {found}: it was altered since.")
    try:
        config = config_from(task, values)
    except (ValueError, TypeError, AttributeError) as error:
        # of what a version knows, the list would be long
        said = str(error).partition("; known:")[0].rstrip(".")
        raise ValueError(f"it has the schema of another version ({said}); run it again, as its command says.") from None
    return config, tuple(_lacking(asdict(config), values))


def _lacking(whole: Mapping[str, Any], found: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in whole.items():
        if name not in found:
            yield f"{prefix}{name}"
        elif isinstance(value, Mapping) and isinstance(found[name], Mapping):
            yield from _lacking(value, found[name], f"{prefix}{name}.")


def _check_metrics(record: Record) -> None:
    wrong = [name for name, value in record["metrics"].items() if not math.isfinite(value)]
    if wrong:
        raise ValueError(f"its metrics must be finite, got {', '.join(wrong)} that are not.")


@dataclass(kw_only=True)
class _Settled:
    """One run for each setting and seed."""

    kept: list[Run] = field(default_factory=list)
    twice: int = 0
    disputed: list[Key] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    def dispute(self, runs: list[Run], rule: str) -> None:
        """Leave out runs that contradict one another, all of them."""
        self.disputed.append(runs[0].setting)
        self.skipped.append(
            Skipped(where=" and ".join(run.where for run in runs), reason=f"{rule}; remove the wrong ones")
        )


def _settle_all(runs: Iterable[Run]) -> _Settled:
    settled = _Settled()
    groups: dict[Key, dict[int | None, list[Run]]] = {}
    for run in runs:
        groups.setdefault(run.setting, {}).setdefault(run.seed, []).append(run)
    for seeds in groups.values():
        chosen: list[Run] = []
        for same in seeds.values():
            if differ := _differing(same):
                settled.dispute(same, f"records of one config must agree, got differing {differ}")
            else:
                chosen.append(same[0])
                settled.twice += len(same) - 1
        sums = {str(run.record.get("data_checksum")) for run in chosen}
        if len(sums) > 1:
            settled.dispute(chosen, f"records of one setting must be of the same data, got {len(sums)} checksums")
        else:
            settled.kept += chosen
    return settled


def _differing(runs: list[Run]) -> str:
    """Names of metrics that are not the same in all."""
    metrics: list[dict[str, float]] = [run.record["metrics"] for run in runs]
    names = dict.fromkeys(name for one in metrics for name in one)
    return ", ".join(name for name in names if len({one.get(name) for one in metrics}) > 1)


def _additions(runs: Iterable[Run]) -> Iterator[str]:
    """What was put into configs that are older than this version's, a sentence for each way."""
    counts: dict[tuple[str, tuple[str, ...]], int] = {}
    for run in runs:
        if run.added:
            key = (str(run.record["task"]), run.added)
            counts[key] = counts.get(key, 0) + 1
    for (task, added), count in counts.items():
        yield f"{count} records of {task} are older than {', '.join(added)} and are taken to have the default."


def _canonical(values: Any) -> str:
    return json.dumps(values, sort_keys=True, separators=(",", ":"))
