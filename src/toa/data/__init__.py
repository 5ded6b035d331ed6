"""Datasets and signals."""

from toa.data.synthetic import REGIMES, DemixingBatch, HarmonicDemixing

__all__ = ["REGIMES", "DemixingBatch", "HarmonicDemixing"]
