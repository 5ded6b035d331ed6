"""The settings that the paper states, and where ours differ: `settings.toml` beside the protocols of the tables.

A setting of a run is stated by the paper, or by the authors' script that the paper follows, or by neither. Differences
from both are departures, and the page of the protocols lists them: `departures` has each with its reason.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from toa._checks import ArgumentError
from toa.experiments.protocols import load_protocol
from toa.experiments.run import Job
from toa.models import complete_settings
from toa.models.registry import ModelKind
from toa.training.config import build_config
from toa_paper.tables import protocol_job, table_cells

# tables of means repeat the runs of others, and the table of efficiency is of times
RUN_TABLES = ("demixing", "forecast-full", "pems-full", "classification", "anomaly", "sor-ablation-full")
# what a task builds
_KINDS: Mapping[str, ModelKind] = {"forecast": "forecast", "classify": "classify", "anomaly": "reconstruct"}
_NO_SOR = "-nosor"
# the scale of an attention that sets none
DEFAULT_SCALE = "1/√D"
# settings of a schedule that other schedules do not read
_OF_SCHEDULE = {"training.pct_start": "onecycle", "training.warmup": "warmup-cosine"}
# name of a setting, and its value
Values = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Where:
    """Which runs an entry is about; an empty field means all.

    Attributes:
        attentions: Names of attentions; "toa" stands for its three variants, "sor" and "no-sor" for those with and
            without SOR.
    """

    tables: tuple[str, ...] = ()
    backbones: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    attentions: tuple[str, ...] = ()

    def holds(self, run: "PaperRun") -> bool:
        """Whether a run is one of them."""
        families = {run.attention}
        if run.attention.startswith("toa-"):
            families |= {"toa", "no-sor" if run.variant.endswith(_NO_SOR) else "sor"}
        return (
            (not self.tables or run.table in self.tables)
            and (not self.backbones or run.backbone in self.backbones)
            and (not self.datasets or run.dataset in self.datasets)
            and (not self.attentions or bool(families & {*self.attentions}))
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Stated(Where):
    """A setting that the paper states, or the library or authors' code that it follows.

    Attributes:
        key: Name in the config of a run; "model." and so on stand before the names of its parts.
        source: Label of the section in the paper, or a key of `sources`.
        value: The value; `least` and `most` are the ends of a range.
    """

    key: str
    source: str
    value: Any = None
    least: float | None = None
    most: float | None = None

    def agrees(self, ours: Any) -> bool:
        """Whether a value is the stated one."""
        if self.least is None and self.most is None:
            return bool(_plain(ours) == _plain(self.value))
        return (self.least is None or ours >= self.least) and (self.most is None or ours <= self.most)

    @property
    def text(self) -> str:
        """The value, for a table."""
        if self.least is None and self.most is None:
            return value_text(self.value)
        if self.most is None:
            return f"at least {value_text(self.least)}"
        return f"{value_text(self.least)} to {value_text(self.most)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Script(Where):
    """The protocol with the authors' script that the paper follows for its other settings.

    Attributes:
        backbone: Whose table of the protocol holds; that of the run if empty.
    """

    protocol: str
    backbone: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Open(Where):
    """Settings that neither the paper nor a script states, and what they follow here."""

    about: str
    keys: tuple[str, ...]
    follows: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Departure(Where):
    """Settings that differ from what is stated, and the reason."""

    about: str
    keys: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class PaperRun:
    """A run that reproduces a number of the paper."""

    table: str
    backbone: str
    dataset: str
    horizon: str
    variant: str
    job: Job

    @property
    def attention(self) -> str:
        """The name of its attention."""
        return str(self.job.config.attention.name)

    @property
    def names(self) -> tuple[str, ...]:
        """What no other run has."""
        return self.table, self.backbone, self.dataset, self.horizon, self.variant


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A setting of a run that is not what the paper, or the script that it follows, states."""

    run: PaperRun
    key: str
    stated: str
    ours: Any
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperSettings:
    """The content of `settings.toml`.

    Attributes:
        sources: What is stated besides the sections of the paper, by a short name.
        library: Settings of this library: how a run is executed, not what is trained.
        names: Short names of settings, for a departure that has several.
    """

    sections: Mapping[str, str]
    sources: Mapping[str, str]
    library: tuple[str, ...]
    stated: Sequence[Stated]
    scripts: Sequence[Script]
    open: Sequence[Open]
    departures: Sequence[Departure]
    names: Mapping[str, str]


