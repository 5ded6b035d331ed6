"""load_forecast: a dataset by name, or a user's file, as scaled windows of train, validation and test."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int64

from toa._checks import Argument, ArgumentError, MissingFileError, check_choice, check_positive
from toa.data.catalogue import DATASETS, DatasetSpec
from toa.data.files import checksum, locate
from toa.data.files import verify as verify_file
from toa.data.frequency import FREQUENCIES, time_marks
from toa.data.scaling import StandardScaler
from toa.data.splits import Segment, Split, split_rows
from toa.data.tables import read_csv_series, read_dataset
from toa.data.windows import DEFAULT_BUDGET, Windows, place_series

_ENDINGS = (".csv", ".csv.gz")
# seed of the draw of columns
_COLUMN_SEED = 0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ForecastData:
    """Standardised windows of the three splits, with the facts that a record needs.

    Args:
        split: Rule or fractions of the split.
        subset: Whether the data are a part of a benchmark dataset. Results on a part are not benchmark results.
    """

    name: str
    spec: DatasetSpec | None
    path: Path
    columns: tuple[str, ...]
    channels: int
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
    clip: float | None = None,
    missing_values: float | Sequence[float] | None = None,
    most_columns: int | None = None,
    train_windows: int | None = None,
) -> ForecastData:
    """Read, check, split, scale by the train rows and cut into windows; no test window is dropped.

    Args:
        dataset: Name in the catalogue, or path of a file that `toa.data.read_frame` reads.
        data_dir: Folder to search before $TOA_DATA and the user's cache.
        split: Rule or fractions; by default the rule of the dataset, and "ratio" for a file.
        freq: Which marks, see `time_marks`.
        verify: Whether a file of the catalogue must have the known checksum.
        budget_bytes: A series that takes more in float32 stays on the CPU, and each batch is copied to the device.
        fill: How to fill missing values, see `read_csv_series`.
        date_column: Date column of a user's file; None if it has none.
        allow_constant: Leave channels that are constant in the train rows unscaled instead of raising an error.
        clip: Standardised values beyond this size count as this size; None changes no value.
        missing_values: Numbers that mean a missing value in a user's file; None warns of those that look like it.
        most_columns: Columns that are used, drawn evenly; fewer are a part of more. None for all.
        train_windows: Windows to train on, the last ones; None for all. The scaler reads all train rows, so that errors
            do not depend on it.
    """
    check_choice("freq", freq, FREQUENCIES)
    path = Path(dataset).expanduser()
    spec = None
    # if it is neither, the error of the catalogue lists its names
    if isinstance(dataset, str) and (dataset in DATASETS or not (path.is_file() or path.name.endswith(_ENDINGS))):
        spec = DATASETS[dataset]
        path = locate(spec, data_dir)
    elif not path.is_file():
        raise MissingFileError(
            Argument("dataset"), f" must be a file or a name of the catalogue, no such file: {path}."
        )
    if spec is None:
        name = path.name
        default_split = "ratio"
        sha256 = checksum(path)
        panel = read_csv_series(path, date_column=date_column, fill=fill, missing_values=missing_values)
    else:
        name = spec.name
        default_split = spec.split
        sha256 = verify_file(path, spec) if verify else checksum(path)
        panel = read_dataset(spec, path, fill=fill)
    drawn = _draw_columns(len(panel.columns), most_columns, name)
    columns = tuple(panel.columns[place] for place in drawn)
    series = panel.values[0][:, drawn]
    rule = default_split if split is None else split
    segments = split_rows(rule, len(series), lookback=lookback, horizon=horizon, name=name)
    train_rows = series[segments.train.start : segments.train.stop]
    scaler = StandardScaler.fit(train_rows, columns=columns, allow_constant=allow_constant, name=name)
    # the three splits share one copy of the values
    scaled = scaler.transform(series)
    if clip is not None:
        check_positive("clip", clip)
        scaled = scaled.clip(-clip, clip)
    values = place_series(scaled, device=device, budget_bytes=budget_bytes)
    stamps = None
    if marks:
        if panel.times is None or not isinstance(dates := panel.times[0], pd.DatetimeIndex):
            raise ArgumentError(name, "have dates for time marks", "none", "give marks=False")
        stamps = torch.from_numpy(time_marks(dates, freq)).float().to(device)
    train, val, test = (
        Windows(values, stamps, part, lookback, horizon, device=device, budget_bytes=budget_bytes)
        for part in (_last_windows(segments.train, train_windows, lookback, horizon), segments.val, segments.test)
    )
    return ForecastData(
        name=name,
        spec=spec,
        path=path,
        columns=columns,
        channels=len(columns),
        split=rule,
        segments=segments,
        train=train,
        val=val,
        test=test,
        scaler=scaler,
        checksum=sha256,
        subset=spec is not None and spec.subset_of is not None,
    )


def _draw_columns(columns: int, count: int | None, name: str) -> Int64[np.ndarray, " c"]:
    """Places of the columns that are used, in order; the draw is the same for all counts."""
    if count is None:
        return np.arange(columns)
    if not 1 <= count <= columns:
        raise ArgumentError("most_columns", f"lie between 1 and the {columns} columns of {name}", count)
    return np.sort(np.random.default_rng(_COLUMN_SEED).permutation(columns)[:count])


def _last_windows(segment: Segment, count: int | None, lookback: int, horizon: int) -> Segment:
    """The rows of the last windows of a segment."""
    if count is None:
        return segment
    most = segment.windows(lookback, horizon)
    if not 1 <= count <= most:
        raise ArgumentError("train_windows", f"lie between 1 and the {most} windows of training", count)
    return Segment(segment.stop - (lookback + horizon - 1 + count), segment.stop)
