"""Experiments: named presets, resumable runs, one record each."""

from toa.experiments.demixing import PRESETS, DemixingResult, run_demixing
from toa.experiments.records import config_hash, read_record, write_record

__all__ = ["PRESETS", "DemixingResult", "config_hash", "read_record", "run_demixing", "write_record"]
