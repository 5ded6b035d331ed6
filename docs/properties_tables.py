"""Tables of what the estimators promise of related inputs, from the file that the tests read."""

import functools
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

from performance_tables import table
from stored_results import ROOT


@functools.cache
def content() -> dict[str, Any]:
    """The kinds of estimators, and the properties with their levels and reasons."""
    path = ROOT / "tests" / "metamorphic" / "properties.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def level_text(level: str | float | None) -> str:
    """A level as it stands in the table."""
    if level is None:
        return "-"
    return level if isinstance(level, str) else f"to {level:g}"


def property_table() -> str:
    """Each property, and how far each estimator has it."""
    kinds: dict[str, str] = content()["estimators"]
    rows = []
    for name, entry in content()["properties"].items():
        rows.append((f"{name}: {entry['meaning']}", *(level_text(entry.get(kind)) for kind in kinds)))
    return table(("property", *kinds.values()), rows, left=len(kinds) + 1)


def reason_table() -> str:
    """Why answers are not equal, with the properties and estimators that have the same reason."""
    places: dict[str, dict[str, list[str]]] = {}
    for name, entry in content()["properties"].items():
        for kind, why in entry.get("why", {}).items():
            places.setdefault(why, {}).setdefault(content()["estimators"][kind], []).append(name)
    rows = []
    for why, kinds in places.items():
        rows.append(("; ".join(f"{kind}: {', '.join(names)}" for kind, names in kinds.items()), why))
    return table(("estimator: property", "why"), rows, left=2)


TABLES: Mapping[str, Callable[[], str]] = {"properties": property_table, "property-reasons": reason_table}
