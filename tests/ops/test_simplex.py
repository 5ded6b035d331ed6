import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from toa.ops import in_simplex, simplex_distance, simplex_projection

seeds = st.integers(0, 2**31)
lengths = st.integers(1, 40)
sizes = st.sampled_from([1e-6, 1e-2, 1.0, 1e3, 1e6])


def draw(seed: int, n: int, size: float) -> tuple[Tensor, torch.Generator]:
    generator = torch.Generator().manual_seed(seed)
    return size * torch.randn(4, n, generator=generator, dtype=torch.float64), generator


@given(seeds, lengths, sizes)
def test_projection_lies_in_the_simplex(seed: int, n: int, size: float) -> None:
    rows, _ = draw(seed, n, size)
    assert in_simplex(simplex_projection(rows)).all()


@given(seeds, lengths, sizes)
def test_projection_does_not_change_points_of_the_simplex(seed: int, n: int, size: float) -> None:
    rows, _ = draw(seed, n, size)
    inside = rows.softmax(-1)
    assert torch.allclose(simplex_projection(inside), inside, rtol=0.0, atol=1e-12)


@given(seeds, lengths, sizes)
def test_no_random_point_of_the_simplex_is_nearer_than_the_projection(seed: int, n: int, size: float) -> None:
    rows, generator = draw(seed, n, size)
    nearest = simplex_projection(rows)
    others = (10.0 * torch.randn(50, *rows.shape, generator=generator, dtype=torch.float64)).softmax(-1)
    # the inequality of the projection, (row - p)·(q - p) ≤ 0, is stricter than comparing distances
    slack = ((rows - nearest) * (others - nearest)).sum(-1)
    assert (slack <= 1e-9 * size).all()


def test_projection_of_a_known_row_is_the_known_point() -> None:
    rows = torch.tensor([[0.5, 0.5, -1.0], [2.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.6, -3.0]], dtype=torch.float64)
    expected = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3], [0.7, 0.3, 0.0]]).double()
    assert torch.allclose(simplex_projection(rows), expected, atol=1e-7)


def test_huge_entries_do_not_break_the_projection() -> None:
    rows = torch.tensor([[1e17, 1e17, 0.0]], dtype=torch.float64)
    assert simplex_projection(rows).tolist() == [[0.5, 0.5, 0.0]]


def test_projection_of_rows_that_are_not_finite_or_empty_raises() -> None:
    with pytest.raises(ValueError, match="rows must be finite, got 1 NaN"):
        simplex_projection(torch.tensor([[0.0, float("nan")]]))
    with pytest.raises(ValueError, match="length of a row must be at least 1, got 0"):
        simplex_projection(torch.zeros(2, 0))


def test_the_distance_of_an_average_is_zero_and_of_a_difference_that_to_the_nearest_average() -> None:
    average = torch.full((2, 2), 0.5, dtype=torch.float64)
    difference = torch.tensor([[1.0, 0.0], [-1.0, 1.0]], dtype=torch.float64)
    # the nearest average of (-1, 1) is (0, 1)
    assert simplex_distance(torch.stack([average, difference])).tolist() == [0.0, 1.0]
