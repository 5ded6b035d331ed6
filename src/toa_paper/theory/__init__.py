"""Proposition 1 and the five cases of the paper as code.

Proposition 1 concerns one softmax head whose positions are scaled with the rest of a token: it can only average
(`uniform_distance`). With fixed positions, one head reaches the simplex (`toa.ops.simplex_distance`). Several heads
with a signed W_O reach every operator with equal row sums (`multihead_distance`), including cases A, B and E. One TOA
head reaches every operator (`realise`).
"""

from toa_paper.theory.cases import (
    CASES,
    CLAIMS,
    Case,
    local_atoms,
    multihead_distance,
    scaled_outputs,
    uniform_distance,
    uniform_gap,
)
from toa_paper.theory.realisation import Realisation, TheoryRow, realisation_error, realise, theory_row, theory_table

__all__ = [
    "CASES",
    "CLAIMS",
    "Case",
    "Realisation",
    "TheoryRow",
    "local_atoms",
    "multihead_distance",
    "realisation_error",
    "realise",
    "scaled_outputs",
    "theory_row",
    "theory_table",
    "uniform_distance",
    "uniform_gap",
]
