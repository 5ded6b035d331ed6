"""What other installed packages add to `toa`. They register it by entry points, and it is loaded on first use.

The groups, each with what an entry of it names:

    toa.commands   a typer app with a command or a group of commands of the entry's name
    toa.tasks         a `toa.training.Task`
    toa.protocols  a package with a folder of protocols per task

A package that is broken is reported in one line, and takes nothing else with it.
"""

import warnings
from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from toa._registry import Registry

T = TypeVar("T")


class PluginError(ImportError):
    """An entry of another package cannot be used."""


@cache
def plugin_entries(group: str) -> dict[str, tuple[EntryPoint, ...]]:
    """Entries of a group by name; several for a name that several packages register."""
    entries: dict[str, tuple[EntryPoint, ...]] = {}
    for entry in entry_points(group=group):
        entries[entry.name] = (*entries.get(entry.name, ()), entry)
    return entries


def load_plugin(group: str, name: str) -> Any:
    """Load the entry of a group; raises PluginError if it cannot be loaded."""
    entries = plugin_entries(group)[name]
    if len(entries) > 1:
        owners = " and ".join(entry.value for entry in entries)
        raise PluginError(f"{name!r} of {group} must be registered by one package, got {owners}; remove one of them.")
    try:
        return entries[0].load()
    # a package of others may raise anything
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise PluginError(
            f"{name!r} of {group} must be importable from {entries[0].value}, got {reason}; "
            "install its package again, or remove it."
        ) from error


class PluginRegistry(Registry[T]):
    """A registry that other packages can add to, by an entry point of a group.

    Looking up a name loads its entry; all entries are loaded to list the names. An entry that cannot be loaded is left
    out with a warning, and raises PluginError when it is looked up.
    """

    def __init__(self, kind: str, group: str, entry_type: type[T]) -> None:
        super().__init__(kind)
        self._group = group
        self._entry_type = entry_type
        self._failures: dict[str, PluginError] = {}

    def _load(self, name: str) -> None:
        """Add the entry of this name, if there is one that can be loaded."""
        if dict.__contains__(self, name) or name in self._failures or name not in plugin_entries(self._group):
            return
        try:
            loaded = load_plugin(self._group, name)
            if not isinstance(loaded, self._entry_type):
                raise PluginError(
                    f"{name!r} of {self._group} must have the type {self._entry_type.__name__}, got "
                    f"{type(loaded).__name__}; install a version of its package that fits this one."
                )
        except PluginError as error:
            self._failures[name] = error
            warnings.warn(f"the {self._kind} {error}", stacklevel=2)
            return
        self[name] = loaded

    def _load_all(self) -> None:
        for name in plugin_entries(self._group):
            self._load(name)

    def __missing__(self, name: object) -> T:
        """Load an entry that was not needed before."""
        if isinstance(name, str):
            self._load(name)
            if name in self._failures:
                raise self._failures[name]
            if dict.__contains__(self, name):
                return self[name]
        self._load_all()
        return super().__missing__(name)

    def __contains__(self, name: object) -> bool:
        if isinstance(name, str):
            self._load(name)
        return dict.__contains__(self, name)

    def __iter__(self) -> Iterator[str]:
        self._load_all()
        return super().__iter__()

    def __len__(self) -> int:
        self._load_all()
        return super().__len__()

    def keys(self) -> KeysView[str]:  # type: ignore[override]
        """All names."""
        self._load_all()
        return super().keys()

    def values(self) -> ValuesView[T]:  # type: ignore[override]
        """All entries."""
        self._load_all()
        return super().values()

    def items(self) -> ItemsView[str, T]:  # type: ignore[override]
        """All names with their entries."""
        self._load_all()
        return super().items()
