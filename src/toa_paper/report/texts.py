"""Texts of the pages, from `text.toml`."""

import tomllib
from importlib.resources import files
from typing import Any

TEXTS: dict[str, Any] = tomllib.loads((files("toa_paper.report") / "text.toml").read_text(encoding="utf-8"))
