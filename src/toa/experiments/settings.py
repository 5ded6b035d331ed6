"""Protocols as tables of settings.

A protocol has one table per backbone. In it, `default` applies to every dataset, and a table named after a dataset
overrides it. `[attention.NAME]` lists where an attention differs from its defaults. A backbone's `recipe.FAMILY.SIZE`
overrides both: FAMILY is "toa" or "softmax" (all other attentions), SIZE "all", "small" or "large" (by `small_below`).
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toa._checks import ArgumentError

SettingTree = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Protocol:
    """Named settings of one task.

    Attributes:
        seeds: Seeds to run by default, for a task that has several.
        default_attention: Attention of a run that names none.
        small_below: Number of training windows from which a dataset is large.
    """

    name: str
    about: str
    tables: Mapping[str, SettingTree]
    attention: Mapping[str, SettingTree]
    seeds: tuple[int, ...] = ()
    default_attention: str = "toa-gated"
    small_below: int = 0


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> SettingTree:
    """Merge two tables recursively into a new one; `above` takes precedence."""
    merged = {key: merge(value, {}) if isinstance(value, Mapping) else value for key, value in below.items()}
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = merge(old if isinstance(old, dict) else {}, value) if isinstance(value, Mapping) else value
    return merged


def change(settings: SettingTree, text: str) -> None:
    """Apply "key=value" in place. Dots separate nested keys; a value that is not TOML is taken as text."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ArgumentError("a change", "read key=value", repr(text), "for instance training.learning_rate=1e-3")
    *path, last = key.split(".")
    table = settings
    for part in path:
        if not isinstance(table.get(part, {}), dict):
            raise ValueError(f"unknown key {key!r}; {part!r} has no nested keys.")
        table = table.setdefault(part, {})
    try:
        table[last] = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        table[last] = value
