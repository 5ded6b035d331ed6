"""The theory in one table, with one row per case."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from toa.theory.case import Case
from toa.theory.cases import CASES
from toa.theory.realisation import realisation_error
from toa.theory.simplex import multihead_distance, simplex_distance, uniform_distance


@dataclass(frozen=True, kw_only=True, slots=True)
class TheoryRow:
    """Measurements of a case; over several regimes, distances are the largest ones.

    For softmax, `max_abs_row_sum` is 1 and `min_entry` at least 0. Distances are from one softmax head, one without
    positions (Proposition 1), and any number of heads; see `toa.theory.simplex`. Errors are relative errors of the TOA
    layers that realise the case; see `realisation_error`.
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
    """Measure one case, with layers of type `dtype`."""
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
    """One row per case, with its default sizes."""
    return [theory_row(CASES[name](), dtype=dtype) for name in CASES]
