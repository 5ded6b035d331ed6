"""Experiments: named presets, resumable runs, one record each."""

from toa.experiments.config import ForecastRun
from toa.experiments.demixing import PRESETS, DemixingResult, run_demixing
from toa.experiments.forecasting import run_folder, run_forecast
from toa.experiments.protocols import resolve
from toa.experiments.records import config_hash, read_record, write_record
from toa.experiments.settings import about, protocol_names

__all__ = [
    "PRESETS",
    "DemixingResult",
    "ForecastRun",
    "about",
    "config_hash",
    "protocol_names",
    "read_record",
    "resolve",
    "run_demixing",
    "run_folder",
    "run_forecast",
    "write_record",
]
