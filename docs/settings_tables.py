"""Tables of the paper's settings beside ours, from `src/toa_paper/settings.toml` and the protocols."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

from performance_tables import table
from toa_paper.settings import (
    Departure,
    Difference,
    PaperRun,
    Stated,
    Where,
    differences,
    open_values,
    paper_runs,
    paper_settings,
    stated_values,
    value_text,
)

_PEMS = ("PEMS03", "PEMS04", "PEMS07", "PEMS08")
# tasks by table of the paper
TASKS = {
    "demixing": "demixing",
    "forecast-full": "forecasting",
    "pems-full": "PEMS",
    "sor-ablation-full": "SOR",
    "classification": "classification",
    "anomaly": "anomaly detection",
}


def departures_table() -> str:
    """Every departure: what is stated, what is done here and where, and the reason."""
    rows = []
    for entry in paper_settings().departures:
        found = [one for one in differences() if one.key in entry.keys and entry.holds(one.run)]
        rows.append([entry.about, stated_text(entry, found), ours_text(entry, found), entry.reason])
    return table(["setting", "stated", "here", "reason"], rows, left=4)


def stated_text(entry: Departure, found: Sequence[Difference]) -> str:
    """What is stated, by setting, and by whom if not by the paper."""
    settings = paper_settings()
    values = dict.fromkeys((named(entry, one.key), one.stated) for one in found)
    scripts = any(one.source not in settings.sections for one in found)
    text = "; ".join(f"{name} {value}".strip() for name, value in values)
    return f"{text} (authors' code)" if scripts else text


def ours_text(entry: Departure, found: Sequence[Difference]) -> str:
    """Our values by setting, each with the data sets that have it unless all do."""
    values: dict[tuple[str, str], dict[str, None]] = {}
    for one in found:
        values.setdefault((named(entry, one.key), value_text(one.ours)), {})[one.run.dataset] = None
    parts = []
    for (name, value), sets in values.items():
        where = "" if every_set(entry, sets) else f" ({', '.join(joined(sets))})"
        parts.append(f"{name} {value}{where}".strip())
    return "; ".join(parts)


def named(entry: Departure, key: str) -> str:
    """The short name of a setting where a departure has several."""
    return paper_settings().names[key] if len(entry.keys) > 1 else ""


def every_set(where: Where, sets: Iterable[str]) -> bool:
    """Whether these are all data sets of an entry."""
    return {run.dataset for run in paper_runs() if where.holds(run)} == {*sets}


def joined(sets: Iterable[str]) -> list[str]:
    """Names of data sets, with all of PEMS as one."""
    names = list(sets)
    if set(_PEMS) <= {*names}:
        names = [name for name in names if name not in _PEMS] + ["PEMS"]
    return names


def settings_table() -> str:
    """Every setting that the paper states: where it states it, for what, its value, and ours."""
    settings = paper_settings()
    rows = []
    for entry in settings.stated:
        different, held = count_departures(entry)
        source = settings.sections.get(entry.source) or entry.source
        same = "yes" if not different else f"no, in {different} of {held} runs"
        rows.append([f"`{entry.key}`", about_runs(entry), entry.text, source, same])
    return table(["setting", "of", "value", "stated in", "the same here"], rows, left=5)


@functools.cache
def stated_by_run() -> tuple[tuple[PaperRun, Mapping[str, Stated]], ...]:
    """What is stated for each run of the paper."""
    return tuple((run, stated_values(run)) for run in paper_runs())


def count_departures(entry: Stated) -> tuple[int, int]:
    """How many runs depart from a stated setting, and for how many it is stated."""
    held = [run for run, stated in stated_by_run() if stated.get(entry.key) is entry]
    departing = {one.run.names for one in differences() if one.key == entry.key}
    return sum(run.names in departing for run in held), len(held)


def about_runs(entry: Stated) -> str:
    """What an entry is about, in words."""
    tasks = list(dict.fromkeys(TASKS[name] for name in entry.tables))
    parts = [", ".join(part) for part in (tasks, entry.backbones, joined(entry.datasets), entry.attentions) if part]
    return "; ".join(parts) or "all"


def open_table() -> str:
    """What is stated by neither the paper nor a script, and what it follows here."""
    rows = []
    for entry in paper_settings().open:
        values: dict[str, dict[str, None]] = {}
        for run, key, value in open_values():
            if key in entry.keys and entry.holds(run):
                values.setdefault(key, {})[value_text(value)] = None
        shown = "; ".join(f"`{key}` {' or '.join(found)}" for key, found in values.items())
        rows.append([entry.about, shown, entry.follows])
    return table(["setting", "here", "follows"], rows, left=3)


TABLES: Mapping[str, Callable[[], str]] = {
    "departures": departures_table,
    "paper-settings": settings_table,
    "open-settings": open_table,
}
