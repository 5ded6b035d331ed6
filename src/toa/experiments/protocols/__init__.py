"""Protocols: one TOML file per protocol in a folder per task, and functions that read them.

Beside the tables of `toa.experiments.settings`, a file may have a table `shared`, which is merged below the table of
each backbone. A backbone's table may name another protocol of the same task with `like`; that protocol's table is then
merged below both.
"""

import sys
import tomllib
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from types import ModuleType
from typing import Any

from toa._checks import ArgumentError, check_choice
from toa._plugins import PluginRegistry
from toa._registry import Registry
from toa.experiments.base import experiment_of
from toa.experiments.settings import Protocol, merge

# packages with a folder of protocols per task; other packages may register further ones
PROTOCOL_PACKAGES: Registry[ModuleType] = PluginRegistry("package of protocols", "toa.protocols", ModuleType)
PROTOCOL_PACKAGES["toa"] = sys.modules[__name__]

# keys of a file that are not the table of a backbone
_OTHER = ("about", "source", "seeds", "attention", "default_attention", "small_below", "shared")
_SUFFIX = ".toml"


def protocol_names(task: str = "forecast") -> list[str]:
    """Names of all protocols of a task."""
    return sorted(_protocol_files(task))


@cache
def _protocol_files(task: str) -> dict[str, Traversable]:
    """The file of each protocol of a task, from all packages."""
    files_by_name: dict[str, Traversable] = {}
    for package in PROTOCOL_PACKAGES.values():
        folder = files(package) / task
        for entry in folder.iterdir() if folder.is_dir() else ():
            name = entry.name.removesuffix(_SUFFIX)
            if not entry.name.endswith(_SUFFIX):
                continue
            if name in files_by_name:
                raise ArgumentError(
                    f"protocol {name!r} of task {task!r}", "have one file", f"{files_by_name[name]} and {entry}"
                )
            files_by_name[name] = entry
    return files_by_name


@cache
def load_protocol(task: str, name: str) -> Protocol:
    """Read a protocol."""
    check_choice("protocol", name, protocol_names(task))
    content = tomllib.loads(_protocol_files(task)[name].read_text(encoding="utf-8"))
    shared = content.get("shared", {})
    tables = {key: merge(shared, value) for key, value in content.items() if key not in _OTHER}
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
    """Build the config of one run of a protocol; see `Experiment.resolve` for the arguments."""
    return experiment_of(task).resolve(load_protocol(task, protocol), **names)
