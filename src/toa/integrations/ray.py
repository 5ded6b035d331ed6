"""Forecasts of a panel larger than memory: a folder of parquet files, in batches of whole series.

    model = toa.Forecaster(14, id="shop", time="day").fit(sample_series("sales/", "shop"))
    model.save("model.toa")
    found = forecast_parts("model.toa", "sales/", "forecasts/", executor="ray", workers=8)   # one file per file

The rows of a series must follow each other in one file; hive folders such as `region=de/` are columns. A worker holds
one batch at a time. A call that failed can be repeated with the same model and folders: finished files are kept.
"process" works in this process and "pool" in several on this machine; "ray" maps the files as batches of Ray Data, here
or in a cluster whose machines all see the folders, and needs the extra `toa[ray]`.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

try:
    import pyarrow as arrow
    import pyarrow.compute as compute
    import pyarrow.dataset as datasets
    import pyarrow.parquet as parquet
except ModuleNotFoundError as error:
    raise ImportError("pyarrow must be installed to read a folder of parquet files; install toa[files].") from error

from toa._checks import ArgumentError, check_at_least, check_choice
from toa._files import check_writable, partial_name, remove_partial, replacing, target_of
from toa._limits import peak_bytes
from toa.data.contents import one_line
from toa.data.files import checksum
from toa.estimators import Forecaster
from toa.experiments.sweep_ray import connected

EXECUTORS = ("process", "pool", "ray")
# most rows of a batch, and rows to fit to
_ROWS = 200_000
# series to fit to
_SERIES = 2_000
# field of a file of forecasts that names the model and the file that it was made from
_MADE_FROM = b"toa_made_from"


class Forecasts(NamedTuple):
    """What `forecast_parts` did: numbers of files, series and rows, seconds, and the largest memory of a worker.

    `kept` is the number of further files that an earlier call had finished.
    """

    files: int
    series: int
    rows: int
    seconds: float
    peak_bytes: int
    kept: int = 0


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
        out: New or empty folder, or that of an earlier call with the same model, horizon and files, whose finished
            files are kept; each file of `source` with rows has one of the same name there. The id is a column of each:
            if folders such as `shop=007/` name ids, read all with `pandas.read_parquet(out, partitioning=None)`.
        executor: "process", "pool" or "ray"; a script must call "pool" below `if __name__ == "__main__":`.
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
    files = [str(file.relative_to(source)) for file in part_files(source)]
    check_writable(out)
    begin = time.monotonic()
    # the model, all ids and the folder of results are checked before workers start
    digest = checksum(Path(model))
    forecaster = _loaded(str(model), digest)
    if horizon is not None and not 1 <= horizon <= forecaster.horizon:
        raise ArgumentError("horizon", f"be from 1 to {forecaster.horizon}, the horizon of fit", horizon)
    work = {"model": digest, "horizon": horizon or forecaster.horizon}
    kept = _finished(out, source, files, work)
    series = _count_series(source, files, forecaster)
    names = [name for name in files if series[name] and name not in kept]
    task = partial(forecast_part, str(Path(model).absolute()), str(source), str(out), work=work, batch_rows=batch_rows)
    count = min(workers or os.cpu_count() or 1, len(names))
    try:
        found = list(_mapped(task, names, executor, count, address)) if names else []
    except ValueError as error:
        done = sum((out / name).exists() for name in files)
        raise ValueError(
            f"{error} {out} has the forecasts of {done} of {len(files)} files; a call with the same model and horizon "
            "keeps them and forecasts the rest."
        ) from error
    peak = max((part["peak_bytes"] for part in found), default=peak_bytes())
    rows = sum(part["rows"] for part in found)
    total = sum(series[name] for name in names)
    return Forecasts(len(files) - len(kept), total, rows, time.monotonic() - begin, peak, len(kept))


def forecast_part(
    model: str, source: str, out: str, name: str, *, work: Mapping[str, Any], batch_rows: int = _ROWS
) -> dict[str, int]:
    """Forecast the series of one file below `source` into the file of the same name below `out`.

    Args:
        work: The sha256 of the file of the "model", and the "horizon".

    Returns:
        Number of "rows", and "peak_bytes" of this process.
    """
    forecaster = _loaded(model, work["model"])
    made_from = _made_from(Path(source), name, work)
    rows = 0
    writer = None
    with replacing(Path(out) / name) as file, ExitStack() as stack:
        for table in whole_series(Path(source), name, forecaster.id, _columns(forecaster), batch_rows):
            with _named(f"{Path(source) / name}, rows {rows + 1} to {rows + table.num_rows} as data"):
                found = forecaster.predict(table, horizon=work["horizon"])
            schema = found.schema.with_metadata({**(found.schema.metadata or {}), _MADE_FROM: made_from})
            writer = writer or stack.enter_context(parquet.ParquetWriter(file, schema))
            writer.write_table(found)
            rows += table.num_rows
        if writer is None or _made_from(Path(source), name, work) != made_from:
            raise ArgumentError(Path(source) / name, "not change during a call", "other rows", "call again")
    return {"rows": rows, "peak_bytes": peak_bytes()}


def sample_series(source: str | Path, id: str, series: int = _SERIES, rows: int = 2 * _ROWS) -> Any:
    """An arrow table of whole series to fit to, the first ones of each file, at most this many series and rows."""
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
        raise ArgumentError("data", "have rows", f"none in the {len(files)} files of {source}")
    return arrow.concat_tables(parts, promote_options="permissive")


def part_files(source: Path) -> list[Path]:
    """The parquet files below a folder, in order of their names."""
    files = sorted(
        file for file in source.rglob("*.parquet") if file.is_file() and not file.name.startswith((".", "_"))
    )
    if not files:
        raise ArgumentError("data", "be a table or a folder with parquet files", f"none below {source}", "name a file")
    return files


def whole_series(
    source: Path, name: str, id: str | None, columns: Sequence[str] | None, batch_rows: int
) -> Iterator[Any]:
    """Arrow tables of one file, of about this many rows, none of which ends within a series."""
    with _named(str(source / name)):
        data = _opened(source, name, (id, *(columns or ())))
        kept: list[Any] = []
        read = {"columns": columns, "batch_size": batch_rows, "batch_readahead": 1, "fragment_readahead": 1}
        for batch in data.to_batches(**read, use_threads=False):
            # bytes that are no text are otherwise noticed only on use
            batch.validate(full=True)
            kept.append(batch)
            if sum(part.num_rows for part in kept) < batch_rows:
                continue
            table = arrow.Table.from_batches(kept)
            _, starts = _starts(table, id)
            if len(starts) > 1:
                yield table.slice(0, starts[-1])
                kept = table.slice(starts[-1]).to_batches()
        if any(part.num_rows for part in kept):
            yield arrow.Table.from_batches(kept)


def _opened(source: Path, name: str, columns: Sequence[str | None]) -> Any:
    """The data of one file, which must have these columns, the id first."""
    read = partial(datasets.dataset, source / name, format="parquet", partition_base_dir=str(source))
    data = read(partitioning="hive")
    folders = [part.partition("=")[0] for part in Path(name).parent.parts if "=" in part]
    if columns[0] in folders:
        # an id is text: 007 is not 7, and other folders may have letters
        types = {folder: data.schema.field(folder).type for folder in folders} | {columns[0]: arrow.string()}
        data = read(partitioning=datasets.partitioning(arrow.schema(list(types.items())), flavor="hive"))
    for column in columns:
        if column not in data.schema.names:
            raise ArgumentError(source / name, f"have a column {column!r}", ", ".join(data.schema.names))
    return data


def _columns(forecaster: Forecaster) -> list[str]:
    """Columns that a forecaster reads."""
    wanted = [forecaster.id, forecaster.time_, *forecaster.columns_, *forecaster.inputs]
    return [column for column in wanted if column is not None]


def _count_series(source: Path, files: Sequence[str], forecaster: Forecaster) -> dict[str, int]:
    """Number of series of each file, by the ids alone; the rows of a series must not lie in several places."""
    hashes = []
    for name in files:
        with _named(str(source / name)):
            _opened(source, name, _columns(forecaster))
            parts = [pd.util.hash_pandas_object(ids, index=False) for ids in _ids(source, name, forecaster.id)]
        hashes.append(np.concatenate([np.empty(0, dtype=np.uint64), *parts]))
    counts = {name: len(parts) for name, parts in zip(files, hashes, strict=True)}
    values, times = np.unique(np.concatenate(hashes), return_counts=True)
    if len(twice := values[times > 1]):
        places = [name for name, parts in zip(files, hashes, strict=True) if twice[0] in parts]
        ids = pd.concat(list(_ids(source, places[0], forecaster.id)))
        shown = ids[(pd.util.hash_pandas_object(ids, index=False) == twice[0]).to_numpy()].iloc[0]
        raise ArgumentError(
            "the rows of each series",
            "follow each other in one file",
            f"{len(twice)} ids in several places, such as {shown!r} in {' and '.join(places[:4])}",
            "sort each file by id, and write an id to one file only",
        )
    return counts


def _ids(source: Path, name: str, id: str | None) -> "Iterator[pd.Series[Any]]":
    """Ids of the series of one file, in parts."""
    for table in whole_series(source, name, id, [str(id)], _ROWS):
        ids, starts = _starts(table, id)
        yield ids.take(starts).to_pandas()


def _finished(out: Path, source: Path, files: Sequence[str], work: Mapping[str, Any]) -> set[str]:
    """Files that an earlier call has forecast; raises ValueError for others, and removes what killed workers left."""
    known = set(files)
    unfinished: dict[Path, set[str | None]] = {}
    for name in files:
        unfinished.setdefault((out / name).parent, set()).add(partial_name(Path(name).name))
    done = set()
    for file in sorted(file for file in out.rglob("*") if not file.is_dir()):
        name = str(file.relative_to(out))
        if target_of(file) in unfinished.get(file.parent, ()):
            # another call may be writing it
            remove_partial(file)
            continue
        made_from = None
        if name in known:
            with _named(str(file)):
                made_from = (parquet.read_schema(file).metadata or {}).get(_MADE_FROM)
        if made_from is None or made_from != _made_from(source, name, work):
            raise ArgumentError(
                "out",
                "be a new or empty folder, or have forecasts by the same model and horizon of the same files",
                file,
                "choose another",
            )
        done.add(name)
    return done


def _made_from(source: Path, name: str, work: Mapping[str, Any]) -> bytes:
    """What a file of forecasts was made from: the model, the horizon, and size and time of the file of data."""
    found = (source / name).stat()
    return json.dumps({**work, "bytes": found.st_size, "changed_ns": found.st_mtime_ns}, sort_keys=True).encode()


@contextmanager
def _named(where: str) -> Iterator[None]:
    """Begin the message of an error with the file, once; damaged files raise errors of many kinds."""
    try:
        yield
    except (ValueError, OSError, TypeError, KeyError, NotImplementedError, MemoryError) as error:
        # readers of tables write several lines
        reason = one_line(error)
        raise ValueError(reason if reason.startswith(where) else f"{where}: {reason}") from error


def _starts(table: Any, id: str | None) -> tuple[Any, np.ndarray]:
    """The ids of a table as one array, and the first row of each series."""
    ids = table[id].combine_chunks()
    # the names of folders are a dictionary
    ids = ids.dictionary_decode() if arrow.types.is_dictionary(ids.type) else ids
    changes = compute.not_equal(ids[1:], ids[:-1]).to_numpy(False)
    return ids, np.concatenate([[0], np.flatnonzero(changes) + 1])


_CACHE: dict[str, Forecaster] = {}


def _loaded(model: str, digest: str) -> Forecaster:
    """The model of a file with this sha256, read once per process."""
    if digest not in _CACHE:
        forecaster = Forecaster.load(model, device="cpu")
        if forecaster.id is None or forecaster.covariates:
            raise ArgumentError(
                model,
                "be a forecaster with an id column and without covariates",
                f"id={forecaster.id!r} and covariates={list(forecaster.covariates)}",
                "fit another",
            )
        if checksum(Path(model)) != digest:
            raise ArgumentError(model, "not change during a call", "another file", "call again")
        _CACHE.clear()
        _CACHE[digest] = forecaster
    return _CACHE[digest]


def _mapped(
    task: partial[dict[str, int]], names: Sequence[str], executor: str, workers: int, address: str | None
) -> Iterator[dict[str, int]]:
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
                if row["error"]:
                    raise ValueError(row["error"])
                yield row


def _ray_batch(task: partial[dict[str, int]], batch: Mapping[str, Any]) -> dict[str, list[Any]]:
    """A batch of Ray Data, one file, forecast; an error is a result, because Ray would put its own around it."""
    (name,) = batch["name"]
    try:
        found = task(str(name)) | {"error": ""}
    except ValueError as error:
        found = {"rows": 0, "peak_bytes": 0, "error": str(error)}
    return {key: [value] for key, value in found.items()}
