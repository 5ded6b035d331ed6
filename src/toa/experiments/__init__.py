"""Experiments: named presets, resumable runs, one record each."""

from toa.experiments.anomaly import anomaly_folder, run_anomaly
from toa.experiments.anomaly_config import AnomalyRun, resolve_anomaly
from toa.experiments.classification import classify_folder, run_classify
from toa.experiments.classification_config import ClassifyRun, resolve_classify
from toa.experiments.config import ForecastRun
from toa.experiments.demixing import PRESETS, DemixingResult, run_demixing
from toa.experiments.forecasting import run_folder, run_forecast
from toa.experiments.protocols import resolve
from toa.experiments.records import config_hash, read_record, write_record
from toa.experiments.settings import about, protocol_names

__all__ = [
    "PRESETS",
    "AnomalyRun",
    "ClassifyRun",
    "DemixingResult",
    "ForecastRun",
    "about",
    "anomaly_folder",
    "classify_folder",
    "config_hash",
    "protocol_names",
    "read_record",
    "resolve",
    "resolve_anomaly",
    "resolve_classify",
    "run_anomaly",
    "run_classify",
    "run_demixing",
    "run_folder",
    "run_forecast",
    "write_record",
]
