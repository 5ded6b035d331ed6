"""Harmonic demixing, the synthetic task of the paper: its signals, the task, and the experiment over variants."""

from toa_paper.demixing.experiment import DemixingResult, VariantView, run_demixing
from toa_paper.demixing.signals import REGIMES, DemixingBatch, HarmonicDemixing
from toa_paper.demixing.task import (
    DEMIXING,
    DemixingConfig,
    demix,
    frequency_response,
    held_out_signals,
    oracle_estimates,
    regime_errors,
    train_demixer,
)

__all__ = [
    "DEMIXING",
    "REGIMES",
    "DemixingBatch",
    "DemixingConfig",
    "DemixingResult",
    "HarmonicDemixing",
    "VariantView",
    "demix",
    "frequency_response",
    "held_out_signals",
    "oracle_estimates",
    "regime_errors",
    "run_demixing",
    "train_demixer",
]
