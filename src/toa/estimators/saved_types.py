"""Types of what a file of an estimator holds: whoever changes a file can state anything.

    check_parameters(Forecaster, {"horizon": 2, "id": {}})    # ValueError: id must be of the type str | None, got {}

Checks are no asserts: `python -O` leaves those out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pandas as pd

from toa._checks import ArgumentError
from toa._limits import shorten
from toa.estimators.architecture import NETWORK


def check_parameters(kind: type, parameters: Mapping[str, Any]) -> None:
    """Raise ValueError for a parameter of another type than the estimator declares, or that it does not have."""
    hints = get_type_hints(kind)
    names = {field.name for field in fields(kind)}
    for name, value in parameters.items():
        if name not in names:
            raise ArgumentError("parameters", f"be those of {kind.__name__}", shorten(name))
        if not has_type(value, hints[name]):
            raise ArgumentError(name, _rule(hints[name]), shorten(value))


def check_columns(name: str, columns: Any) -> tuple[str, ...]:
    """The names of columns in a file; raises ValueError for none, for other values than text, and for equal ones."""
    texts = isinstance(columns, list | tuple) and all(isinstance(column, str) for column in columns)
    if not texts or not columns or len(set(columns)) < len(columns):
        raise ArgumentError(name, "be different names of columns", shorten(columns))
    return tuple(columns)


def check_ids(ids: Any) -> tuple[Any, ...]:
    """The ids of series in a file; raises ValueError for values that are no text or numbers, and for equal ones."""
    if not isinstance(ids, list | tuple) or not all(isinstance(id, str | int | float | None) for id in ids):
        raise ArgumentError("ids", "be text or numbers", shorten(ids))
    if not ids or len(set(ids)) < len(ids):
        raise ArgumentError("ids", "be different", shorten(ids))
    return tuple(ids)


def check_frequency(freq: object) -> None:
    """Raise ValueError for a frequency in a file that is none, or whose steps are longer than dates can tell."""
    if type(freq) not in (str, int, type(None)):
        raise ArgumentError("freq", "be a frequency", shorten(freq))
    if isinstance(freq, str):
        try:
            pd.Timestamp(2000, 1, 1) + pd.tseries.frequencies.to_offset(freq)
        except (ValueError, OverflowError) as error:
            raise ArgumentError("freq", "be a frequency of dates", f"{shorten(freq)} ({error})") from None


def check_errors(errors: Any) -> None:
    """Raise ValueError if the errors of methods in a file are no numbers by name."""
    if not isinstance(errors, Mapping) or not all(has_type(error, float) for error in errors.values()):
        raise ArgumentError("errors", "be numbers by the name of a method", shorten(errors))


def check_network(weights: Mapping[str, float], network: object) -> None:
    """Raise ValueError for a file in which the network has a weight, but is missing."""
    if NETWORK in weights and network is None:
        raise ArgumentError("a network with a weight", "be in the file", "none")


def has_type(value: Any, hint: Any) -> bool:
    """Whether a value that came from JSON has the type of an annotation; lists have become tuples."""
    kind = get_origin(hint)
    parts = get_args(hint)
    if hint is Any:
        return True
    if kind in (Union, UnionType):
        return any(has_type(value, part) for part in parts)
    if kind is Literal:
        return isinstance(value, str) and value in parts
    if kind is Sequence:
        return isinstance(value, tuple) and all(has_type(entry, parts[0]) for entry in value)
    if kind is Mapping:
        return isinstance(value, dict) and all(isinstance(name, str) for name in value)
    if hint is float:
        return type(value) in (int, float)
    # bool is an int for Python
    return type(value) is hint


def _rule(hint: Any) -> str:
    """What a parameter of this type must be."""
    if Sequence[str] in (hint, *get_args(hint)):
        return "be a list of columns"
    name = hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
    return f"be of the type {name.replace('collections.abc.', '')}"
