"""Forecasts of a panel larger than memory: a folder of parquet files, in batches of whole series.

    model = toa.Forecaster(14, id="shop", time="day").fit(sample_series("sales/", "shop"))
    model.save("model.toa")
    found = forecast_parts("model.toa", "sales/", "forecasts/", executor="ray", workers=8)   # one file per file

The rows of a series must follow each other in one file; hive folders such as `region=de/` are columns. A worker holds
one batch at a time. "process" works in this process and "pool" in several on this machine; "ray" maps the files as
batches of Ray Data, here or in a cluster whose machines all see the folders, and needs the extra `toa[ray]`.
"""

import os
import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from toa._checks import check_at_least, check_choice
from toa._files import check_writable
from toa.estimators import Forecaster
from toa.experiments.sweep_ray import connected

EXECUTORS = ("process", "pool", "ray")
# rows of a batch, and series and rows to fit to
_ROWS, _SERIES = 200_000, 2_000


class Forecasts(NamedTuple):
    """What `forecast_parts` did: numbers of files, series and rows, seconds, and the largest memory of a worker."""

    files: int
    series: int
    rows: int
    seconds: float
    peak_bytes: int


def forecast_parts(
    model: str | Path,
    source: str | Path,
    out: str | Path,
    *,
    executor: str = "process",
    workers: int | None = None,
    address: str | None = None,
    horizon: int | None = None,
    batch_rows: int = _ROWS,
) -> Forecasts:
    """Forecast the steps after the end of each series of a folder of parquet files.

    Args:
        model: File of a fitted `toa.Forecaster` with an id column.
        out: New or empty folder; each file of `source` has one of the same name there.
        executor: "process", "pool" or "ray".
        workers: Number of processes; None for one per core.
        address: HOST:PORT of a running Ray, or auto; None starts one here.
        horizon: Number of steps, at most the horizon of `fit`; None for all.
        batch_rows: Rows that a worker reads at a time, and more if a series is longer.

    Raises:
        ValueError: If the rows of a series lie in several places, or are refused by `Forecaster.predict`.
    """
    check_choice("executor", executor, EXECUTORS)
    check_at_least("batch_rows", batch_rows, 1)
    if workers is not None:
        check_at_least("workers", workers, 1)
    if executor == "process" and workers not in (None, 1):
        raise ValueError(f"workers goes with the executor pool or ray, got {workers} for process; leave it out.")
    source, out = Path(source).absolute(), Path(out).absolute()
    files = part_files(source)
    check_writable(out)
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"out must be a new or empty folder, got {out} with files; choose another.")
    begin = time.monotonic()
    count = min(workers or os.cpu_count() or 1, len(files))
    # its file names a clear error before workers start
    Forecaster.load(model, device="cpu")
    task = partial(
        forecast_part, str(Path(model).absolute()), str(source), str(out), horizon=horizon, batch_rows=batch_rows
    )
    names = [str(file.relative_to(source)) for file in files]
    seen, found = _SeenIds(), []
    for part in _mapped(task, names, executor, count, address):
        seen.add(part.pop("hashes"))
        found.append(part)
    series, rows = (sum(part[name] for part in found) for name in ("series", "rows"))
    peak = max(part["peak_bytes"] for part in found)
    return Forecasts(len(files), series, rows, time.monotonic() - begin, peak)


def forecast_part(
    model: str, source: str, out: str, name: str, *, horizon: int | None = None, batch_rows: int = _ROWS
) -> dict[str, Any]:
    """Forecast the series of one file below `source` into the file of the same name below `out`.

    Returns:
        Numbers of "series" and "rows", "peak_bytes" of this process, and "hashes" of the ids.
    """
    import pyarrow.parquet as parquet

    forecaster = _loaded(model)
    wanted = [forecaster.id, forecaster.time_, *forecaster.columns_, *forecaster._inputs]
    columns = [column for column in wanted if column is not None]
    target = Path(out) / name
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f"{target.name}.partial")
    seen, rows = _SeenIds(), 0
    with ExitStack() as stack:
        stack.callback(unfinished.unlink, missing_ok=True)
        writer = None
        for table in whole_series(Path(source), name, forecaster.id, columns, batch_rows):
            seen.add_rows(table[forecaster.id])
            found = forecaster.predict(table, horizon=horizon)
            writer = writer or stack.enter_context(parquet.ParquetWriter(unfinished, found.schema))
            writer.write_table(found)
            rows += table.num_rows
        if writer is not None:
            writer.close()
            unfinished.replace(target)
    return {"series": len(seen.hashes), "rows": rows, "peak_bytes": _peak_bytes(), "hashes": seen.hashes}


