"""What the estimators promise of related inputs, and the comparison of two answers by it.

A property relates two calls, such as the forecasts of a table and of the same table with other names of columns. For
each property and estimator `properties.toml` states whether both answers are equal, about equal, or not related;
`results/tables/properties.md` is made from the same file.
"""

import functools
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from toa.estimators.base import Estimator
from toa.estimators.effort import EFFORTS

FILE = Path(__file__).with_name("properties.toml")
EXACT = "exact"
ERROR = "error"
NOT_PROMISED = "not promised"
# fits an estimator of one kind with further options
Fit = Callable[..., Any]
# two answers that a property relates; forecasts are of data whose spread is about one
Pair = tuple[np.ndarray, np.ndarray]
# draws data by the generator and returns pairs of answers; may save to the folder
Property = Callable[[Fit, np.random.Generator, Path], Iterable[Pair]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Promise:
    """How two answers are related.

    Attributes:
        name: Name of the property.
        estimator: Name of the kind of estimator.
        level: EXACT, ERROR or NOT_PROMISED, or the largest difference of the answers.
        why: Why the answers are not equal; empty if they are.
    """

    name: str
    estimator: str
    level: str | float
    why: str

    @property
    def largest(self) -> float | None:
        """Largest difference of the answers; None without a promise."""
        if self.level == NOT_PROMISED:
            return None
        return 0.0 if isinstance(self.level, str) else self.level

    def broken_by(self, pairs: Iterable[Pair]) -> str:
        """How the answers break the promise; empty if they do not."""
        largest = self.largest
        if largest is None:
            raise ValueError(f"{self.name!r} is not promised by {self.estimator!r}, and cannot be tested.")
        count = 0
        for expected, got in pairs:
            count += 1
            if expected.shape != got.shape:
                return f"answers of shape {got.shape} instead of {expected.shape}"
            worst = float(np.abs(expected - got).max())
            # NaN is not smaller either
            if not worst <= largest:
                return f"answers differ by {worst:.3g}, more than {largest:g}"
        return "" if count else "nothing was compared"


def read_content() -> dict[str, Any]:
    """The kinds of estimators, and the properties with their levels and reasons."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def read_promises() -> tuple[Promise, ...]:
    """One promise per property and estimator, in the order of the file."""
    content = read_content()
    promises = []
    for name, entry in content["properties"].items():
        for kind in content["estimators"]:
            if kind in entry:
                why = entry.get("why", {}).get(kind, "")
                promises.append(Promise(name=name, estimator=kind, level=entry[kind], why=why))
    return tuple(promises)


@functools.cache
def tiny_effort() -> str:
    """Register the effort of these tests, which needs no trees, few kernels and no network, and return its name."""
    few: dict[str, Any] = {"trees": 20, "kernels": 84, "kernel_groups": 4}
    none: dict[str, Any] = {"tree_windows": 0, "network_windows": 0, "networks": 0, "candidates": 0}
    EFFORTS.register("tiny")(replace(EFFORTS["quick"], **few, **none))
    return "tiny"


def refused(call: Callable[[], object]) -> Pair:
    """Equal answers if the call raises ValueError, and different ones if it returns."""
    try:
        call()
    except ValueError:
        return np.ones(1), np.ones(1)
    return np.ones(1), np.zeros(1)


def saved_and_loaded(model: Estimator, folder: Path) -> Any:
    """The estimator that a saved file holds."""
    path = folder / "model.toa"
    model.save(path)
    return type(model).load(path)
