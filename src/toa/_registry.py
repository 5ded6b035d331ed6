"""Registry: register, look up and list named entries."""

from collections.abc import Callable
from typing import TypeVar

from toa._limits import shorten

T = TypeVar("T")


class Registry(dict[str, T]):
    """Entries by name. A duplicate name raises; an unknown one raises and lists the known ones."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind

    def register(self, name: str) -> Callable[[T], T]:
        """Register the decorated object under `name`."""

        def enter(entry: T) -> T:
            if name in self:
                raise ValueError(f"{self._kind} {name!r} is already registered; choose another name.")
            self[name] = entry
            return entry

        return enter

    def __missing__(self, name: object) -> T:
        raise ValueError(f"unknown {self._kind} {shorten(name)}; known: {', '.join(self)}.")
