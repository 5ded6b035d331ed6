"""Protocols: one TOML file per protocol in a folder per task, and functions that read them.

Beside the tables of `toa.tasks.config`, a backbone's table may name another protocol of the same task with `like`;
that protocol's table is then merged below it.
"""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from toa._checks import check_choice
from toa.tasks import TASKS, Protocol
from toa.tasks.config import merge

# keys of a file that are not the table of a backbone
_OTHER = ("about", "source", "seeds", "attention", "default_attention", "small_below")


def protocol_names(task: str = "forecast") -> list[str]:
    """Names of all protocols of a task."""
    folder = files(__name__) / task
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


@cache
def load_protocol(task: str, name: str) -> Protocol:
    """Read a protocol."""
    check_choice("protocol", name, protocol_names(task))
    content = tomllib.loads((files(__name__) / task / f"{name}.toml").read_text(encoding="utf-8"))
    tables = {key: value for key, value in content.items() if key not in _OTHER}
    for backbone, own in tables.items():
        if (like := own.pop("like", None)) is not None:
            tables[backbone] = merge(load_protocol(task, like).tables[backbone], own)
    return Protocol(
        name=name,
        about=str(content["about"]),
        tables=tables,
        attention=content.get("attention", {}),
        seeds=tuple(content.get("seeds", ())),
        **{key: content[key] for key in ("default_attention", "small_below") if key in content},
    )


def resolve(task: str, protocol: str, **names: Any) -> Any:
    """Build the config of one run of a protocol; see `Task.resolve` for the arguments."""
    return TASKS[task].resolve(load_protocol(task, protocol), **names)
