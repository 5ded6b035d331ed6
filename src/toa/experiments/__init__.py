"""Experiments: protocols, resumable runs with one record each, and the tables of the paper."""

from toa.experiments.protocols import load_protocol, protocol_names, resolve
from toa.experiments.records import config_hash, read_record, write_record
from toa.experiments.run import Job, LoadedRun, load_run, run_folder, run_task

__all__ = [
    "Job",
    "LoadedRun",
    "config_hash",
    "load_protocol",
    "load_run",
    "protocol_names",
    "read_record",
    "resolve",
    "run_folder",
    "run_task",
    "write_record",
]
