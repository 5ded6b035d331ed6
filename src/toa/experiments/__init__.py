"""Experiments: protocols, resumable runs with one record each."""

from toa.experiments.anomaly import AnomalyExperiment
from toa.experiments.base import EXPERIMENTS, Experiment, experiment_of
from toa.experiments.classify import ClassifyExperiment
from toa.experiments.forecast import ForecastExperiment
from toa.experiments.protocols import load_protocol, protocol_names, resolve
from toa.experiments.records import config_hash, read_record, read_records, write_record
from toa.experiments.run import Job, LoadedRun, load_run, run_folder, run_task

__all__ = [
    "EXPERIMENTS",
    "AnomalyExperiment",
    "ClassifyExperiment",
    "Experiment",
    "ForecastExperiment",
    "Job",
    "LoadedRun",
    "config_hash",
    "experiment_of",
    "load_protocol",
    "load_run",
    "protocol_names",
    "read_record",
    "read_records",
    "resolve",
    "run_folder",
    "run_task",
    "write_record",
]
