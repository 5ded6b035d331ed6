"""load_forecast: a data set by name, or a file of one's own, as scaled windows of train, validation and test."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float64

from toa._checks import check_choice
from toa.data.catalog import DATASETS
from toa.data.location import checksum, locate
from toa.data.location import verify as verify_file
from toa.data.marks import time_marks
from toa.data.readers import read_csv_series, read_dataset
from toa.data.scaling import StandardScaler
from toa.data.series import Series
from toa.data.spec import FREQUENCIES, DatasetSpec
from toa.data.splits import Split, split_rows
from toa.data.storage import DEFAULT_BUDGET, place_series
from toa.data.windows import Windows


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ForecastData:
    """Windows of the three splits on the standardised scale, and what a record has to say about their origin.

    Args:
        spec: The catalogue's entry; None for a file of one's own.
        split: The rule, or the fractions, that cut the rows.
        checksum: Sha256 of the unpacked file.
        subset: Whether the data are a part of a benchmark set, so that results are no benchmark results.
    """

    name: str
    spec: DatasetSpec | None
    path: Path
    columns: tuple[str, ...]
    split: str | tuple[float, float, float]
    segments: Split
    train: Windows
    val: Windows
    test: Windows
    scaler: StandardScaler
    checksum: str
    subset: bool


def load_forecast(
    dataset: str | Path,
    *,
    lookback: int,
    horizon: int,
    data_dir: str | Path | None = None,
    device: str | torch.device = "cpu",
    split: str | tuple[float, float, float] | None = None,
    marks: bool = False,
    freq: str = "h",
    verify: bool = True,
    budget_bytes: int = DEFAULT_BUDGET,
    fill: str | None = None,
    date_column: str | None = "date",
    allow_constant: bool = False,
) -> ForecastData:
    """Read, check, split, scale by the train rows and cut into windows; no test window is dropped.

    Args:
        dataset: A name of the catalogue, or the path of a csv file.
        lookback: Rows a model sees.
        horizon: Rows it forecasts.
        data_dir: Folder to look in before $TOA_DATA and the user's cache.
        device: Where the values live and batches appear.
        split: A rule or fractions; by default the data set's own rule, and "ratio" for a file.
        marks: Whether batches carry time marks.
        freq: Which marks, see `time_marks`.
        verify: Whether a file of the catalogue must have the known checksum.
        budget_bytes: A series that takes more in float32 streams from a memory-mapped file.
        fill: What to do about missing values, see `read_csv_series`.
        date_column: Column of dates in a file of one's own; None if it has none.
        allow_constant: Leave channels that never change in the train rows unscaled instead of refusing them.
    """
    check_choice("freq", freq, FREQUENCIES)
    spec, path = _resolve(dataset, data_dir)
    if spec is None:
        name, found = path.name, checksum(path)
        series = read_csv_series(path, date_column=date_column, fill=fill)
    else:
        name, found = spec.name, verify_file(path, spec) if verify else checksum(path)
        series = read_dataset(spec, path, fill=fill)
    rule = split if split is not None else "ratio" if spec is None else spec.split
    segments = split_rows(rule, len(series.values), lookback=lookback, horizon=horizon, name=name)
    train_rows = series.values[segments.train.start : segments.train.stop]
    scaler = StandardScaler.fit(train_rows, columns=series.columns, allow_constant=allow_constant, name=name)
    # one copy of the values serves the three splits
    values = place_series(scaler.transform(series.values), device=device, budget_bytes=budget_bytes)
    stamps = torch.from_numpy(_marks(series, name, freq)).float().to(device) if marks else None
    train, val, test = (Windows(values, stamps, s, lookback, horizon, device=device) for s in segments)
    return ForecastData(
        name=name,
        spec=spec,
        path=path,
        columns=series.columns,
        split=rule,
        segments=segments,
        train=train,
        val=val,
        test=test,
        scaler=scaler,
        checksum=found,
        subset=spec is not None and spec.subset_of is not None,
    )


def _resolve(dataset: str | Path, data_dir: str | Path | None) -> tuple[DatasetSpec | None, Path]:
    if isinstance(dataset, str) and dataset in DATASETS:
        spec = DATASETS[dataset]
        return spec, locate(spec, data_dir)
    path = Path(dataset).expanduser()
    if path.is_file():
        return None, path
    if isinstance(dataset, Path) or path.name.endswith((".csv", ".csv.gz")):
        raise FileNotFoundError(f"dataset must be a file or a name of the catalogue, got {path}, which is no file.")
    # neither: let the catalogue say what it knows
    return DATASETS[dataset], path


def _marks(series: Series, name: str, freq: str) -> Float64[np.ndarray, "t f"]:
    if series.dates is None:
        raise ValueError(f"{name} must have dates for time marks, got none; give marks=False.")
    return time_marks(series.dates, freq)
