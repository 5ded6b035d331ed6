"""Datasets: the catalogue, the Panel that all tables become, scaling, splits, windows and cases."""

import importlib
from typing import TYPE_CHECKING, Any

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
from toa.data.formats import read_frame
from toa.data.frequency import mark_names, time_marks
from toa.data.panel import Panel
from toa.data.splits import SPLIT_RULES, Segment, Split, split_rows
from toa.data.tables import read_csv_series, read_dataset, read_labels, read_ts, read_values

if TYPE_CHECKING:
    from toa.data.anomaly import (
        AnomalyData,
        LabelledSeries,
        check_own_files,
        load_anomaly,
        locate_anomaly,
        read_anomaly,
    )
    from toa.data.classification import (
        CaseBatch,
        Cases,
        ClassificationData,
        fetch_classification,
        load_classification,
        locate_classification,
    )
    from toa.data.forecast import ForecastData, load_forecast
    from toa.data.scaling import StandardScaler
    from toa.data.windows import SeriesWindows, WindowBatch, Windows, place_series

# names of modules that import torch, which load on first use: reading a table does not need them
_LATER = {
    **dict.fromkeys(
        ("AnomalyData", "LabelledSeries", "check_own_files", "load_anomaly", "locate_anomaly", "read_anomaly"),
        "anomaly",
    ),
    **dict.fromkeys(
        (
            "CaseBatch",
            "Cases",
            "ClassificationData",
            "fetch_classification",
            "load_classification",
            "locate_classification",
        ),
        "classification",
    ),
    **dict.fromkeys(("ForecastData", "load_forecast"), "forecast"),
    "StandardScaler": "scaling",
    **dict.fromkeys(("SeriesWindows", "WindowBatch", "Windows", "place_series"), "windows"),
}

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


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(f"toa.data.{_LATER[name]}"), name)
    raise AttributeError(f"module 'toa.data' has no attribute {name!r}")
