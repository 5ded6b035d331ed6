"""Experiments: named presets, resumable runs, one record each."""

from toa.experiments.anomaly import anomaly_folder, run_anomaly
from toa.experiments.anomaly_config import AnomalyRun, resolve_anomaly
from toa.experiments.config import ForecastRun
from toa.experiments.demixing import PRESETS, DemixingResult, run_demixing
from toa.experiments.forecasting import run_folder, run_forecast
from toa.experiments.protocols import resolve
from toa.experiments.records import config_hash, read_record, write_record
from toa.experiments.settings import about, protocol_names

__all__ = [
    "PRESETS",
    "AnomalyRun",
    "DemixingResult",
    "ForecastRun",
    "about",
    "anomaly_folder",
    "config_hash",
    "protocol_names",
    "read_record",
    "resolve",
    "resolve_anomaly",
    "run_anomaly",
    "run_demixing",
    "run_folder",
    "run_forecast",
    "write_record",
]
