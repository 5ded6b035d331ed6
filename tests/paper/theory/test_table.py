import dataclasses

import pytest
import torch

from toa.ops import simplex_distance
from toa_paper.theory import CASES, theory_row, theory_table


def test_table_has_a_row_for_every_case_in_order() -> None:
    rows = theory_table()
    assert [row.name for row in rows] == list(CASES) == ["A", "B", "C", "D", "E", "patch", "inverted"]
    for row in rows:
        assert all(row.facts.values())
        assert row.min_entry < 0.0 < row.negative_share < 1.0
        assert 0.0 < row.simplex_distance < row.uniform_distance
        assert max(row.relu_error, row.gated_error, row.softmax_error) < 1e-6
    assert [row.name for row in rows if row.multihead_distance > 1e-9] == ["C", "D", "patch", "inverted"]
    assert [row.name for row in rows if row.regimes > 1] == ["D", "E"]


def test_row_of_a_family_has_its_largest_distance() -> None:
    case = CASES["D"]()
    row = theory_row(case, dtype=torch.float64)
    assert row.shape == (96, 96)
    assert row.simplex_distance == max(simplex_distance(case.operators).tolist())
    assert row.max_abs_row_sum == pytest.approx(float(case.row_sums.abs().max()))
    assert row.gated_error < 1e-12


def test_row_cannot_be_changed() -> None:
    row = theory_row(CASES["patch"]())
    with pytest.raises(dataclasses.FrozenInstanceError):
        row.name = "other"  # type: ignore[misc]
