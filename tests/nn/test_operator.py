import pytest
import torch

from tests.support import assert_near, message
from toa.nn import OPERATORS, BandedOperator, DenseOperator, DiagonalLowRankOperator, ToeplitzOperator, make_operator

STRUCTURES = tuple(OPERATORS)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("n", [1, 4, 7])
def test_calling_an_operator_is_the_product_with_its_matrix(structure, n) -> None:
    operator = make_operator(structure, 2, 7, init_std=1.0).double()
    x = torch.randn(3, n, 2, 5, dtype=torch.float64)
    assert_near(operator(x), torch.einsum("hmn,bnhd->bmhd", operator.dense(n), x))
    assert_near(operator.dense(n), operator.dense()[:, :n, :n])


@pytest.mark.parametrize("std", [1e-3, 0.5])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_offset_entries_start_with_the_given_standard_deviation(structure, std) -> None:
    n = 200
    operator = make_operator(structure, 4, n, init_std=std)
    offset = (operator.dense() - torch.eye(n)).detach()
    # a banded operator has zeros outside of its band
    apart = (offset != 0).all(0) & ~torch.eye(n, dtype=torch.bool)
    assert offset[:, apart].std().item() == pytest.approx(std, rel=0.15)
    assert offset[:, apart].mean().item() == pytest.approx(0.0, abs=0.2 * std)
    if isinstance(operator, DiagonalLowRankOperator):
        assert operator.diagonal.std().item() == pytest.approx(std, rel=0.15)
        product = operator.left @ operator.right.mT
        assert product.std().item() == pytest.approx(std, rel=0.15)


def test_default_standard_deviation_is_a_thousandth() -> None:
    assert DenseOperator(2, 100).offset.std().item() == pytest.approx(1e-3, rel=0.1)
    assert ToeplitzOperator(4, 1000).taps.std().item() == pytest.approx(1e-3, rel=0.1)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_zero_standard_deviation_is_the_identity(structure) -> None:
    operator = make_operator(structure, 2, 6, init_std=0.0)
    assert torch.equal(operator.dense(), torch.eye(6).expand(2, 6, 6))


@pytest.mark.parametrize("structure", STRUCTURES)
def test_reset_draws_a_new_offset(structure) -> None:
    operator = make_operator(structure, 2, 6)
    before = operator.dense().detach().clone()
    operator.reset_parameters()
    assert not torch.equal(operator.dense(), before)


@pytest.mark.parametrize(
    ("structure", "count"),
    [("dense", 2 * 50 * 50), ("dplr", 2 * 50 * (2 * 16 + 1)), ("toeplitz", 2 * 99), ("banded", 2 * 50 * (2 * 4 + 1))],
)
def test_number_of_parameters_is_as_documented(structure, count) -> None:
    assert sum(p.numel() for p in make_operator(structure, 2, 50).parameters()) == count


@pytest.mark.parametrize("structure", STRUCTURES)
def test_every_parameter_of_an_operator_gets_a_gradient(structure) -> None:
    operator = make_operator(structure, 2, 5, init_std=0.1)
    operator(torch.randn(2, 5, 2, 3)).square().sum().backward()
    grads = [p.grad for p in operator.parameters() if p.grad is not None]
    # of the nine diagonals of a band of 4, only the places of the 5 x 5 matrix are used
    unused = 2 * (5 * 9 - 5 * 5) if structure == "banded" else 0
    assert sum(int((grad == 0).sum()) for grad in grads) == unused
    assert len(grads) == len(list(operator.parameters()))


@pytest.mark.parametrize("structure", STRUCTURES)
def test_repr_shows_the_sizes(structure) -> None:
    assert "num_heads=2, num_tokens=6" in repr(make_operator(structure, 2, 6))


@pytest.mark.parametrize("structure", STRUCTURES)
def test_wrong_shapes_and_longer_sequences_raise(structure) -> None:
    operator = make_operator(structure, 2, 6)
    name = type(operator).__name__
    with pytest.raises(ValueError, match=message("x must have 4 axes (B, N, H, D), got 3: shape (1, 6, 2)")):
        operator(torch.zeros(1, 6, 2))
    with pytest.raises(
        ValueError, match=message("x must have shape (B, N, H, D)=(any, any, 2, any), got (1, 6, 3, 4)")
    ):
        operator(torch.zeros(1, 6, 3, 4))
    longer = message(f"{name} is an operator on at most 6 tokens, got a sequence of 7", "resize(7)", "num_tokens=7")
    with pytest.raises(ValueError, match=longer):
        operator(torch.zeros(1, 7, 2, 4))
    with pytest.raises(ValueError, match=longer):
        operator.dense(7)


