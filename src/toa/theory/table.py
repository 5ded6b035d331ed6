"""The theory in one table: a row for each case."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from toa.theory.case import Case
from toa.theory.cases import CASES
from toa.theory.realisation import realisation_error
from toa.theory.simplex import multihead_distance, simplex_distance, uniform_distance


@dataclass(frozen=True, kw_only=True, slots=True)
class TheoryRow:
    """What is measured of a case.

    Sums, entries and shares are over the family. A distance is the largest of it: no layer of that kind is closer in
    every regime.

    Args:
        name: Its name in `CASES`.
        title: What it does.
        regimes: Operators in the family; 1 is a static case.
        shape: Of an operator, outputs by inputs.
        max_abs_row_sum: Largest |row sum|. 1 for softmax.
        min_entry: Smallest entry. At least 0 for softmax.
        negative_share: Share of entries below zero.
        facts: The lemma's claims, and whether they hold.
        simplex_distance: To what one softmax head can make.
        uniform_distance: To what one can make without positions: Proposition 1.
        multihead_distance: To what any number of softmax heads can make.
        relu_error: Of the TOA-ReLU layer that realises it, relative.
        gated_error: Likewise, TOA-Gated.
        softmax_error: Likewise, TOA-Softmax.
    """

    name: str
    title: str
    regimes: int
    shape: tuple[int, int]
    max_abs_row_sum: float
    min_entry: float
    negative_share: float
    facts: Mapping[str, bool]
    simplex_distance: float
    uniform_distance: float
    multihead_distance: float
    relu_error: float
    gated_error: float
    softmax_error: float


def theory_row(case: Case, *, dtype: torch.dtype = torch.float32) -> TheoryRow:
    """Measure one case; `dtype` is that of the layers."""
    z, t, n = case.operators.shape
    return TheoryRow(
        name=case.name,
        title=case.title,
        regimes=z,
        shape=(t, n),
        max_abs_row_sum=float(case.row_sums.abs().max()),
        min_entry=float(case.operators.min()),
        negative_share=case.negative_share,
        facts=case.facts,
        simplex_distance=float(simplex_distance(case.operators).max()),
        uniform_distance=float(uniform_distance(case.operators).max()),
        multihead_distance=float(multihead_distance(case.operators).max()),
        relu_error=realisation_error(case, "relu", dtype=dtype),
        gated_error=realisation_error(case, "gated", dtype=dtype),
        softmax_error=realisation_error(case, "softmax", dtype=dtype),
    )


def theory_table(*, dtype: torch.dtype = torch.float32) -> list[TheoryRow]:
    """A row for every case, at its default sizes."""
    return [theory_row(CASES[name](), dtype=dtype) for name in CASES]
