"""Datasets and signals."""

from toa.data.catalog import DATASETS
from toa.data.download import fetch
from toa.data.forecast import ForecastData, load_forecast
from toa.data.location import ChecksumError, DatasetNotFoundError, checksum, data_folders, locate, verify
from toa.data.marks import mark_names, time_marks
from toa.data.readers import read_csv_series, read_dataset
from toa.data.scaling import StandardScaler
from toa.data.series import Series
from toa.data.spec import DatasetSpec
from toa.data.splits import SPLIT_RULES, Segment, Split, split_rows
from toa.data.storage import open_mapped, place_series, write_mapped
from toa.data.synthetic import REGIMES, DemixingBatch, HarmonicDemixing
from toa.data.windows import WindowBatch, Windows

__all__ = [
    "DATASETS",
    "REGIMES",
    "SPLIT_RULES",
    "ChecksumError",
    "DatasetNotFoundError",
    "DatasetSpec",
    "DemixingBatch",
    "ForecastData",
    "HarmonicDemixing",
    "Segment",
    "Series",
    "Split",
    "StandardScaler",
    "WindowBatch",
    "Windows",
    "checksum",
    "data_folders",
    "fetch",
    "load_forecast",
    "locate",
    "mark_names",
    "open_mapped",
    "place_series",
    "read_csv_series",
    "read_dataset",
    "split_rows",
    "time_marks",
    "verify",
    "write_mapped",
]
