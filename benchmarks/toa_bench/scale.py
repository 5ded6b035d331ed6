"""Forecast panels of growing size from parquet files, and measure throughput and memory per process.

    run_scale([10_000, 100_000], executor="pool", workers=2, work={"effort": "quick"}, out=path)     # a record per size

The series are generated: a season of 12 steps, a trend and noise, each with its own level. They are written to a
temporary folder, in files of equal numbers of series, and a forecaster is fitted to a sample of them first.
"""

import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from toa._checks import check_at_least
from toa._console import make_console, make_table
from toa.estimators import Forecaster
from toa.experiments.records import provenance
from toa.integrations.ray import forecast_parts, sample_series
from toa_bench.leaderboards import add_record, read_lines

# rows of a series
STEPS = 100
# rows to forecast
HORIZON = 12
# rows of a season
SEASON = 12
# series of a file
_PART = 10_000


def write_panel(folder: Path, series: int, seed: int = 2024) -> int:
    """Write a panel in parts; returns its bytes."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    rng = np.random.default_rng(seed)
    times = np.arange("2015-01", np.datetime64("2015-01") + STEPS, dtype="datetime64[M]").astype("datetime64[s]")
    place = np.arange(STEPS)
    size = 0
    for start in range(0, series, _PART):
        count = min(_PART, series - start)
        level, trend, depth = rng.lognormal(4.0, 1.0, (3, count, 1)) * np.array([1.0, 0.002, 0.2])[:, None, None]
        phase = rng.uniform(0, 2 * np.pi, (count, 1))
        wave = depth * np.sin(2 * np.pi * place / SEASON + phase)
        values = level + trend * place + wave + 0.1 * level * rng.normal(size=(count, STEPS))
        table = {"id": np.repeat(np.arange(start, start + count), STEPS), "month": np.tile(times, count)}
        path = folder / f"part-{start // _PART:05d}.parquet"
        parquet.write_table(arrow.table({**table, "value": values.ravel()}), path, row_group_size=100_000)
        size += path.stat().st_size
    return size


def run_scale(sizes: Sequence[int], *, executor: str, workers: int | None, work: Mapping[str, Any], out: Path) -> None:
    """Fit once to a sample, then forecast a panel of each size; a record of each is added to the file."""
    for size in sizes:
        check_at_least("series", size, 1)
    console = make_console()
    where = {"benchmark": "scale", **provenance(torch.device("cpu"), ["toa", *sys.argv[1:]])}
    where |= {"executor": executor, "workers": workers, "steps": STEPS, "horizon": HORIZON}
    # a wrong file is refused before work
    read_lines(out)
    rows: list[tuple[str, ...]] = [("series", "s", "series / s", "MiB per process")]
    with tempfile.TemporaryDirectory(prefix="toa-scale-") as name:
        root = Path(name)
        model = root / "model.toa"
        for size in sizes:
            panel = root / f"panel-{size}"
            panel.mkdir()
            size_bytes = write_panel(panel, size)
            if not model.exists():
                sample = sample_series(panel, "id")
                fitted = Forecaster(HORIZON, id="id", time="month", interval=0.8, **work).fit(sample)
                fitted.save(model)
            with console.status(f"forecasting {size} series"):
                done = forecast_parts(model, panel, root / f"out-{size}", executor=executor, workers=workers)
            shutil.rmtree(panel)
            facts = {"weights": fitted.weights_, "parquet_bytes": size_bytes}
            add_record(out, {**where, **done._asdict(), **facts})
            cells = size, done.seconds, size / done.seconds, done.peak_bytes / 2**20
            rows.append(tuple(f"{cell:,.0f}" for cell in cells))
    console.print(make_table(rows))
    console.print(f"records: {out}", soft_wrap=True)
