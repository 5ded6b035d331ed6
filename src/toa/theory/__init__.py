"""Proposition 1 and the five cases of the paper as code: optimal operators, how far softmax is, and weights that reach.

The proposition is about one softmax head, and scales positions with the rest of a token: what is left is the average
(`uniform_distance`). With positions kept, one head reaches the simplex (`simplex_distance`), and several heads with a
signed W_O reach every operator with equal row sums (`multihead_distance`), cases A, B and E among them. One TOA head
reaches every operator (`realise`).
"""

from toa.theory.bases import local_atoms
from toa.theory.case import Case, Claim
from toa.theory.cases import CASES
from toa.theory.proposition import random_head, scaled_outputs, uniform_gap
from toa.theory.realisation import Realisation, realisation_error, realise
from toa.theory.simplex import in_simplex, multihead_distance, simplex_distance, simplex_projection, uniform_distance
from toa.theory.table import TheoryRow, theory_row, theory_table

__all__ = [
    "CASES",
    "Case",
    "Claim",
    "Realisation",
    "TheoryRow",
    "in_simplex",
    "local_atoms",
    "multihead_distance",
    "random_head",
    "realisation_error",
    "realise",
    "scaled_outputs",
    "simplex_distance",
    "simplex_projection",
    "theory_row",
    "theory_table",
    "uniform_distance",
    "uniform_gap",
]
