"""Datasets: the catalogue, the Panel that all tables become, scaling, splits, windows and cases."""

from toa.data.anomaly import AnomalyData, LabelledSeries, check_own_files, load_anomaly, locate_anomaly, read_anomaly
from toa.data.catalogue import (
    ANOMALY_SETS,
    CLASSIFICATION_SETS,
    DATASETS,
    AnomalyFiles,
    AnomalySpec,
    ClassificationSpec,
    DatasetSpec,
    FileSpec,
)
from toa.data.classification import (
    CaseBatch,
    Cases,
    ClassificationData,
    fetch_classification,
    load_classification,
    locate_classification,
)
from toa.data.collections import COLLECTIONS, Collection, CollectionSpec, load_collection, read_tsf
from toa.data.files import (
    ChecksumError,
    DatasetNotFoundError,
    checksum,
    current_checksum,
    data_folders,
    fetch,
    locate,
    verify,
)
from toa.data.forecast import ForecastData, load_forecast
from toa.data.formats import read_frame
from toa.data.frequency import mark_names, time_marks
from toa.data.panel import Panel
from toa.data.splits import SPLIT_RULES, Segment, Split, StandardScaler, split_rows
from toa.data.tables import read_csv_series, read_dataset, read_labels, read_ts, read_values
from toa.data.windows import SeriesWindows, WindowBatch, Windows, place_series

__all__ = [
    "ANOMALY_SETS",
    "CLASSIFICATION_SETS",
    "COLLECTIONS",
    "DATASETS",
    "SPLIT_RULES",
    "AnomalyData",
    "AnomalyFiles",
    "AnomalySpec",
    "CaseBatch",
    "Cases",
    "ChecksumError",
    "ClassificationData",
    "ClassificationSpec",
    "Collection",
    "CollectionSpec",
    "DatasetNotFoundError",
    "DatasetSpec",
    "FileSpec",
    "ForecastData",
    "LabelledSeries",
    "Panel",
    "Segment",
    "SeriesWindows",
    "Split",
    "StandardScaler",
    "WindowBatch",
    "Windows",
    "check_own_files",
    "checksum",
    "current_checksum",
    "data_folders",
    "fetch",
    "fetch_classification",
    "load_anomaly",
    "load_classification",
    "load_collection",
    "load_forecast",
    "locate",
    "locate_anomaly",
    "locate_classification",
    "mark_names",
    "place_series",
    "read_anomaly",
    "read_csv_series",
    "read_dataset",
    "read_frame",
    "read_labels",
    "read_ts",
    "read_tsf",
    "read_values",
    "split_rows",
    "time_marks",
    "verify",
]
