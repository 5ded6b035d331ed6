"""Outcome of a part of the campaign. It imports nothing of the project: tests of the library alone use it too."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class Outcome:
    """Counts of what loaders did, and what none may do."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
