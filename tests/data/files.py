"""Small files in the formats of the benchmarks, catalogue entries for them, and a web server with faults."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pooch
import pytest

from toa.data import DatasetSpec, checksum


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without data: no $TOA_DATA, an empty cache."""
    cache = tmp_path / "cache"
    monkeypatch.delenv("TOA_DATA", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda project: cache / project)
    return tmp_path


def values(rows: int = 120, channels: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, channels)).round(4)


def write_csv(path: Path, table: np.ndarray, *, columns: Any = None, dates: Any = "h") -> Path:
    """A csv file with a header; `dates` is a frequency, a list of cells, or None for no dates."""
    names = [*map(str, range(table.shape[1] - 1)), "OT"] if columns is None else columns
    frame = pd.DataFrame(table, columns=names)
    if dates is not None:
        stamps = pd.date_range("2016-07-01", periods=len(table), freq=dates) if isinstance(dates, str) else dates
        frame.insert(0, "date", stamps)
    path.parent.mkdir(parents=True, exist_ok=True)
    frame.to_csv(path, index=False)
    return path


def write_text(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def packed(path: Path) -> Path:
    """Replace a file by its gzipped form."""
    target = path.with_name(f"{path.name}.gz")
    target.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    return target


def make_spec(true_file: Path | None = None, /, **changes: Any) -> DatasetSpec:
    """An entry for a small csv file; its checksum is that of `true_file`."""
    known = {"sha256": checksum(true_file)} if true_file is not None else {}
    settings: dict[str, Any] = {
        "name": "Small",
        "path": "small/small.csv",
        "rows": 120,
        "channels": 3,
        "frequency": "h",
        "split": "ratio",
        "reader": "csv",
        "licence": "none",
        "source": "https://example.org/small",
        "target": "OT",
    }
    return DatasetSpec(**{**settings, **known, **changes})


@dataclass
class Web:
    """Behaviour of the server, and the Range header of every request."""

    content: bytes
    ranges: bool = True
    status: int | None = None
    # bytes after which the connection breaks, one entry per request
    drops: list[int] = field(default_factory=list)
    shift: int = 0
    asked: list[str | None] = field(default_factory=list)
    url: str = ""


@contextmanager
def serve(web: Web) -> Iterator[Web]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            web.asked.append(asked)
            if web.status is not None:
                return self.send_error(web.status)
            start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and web.ranges else 0
            if start >= len(web.content):
                return self.send_error(416)
            self.send_response(206 if asked and web.ranges else 200)
            body = web.content[start + web.shift if start else 0 :]
            if asked and web.ranges:
                first = start + web.shift
                self.send_header("Content-Range", f"bytes {first}-{len(web.content) - 1}/{len(web.content)}")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: web.drops.pop(0)] if web.drops else body)
            return None

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    web.url = f"http://127.0.0.1:{server.server_port}/small.csv"
    try:
        yield web
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