def sample_series(source: str | Path, id: str, series: int = _SERIES, rows: int = 2 * _ROWS) -> Any:
    """An arrow table of whole series to fit to, the first ones of each file, at most this many series and rows."""
    import pyarrow as arrow
    import pyarrow.compute as compute

    files = part_files(Path(source))
    # files at equal distances, if there are more than series
    chosen = files[:: -(-len(files) // series)]
    most = max(1, series // len(chosen))
    parts = []
    for file in chosen:
        name = str(file.relative_to(source))
        table = next(whole_series(Path(source), name, id, None, max(1, rows // len(chosen))), None)
        if table is not None:
            kept = compute.unique(table[id])[:most]
            parts.append(table.filter(compute.is_in(table[id], kept)))
    if not parts:
        raise ValueError(f"data must have rows, got none in the {len(files)} files of {source}.")
    return arrow.concat_tables(parts, promote_options="permissive")


def part_files(source: Path) -> list[Path]:
    """The parquet files below a folder, in order of their names."""
    files = sorted(file for file in source.rglob("*.parquet") if not file.name.startswith((".", "_")))
    if not files:
        raise ValueError(f"data must be a table or a folder with parquet files, got none below {source}; name a file.")
    return files


def whole_series(
    source: Path, name: str, id: str | None, columns: Sequence[str] | None, batch_rows: int
) -> Iterator[Any]:
    """Arrow tables of one file, of about this many rows, none of which ends within a series."""
    import pyarrow as arrow
    import pyarrow.dataset as datasets

    data = datasets.dataset(source / name, format="parquet", partitioning="hive", partition_base_dir=str(source))
    for column in (id, *(columns or ())):
        if column not in data.schema.names:
            raise ValueError(f"{source / name} must have a column {column!r}, got {', '.join(data.schema.names)}.")
    kept: list[Any] = []
    read = {"columns": columns, "batch_size": batch_rows, "batch_readahead": 1, "fragment_readahead": 1}
    for batch in data.to_batches(**read, use_threads=False):
        kept.append(batch)
        if sum(part.num_rows for part in kept) < batch_rows:
            continue
        table = arrow.Table.from_batches(kept)
        changes = _changes(_plain(table[id]))
        if len(changes):
            yield table.slice(0, changes[-1])
            kept = table.slice(changes[-1]).to_batches()
    if any(part.num_rows for part in kept):
        yield arrow.Table.from_batches(kept)


class _SeenIds:
    """Ids that have been forecast, 8 bytes each: the rows of a series must not lie in several places."""

    def __init__(self) -> None:
        self.hashes = np.empty(0, dtype=np.uint64)

    def add_rows(self, ids: Any) -> None:
        """Add the ids of the rows of a batch."""
        ids = _plain(ids)
        names = ids.take(np.concatenate([[0], _changes(ids)])).to_pandas()
        self.add(pd.util.hash_pandas_object(names, index=False).to_numpy(), names)

    def add(self, hashes: np.ndarray, names: "pd.Series | None" = None) -> None:
        """Add ids by their hashes."""
        joined = np.concatenate([self.hashes, hashes])
        self.hashes, count = np.unique(joined, return_counts=True)
        if len(self.hashes) < len(joined):
            twice = self.hashes[count > 1]
            shown = "" if names is None else f", such as {names[np.isin(hashes, twice)].iloc[0]!r}"
            raise ValueError(
                f"the rows of each series must follow each other in one file, got {len(twice)} ids in several "
                f"places{shown}; sort each file by id, and write all rows of an id to one file."
            )


def _plain(column: Any) -> Any:
    """A column of a table as one array; the names of folders are otherwise a dictionary."""
    import pyarrow as arrow

    array = column.combine_chunks()
    return array.dictionary_decode() if arrow.types.is_dictionary(array.type) else array


def _changes(ids: Any) -> np.ndarray:
    """Rows whose id differs from the one before."""
    import pyarrow.compute as compute

    return np.flatnonzero(compute.not_equal(ids[1:], ids[:-1]).to_numpy(False)) + 1


def _peak_bytes() -> int:
    """Largest memory of this process so far."""
    status = Path("/proc/self/status")
    if status.exists():
        # what getrusage has on Linux began as the memory of the process that started this one
        lines = status.read_text(encoding="utf-8").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


_CACHE: dict[str, Forecaster] = {}


def _loaded(model: str) -> Forecaster:
    """The model of a file, read once per process."""
    if model not in _CACHE:
        found = Forecaster.load(model, device="cpu")
        if found.id is None or found.covariates:
            raise ValueError(
                f"{model} must be a forecaster with an id column and without covariates, got id={found.id!r} and "
                f"covariates={list(found.covariates)}; fit another."
            )
        _CACHE.clear()
        _CACHE[model] = found
    return _CACHE[model]


def _mapped(
    task: partial[dict[str, Any]], names: Sequence[str], executor: str, workers: int, address: str | None
) -> Iterator[dict[str, Any]]:
    """Results of the task for each file, in any order."""
    if executor == "process":
        yield from map(task, names)
    elif executor == "pool":
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            yield from pool.map(task, names)
    else:
        with connected(address, workers) as ray:
            ray.data.DataContext.get_current().enable_progress_bars = False
            items = ray.data.from_items([{"name": name} for name in names], override_num_blocks=len(names))
            done = items.map_batches(partial(_ray_batch, task), batch_size=1, num_cpus=1)
            for row in done.iter_rows():
                yield {**row, "hashes": np.frombuffer(row["hashes"], dtype=np.uint64)}


def _ray_batch(task: partial[dict[str, Any]], batch: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Files of a batch of Ray Data, forecast."""
    found = [task(str(name)) for name in batch["name"]]
    rows = [{**part, "hashes": part["hashes"].tobytes()} for part in found]
    return {name: [row[name] for row in rows] for name in rows[0]}
