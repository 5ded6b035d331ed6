"""Operator attention and the functions around it, as functions of tensors."""

from toa.ops._backend import runs_kernels
from toa.ops.attention.api import BACKENDS, AttentionBackend, choose_backend, operator_attention
from toa.ops.attention.definitions import (
    ACTIVATIONS,
    GATE_NORMS,
    SCORE_NORMS,
    Activation,
    AttentionInputs,
    GateNorm,
    ScoreNorm,
)
from toa.ops.attention.sequences import AttentionCache
from toa.ops.mixing import EntryDrop
from toa.ops.operators import Banded, Dense, DiagonalLowRank, Operator, Toeplitz
from toa.ops.rotary import Rotary
from toa.ops.simplex import in_simplex, simplex_distance, simplex_projection

__all__ = [
    "ACTIVATIONS",
    "BACKENDS",
    "GATE_NORMS",
    "SCORE_NORMS",
    "Activation",
    "AttentionBackend",
    "AttentionCache",
    "AttentionInputs",
    "Banded",
    "Dense",
    "DiagonalLowRank",
    "EntryDrop",
    "GateNorm",
    "Operator",
    "Rotary",
    "ScoreNorm",
    "Toeplitz",
    "choose_backend",
    "in_simplex",
    "operator_attention",
    "runs_kernels",
    "simplex_distance",
    "simplex_projection",
]
