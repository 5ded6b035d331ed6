from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def pictures() -> None:
    """Commands draw their pictures, as for users."""


def write_no_picture(figure: object, target: Any, **how: object) -> None:
    """In place of `Figure.savefig`: bytes that are no picture."""
    if hasattr(target, "write"):
        target.write(b"no picture")
    else:
        Path(target).write_bytes(b"no picture")


@pytest.fixture(autouse=True)
def _no_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    # drawing takes most of the time of a command
    if "pictures" not in request.fixturenames and request.node.get_closest_marker("slow") is None:
        monkeypatch.setattr("matplotlib.figure.Figure.savefig", write_no_picture)
