"""Config fields added after runs were stored: at their default value they do not change the config's hash.

Declare one as `field(default=..., metadata=ADDED_LATER)`. Its default must never change.
"""

from dataclasses import fields, is_dataclass
from typing import Any

ADDED_LATER = {"added_later": True}


def hashed_values(value: Any) -> Any:
    """Return a config as plain values, without fields added later that have their default value."""
    if not is_dataclass(value):
        return value
    pairs = ((f, getattr(value, f.name)) for f in fields(value))
    return {f.name: hashed_values(v) for f, v in pairs if not (f.metadata == ADDED_LATER and v == f.default)}