@cache
def paper_settings() -> PaperSettings:
    """Read `settings.toml`."""
    content = tomllib.loads((files("toa_paper") / "settings.toml").read_text(encoding="utf-8"))
    kinds: Mapping[str, type[Any]] = {"stated": Stated, "scripts": Script, "open": Open, "departures": Departure}
    lists = {name: [build_config(kind, entry, name) for entry in content[name]] for name, kind in kinds.items()}
    found = PaperSettings(
        sections=content["sections"],
        sources=content["sources"],
        library=tuple(content["library"]["keys"]),
        names=content["names"],
        **lists,
    )
    known = {*found.sections, *found.sources}
    for entry in found.stated:
        if entry.source not in known:
            raise ArgumentError("source", f"be one of {', '.join(sorted(known))}", repr(entry.source))
    return found


@cache
def paper_runs() -> tuple[PaperRun, ...]:
    """One run with the first seed for each data set, horizon and variant of the tables with runs."""
    runs: dict[tuple[str, ...], PaperRun] = {}
    for table in RUN_TABLES:
        for cell in table_cells(table):
            one = cell.number
            for job in cell.jobs:
                run = PaperRun(table, one.backbone, one.dataset, one.horizon, one.variant, job)
                runs.setdefault(run.names, run)
    return tuple(runs.values())


def run_values(config: Any) -> Values:
    """All settings of a run by name, with the model's defaults filled in."""
    from toa.experiments.records import hashed_values

    # demixing has some as constants
    values = {"share_drop_rate": config.share_drop_rate, **hashed_values(config)}
    if values["attention"]["scale"] is None:
        values["attention"]["scale"] = DEFAULT_SCALE
    kind = _KINDS.get(config.task)
    if kind is not None:
        values["model"] = complete_settings(
            config.backbone, kind, attention=config.attention, settings=dict(config.model)
        )
    return dict(_flat(values))


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _plain(value: Any) -> Any:
    """A value as TOML states it: sequences as lists, numbers as floats."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def value_text(value: Any) -> str:
    """A value for a table."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(value_text, value))
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def stated_values(run: PaperRun) -> dict[str, Stated]:
    """What is stated for a run, by setting: by the script that the paper follows, and above it by the entries."""
    settings = paper_settings()
    found: dict[str, Stated] = {}
    for script in settings.scripts:
        if script.holds(run):
            found |= {
                key: Stated(key=key, source=script.protocol, value=value)
                for key, value in _script_values(run, script).items()
            }
    return found | {entry.key: entry for entry in settings.stated if entry.holds(run)}


def _script_values(run: PaperRun, script: Script) -> Values:
    """Settings of a script for the data set of a run, without its attention; empty if it has no such data set."""
    config = run.job.config
    backbone = script.backbone or config.backbone
    if config.dataset not in load_protocol(config.task, script.protocol).tables[backbone]:
        return {}
    horizon = int(run.horizon) if run.horizon.isdecimal() else None
    job = protocol_job(config.task, script.protocol, config.dataset, horizon, backbone, "softmax")
    return {key: value for key, value in run_values(job.config).items() if not key.startswith("attention.")}


@cache
def differences() -> tuple[Difference, ...]:
    """Every setting of every run that is not what is stated."""
    library = paper_settings().library
    found = []
    for run in paper_runs():
        ours = run_values(run.job.config)
        for key, entry in stated_values(run).items():
            # networks of other kinds lack some settings of the script
            if key in ours and key not in library and not entry.agrees(ours[key]):
                found.append(Difference(run=run, key=key, stated=entry.text, ours=ours[key], source=entry.source))
    return tuple(found)


@cache
def open_values() -> tuple[tuple[PaperRun, str, Any], ...]:
    """Every setting of every run that nothing states, but for defaults of the models, which are their authors'."""
    library = paper_settings().library
    found = []
    for run in paper_runs():
        stated = stated_values(run)
        config = run.job.config
        named = {f"model.{name}" for name in config.model} if config.task in _KINDS else {*()}
        for key, value in run_values(config).items():
            default = key.startswith("model.") and key not in named
            unread = key in _OF_SCHEDULE and config.training.schedule != _OF_SCHEDULE[key]
            if key not in stated and key not in library and value is not None and not default and not unread:
                found.append((run, key, value))
    return tuple(found)


def entries_of(entries: Iterable[Departure] | Iterable[Open], run: PaperRun, key: str) -> list[Any]:
    """Entries that name a setting of a run."""
    return [entry for entry in entries if key in entry.keys and entry.holds(run)]
