"""A small size of the demixing experiment."""

from dataclasses import replace
from typing import Any

import pytest


def shrink_demixing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `toa demix` and `toa demo` measure a small model on few signals."""
    from toa.experiments import load_protocol

    def small(task: str, name: str) -> Any:
        full = load_protocol(task, name)
        default = {**full.tables["default"], "embed_dim": 8, "ff_dim": 8, "batch_size": 4, "test_signals": 32}
        return replace(full, tables={**full.tables, "default": default})

    monkeypatch.setattr("toa_paper.demixing.experiment.load_protocol", small)