def test_sizes_below_one_raise() -> None:
    with pytest.raises(ValueError, match=message("num_heads must be at least 1, got 0")):
        DenseOperator(0, 4)
    with pytest.raises(ValueError, match=message("num_tokens must be at least 1, got 0")):
        DenseOperator(1, 0)
    with pytest.raises(ValueError, match=message("init_std must be at least 0.0, got -1")):
        DenseOperator(1, 4, init_std=-1.0)
    with pytest.raises(ValueError, match=message("rank must be at least 1, got 0")):
        DiagonalLowRankOperator(1, 4, rank=0)
    with pytest.raises(ValueError, match=message("num_tokens must be at least 1, got 0")):
        DenseOperator(1, 4).resize(0)


def test_unknown_structure_lists_the_choices() -> None:
    with pytest.raises(ValueError, match=message("unknown structure 'sparse'; known: dense, dplr, toeplitz, banded.")):
        make_operator("sparse", 1, 4)


@pytest.mark.parametrize("structure", ["dense", "toeplitz"])
def test_rank_for_a_structure_without_rank_raises(structure) -> None:
    pattern = message("rank requires structure dplr", f"got structure='{structure}'", "rank=4")
    with pytest.raises(ValueError, match=pattern):
        make_operator(structure, 1, 4, rank=4)


def test_rank_of_dplr_is_sixteen_unless_given() -> None:
    assert make_operator("dplr", 1, 4).rank == 16
    assert make_operator("dplr", 1, 4, rank=3).rank == 3


def test_banded_operator_mixes_only_inside_its_band() -> None:
    operator = make_operator("banded", 2, 6, init_std=1.0, bandwidth=1)
    far = torch.arange(6)[:, None].sub(torch.arange(6)).abs() > 1
    assert (operator.dense()[:, far] == 0).all()
    assert (operator.dense()[:, ~far] != 0).all()


def test_banded_operator_needs_memory_for_its_band_only() -> None:
    operator = BandedOperator(1, 65_536, bandwidth=2)
    assert sum(p.numel() for p in operator.parameters()) == 5 * 65_536
    # a constant shows the row sums of S
    mixed = operator(torch.ones(1, 65_536, 1, 1))[0, :, 0, 0]
    assert_near(mixed[2:-2], 1.0 + operator.diagonals[0, :, 2:-2].sum(0))


@pytest.mark.parametrize("bandwidth", [0, 1, 4, 9])
def test_banded_operator_loads_the_full_matrix_of_older_versions(bandwidth) -> None:
    offset = torch.randn(2, 6, 6)
    operator = make_operator("banded", 2, 6, bandwidth=bandwidth)
    operator.load_state_dict({"offset": offset})
    inside = torch.arange(6)[:, None].sub(torch.arange(6)).abs() <= bandwidth
    assert torch.equal(operator.dense(), torch.eye(6) + offset * inside)


def test_operator_is_initially_the_named_filter() -> None:
    x = torch.tensor([1.0, 4.0, 9.0, 16.0]).view(1, 4, 1, 1).expand(-1, -1, 4, -1)
    expected = {
        "identity": [1.0, 4.0, 9.0, 16.0],
        "difference": [1.0, 3.0, 5.0, 7.0],
        "smoothing": [5 / 3, 14 / 3, 29 / 3, 25 / 3],
        "centering": [-6.5, -3.5, 1.5, 8.5],
    }
    for structure in ("dense", "toeplitz", "banded"):
        for name, values in expected.items():
            if (structure, name) != ("banded", "centering"):
                operator = make_operator(structure, 4, 4, init_std=0.0, init=name)  # type: ignore[arg-type]
                assert operator(x)[0, :, 0, 0].tolist() == pytest.approx(values, abs=1e-5)
    bank = make_operator("dense", 4, 4, init_std=0.0, init="filters")
    assert bank(x)[0, :, :, 0].T.tolist() == [pytest.approx(values, abs=1e-5) for values in expected.values()]


@pytest.mark.parametrize("options", [{"rank": 2}, {"bandwidth": 2}])
def test_option_of_another_structure_raises(options) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=f"{name} requires structure"):
        make_operator("dense", 2, 4, **options)
