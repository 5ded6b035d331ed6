import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from toa.ops import in_simplex
from toa_paper.theory import CASES, CLAIMS, Case, local_atoms

Matrix = np.ndarray
STEPS = np.arange(96.0)


def least_squares(basis: Matrix, target: Matrix) -> Matrix:
    """The operator that maps samples of a basis to samples of a target: target @ pinv(basis), by NumPy."""
    return np.linalg.lstsq(basis.T, target.T, rcond=None)[0].T


def waves(periods: tuple[float, ...], times: Matrix) -> Matrix:
    angles = np.outer(times, 2 * np.pi / np.array(periods))
    return np.concatenate([np.cos(angles), np.sin(angles)], 1)


def moving_average(n: int, width: int) -> Matrix:
    average = np.zeros((n, n))
    for row in range(n):
        columns = [column for column in range(n) if abs(row - column) <= width // 2]
        average[row, columns] = 1 / len(columns)
    return average


def normal(channels: int, factors: int) -> Matrix:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(channels, factors, generator=generator, dtype=torch.float64).numpy()


def leaking(channels: int, leakage: float) -> Matrix:
    leak = 0.5 + 0.5 * torch.rand(channels, channels, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return np.eye(channels) + leak.numpy() * (1 - np.eye(channels)) * leakage / (channels - 1)


def warped() -> list[Matrix]:
    share = 96 / 672
    warps = (STEPS, STEPS + 20 * share * np.sin(4 * np.pi * STEPS / 96), STEPS + 40 * share * (STEPS / 96) ** 2)
    return [waves((24 * share, 84 * share, 168 * share), warp) for warp in warps]


def atom(centre: int, phase: float) -> Matrix:
    values = np.zeros(48)
    for step in range(16):
        envelope = 1 - math.cos(2 * math.pi * (step + 0.5) / 16)
        values[centre - 8 + step] = envelope * math.cos(2 * math.pi * 3 / 16 * (step - 8) + phase)
    return values / np.linalg.norm(values)


def projector_onto_atoms(centre: int) -> Matrix:
    return sum(np.outer(v, v) for v in (atom(centre, 0.0), atom(centre, math.pi / 2)))  # type: ignore[return-value]


# every operator, computed again from its definition
FORMULAS: dict[str, Callable[[], list[Matrix]]] = {
    "A": lambda: [least_squares(waves((24, 12, 8), STEPS[:48]), waves((24, 12, 8), STEPS[48:72]))],
    "B": lambda: [np.eye(48) - moving_average(48, 7)],
    "C": lambda: [(a := normal(24, 4)) @ np.linalg.inv(a.T @ a) @ a.T],
    "D": lambda: [basis @ np.linalg.pinv(basis) for basis in warped()],
    "E": lambda: [projector_onto_atoms(centre) for centre in (8, 20, 32, 40)],
    "patch": lambda: [np.eye(42) - np.eye(42, k=-7)],
    "inverted": lambda: [np.linalg.solve(leaking(24, 0.4), np.eye(24))],
}


def outside_simplex(row: Matrix) -> bool:
    return bool(row.min() < -1e-9 or abs(row.sum() - 1) > 1e-9)


def is_projector(s: Matrix) -> bool:
    """Symmetric, with eigenvalues 0 and 1."""
    values = np.linalg.eigvalsh((s + s.T) / 2)
    return np.allclose(s, s.T, atol=1e-9) and bool((np.minimum(abs(values), abs(values - 1)) < 1e-9).all())


# every claim of a lemma, checked again for one matrix
CHECKS: dict[str, Callable[[Matrix], bool]] = {
    "every row sums to zero": lambda s: np.allclose(s @ np.ones(s.shape[1]), 0, atol=1e-9),
    "no row sums to one": lambda s: all(abs(sum(row) - 1) > 1e-9 for row in s),
    "every row has a negative entry": lambda s: all(min(row) < -1e-9 for row in s if any(abs(row) > 1e-9)),
    "every row that is not zero has a negative entry": lambda s: all(min(r) < -1e-9 for r in s if any(abs(r) > 1e-9)),
    "every row leaves the simplex": lambda s: all(map(outside_simplex, s)),
    "some row leaves the simplex": lambda s: any(map(outside_simplex, s)),
    "some row subtracts": lambda s: any(row[m] > 1e-9 and min(row) < -1e-9 for m, row in enumerate(s)),
    "an orthogonal projector": is_projector,
    "orthogonal projectors": is_projector,
    "diagonal strictly between zero and one": lambda s: all(0 < value < 1 for value in np.diag(s)),
    "negative off the diagonal": lambda s: all(
        value > 0 if m == n else value < 0 for (m, n), value in np.ndenumerate(s)
    ),
}
LEMMAS = {
    "A": {"every row sums to zero", "every row leaves the simplex"},
    "B": {"every row sums to zero", "every row has a negative entry"},
    "C": {
        "an orthogonal projector",
        "diagonal strictly between zero and one",
        "every row has a negative entry",
        "no row sums to one",
    },
    "D": {"orthogonal projectors", "every row has a negative entry", "every row leaves the simplex"},
    "E": {"orthogonal projectors", "every row sums to zero", "every row that is not zero has a negative entry"},
    "patch": {"some row subtracts", "some row leaves the simplex"},
    "inverted": {"some row subtracts", "negative off the diagonal"},
}


@pytest.mark.parametrize("name", list(CASES))
def test_operator_is_its_formula(name: str) -> None:
    case = CASES[name]()
    assert case.name == name
    assert case.operators.dtype == torch.float64
    assert np.allclose(case.operators.numpy(), FORMULAS[name](), rtol=0.0, atol=1e-10)


@pytest.mark.parametrize("name", list(CASES))
def test_claims_of_the_lemma_hold_for_the_matrices(name: str) -> None:
    case = CASES[name]()
    assert case.facts == dict.fromkeys(LEMMAS[name], True)
    for claim in LEMMAS[name]:
        assert all(CHECKS[claim](operator) for operator in FORMULAS[name]()), claim


@pytest.mark.parametrize("claim", list(CLAIMS))
@given(st.integers(0, 2**31), st.sampled_from(["average", "identity", "difference", "projector", "random", "softmax"]))
def test_a_claim_holds_exactly_where_the_matrices_satisfy_it(claim: str, seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    draw = rng.normal(size=(4, 4))
    basis = np.linalg.qr(draw)[0][:, :2]
    matrix = {
        "average": np.full((4, 4), 0.25),
        "identity": np.eye(4),
        "difference": np.eye(4) - 0.25,
        "projector": basis @ basis.T,
        "random": draw,
        "softmax": np.exp(draw) / np.exp(draw).sum(1, keepdims=True),
    }[kind]
    assert CLAIMS[claim](torch.from_numpy(matrix)[None]) == CHECKS[claim](matrix)
    both = torch.from_numpy(np.stack([matrix, np.eye(4)]))
    assert CLAIMS[claim](both) == (CHECKS[claim](matrix) and CHECKS[claim](np.eye(4)))


def test_row_sums_are_zero_in_a_b_e_and_the_stationary_d_only() -> None:
    zero = {name: CASES[name]().row_sums.abs().amax(-1) < 1e-12 for name in CASES}
    assert all(zero[name].all() for name in "ABE")
    assert zero["D"].tolist() == [True, False, False]
    assert not any(zero[name].any() for name in ("C", "patch", "inverted"))


def test_a_continues_sinusoids_exactly() -> None:
    case = CASES["A"](length=60, horizon=30, periods=(20, 12, 5))
    t = torch.arange(90, dtype=torch.float64)
    signal = sum(a * (2 * math.pi * t / p + a).cos() for a, p in ((1.0, 20), (-0.5, 12), (2.0, 5)))
    assert isinstance(signal, torch.Tensor)
    assert torch.allclose(case.operators[0] @ signal[:60], signal[60:], rtol=0.0, atol=1e-12)


def test_b_removes_constants_and_inner_trends() -> None:
    operator = CASES["B"](num_tokens=20, width=5).operators[0]
    trend = torch.arange(20, dtype=torch.float64)
    residual = operator @ (3.0 + trend)
    assert residual[2:-2].abs().max() < 1e-12
    assert residual[0] != 0.0
    smoothing = torch.eye(20, dtype=torch.float64) - operator
    assert in_simplex(smoothing).all()


@given(st.integers(0, 2**31))
def test_c_keeps_signals_of_the_factors(seed: int) -> None:
    case = CASES["C"](channels=8, factors=3, seed=seed)
    mixing = torch.randn(8, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert torch.allclose(case.operators[0] @ mixing, mixing, atol=1e-10)
    assert case.operators[0].trace() == pytest.approx(3.0)


@pytest.mark.parametrize("name", ["D", "E"])
def test_family_does_not_depend_on_the_phase(name: str) -> None:
    base = CASES[name]().operators
    for phase in (0.3, 1.0, math.pi / 2, 4.0):
        assert torch.allclose(CASES[name](phase=phase).operators, base, rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("name", ["D", "E"])
def test_family_depends_on_the_regime(name: str) -> None:
    operators = CASES[name]().operators
    gaps = torch.linalg.matrix_norm(operators[:, None] - operators[None])
    assert (gaps + torch.eye(len(operators)) > 0.9).all()


def test_d_keeps_the_signal_of_its_warp_at_any_phase_and_no_other() -> None:
    case = CASES["D"](length=672)
    t = torch.arange(672, dtype=torch.float64)
    warps = (t, t + 20 * (4 * math.pi * t / 672).sin(), t + 40 * (t / 672) ** 2)
    for regime, warp in enumerate(warps):
        signal = torch.stack([(2 * math.pi * warp / p + 0.7).cos() for p in (24, 84, 168)]).sum(0)
        errors = torch.linalg.vector_norm(case.operators @ signal - signal, dim=-1) / torch.linalg.vector_norm(signal)
        assert errors[regime] < 1e-12
        assert (errors > 0.1).sum() == 2


@pytest.mark.parametrize("phase", [0.0, 0.4, 2.0])
@pytest.mark.parametrize(("window", "cycles"), [(16, 3), (15, 2), (15, 6), (9, 3)])
def test_e_has_zero_mean_atoms_orthogonal_and_of_equal_norm(window: int, cycles: int, phase: float) -> None:
    atoms = local_atoms(40, window, cycles, 20, phase)
    assert atoms.sum(0).abs().max() < 1e-12
    gram = atoms.mT @ atoms
    assert torch.allclose(gram, gram[0, 0] * torch.eye(2, dtype=torch.float64), rtol=0.0, atol=1e-11)
    assert int((atoms.abs().amax(-1) > 0).sum()) == window


def test_e_is_the_projector_and_the_printed_formula_is_half_of_it() -> None:
    case = CASES["E"](centres=(20,))
    atoms = local_atoms(48, 16, 3, 20)
    printed = atoms @ atoms.mT / atoms.square().sum()
    assert torch.allclose(case.operators[0], 2.0 * printed, rtol=0.0, atol=1e-12)
    assert torch.allclose(case.operators[0] @ atoms, atoms, rtol=0.0, atol=1e-12)
    assert torch.allclose(printed @ atoms, 0.5 * atoms, rtol=0.0, atol=1e-12)
    assert torch.linalg.matrix_rank(case.operators[0]) == 2


def test_patch_subtracts_the_patch_one_lag_before() -> None:
    operator = CASES["patch"](num_patches=6, lag=2).operators[0]
    x = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0, 32.0], dtype=torch.float64)
    assert (operator @ x).tolist() == [1.0, 2.0, 3.0, 6.0, 12.0, 24.0]


@given(st.integers(0, 2**31), st.integers(2, 30), st.floats(0.01, 0.499))
def test_inverted_is_negative_off_the_diagonal_for_every_draw(seed: int, channels: int, leakage: float) -> None:
    case = CASES["inverted"](channels=channels, leakage=leakage, seed=seed)
    assert np.array_equal(case.operators[0].numpy() > 0, np.eye(channels, dtype=bool))
    assert (case.operators != 0).all()
    mixing = torch.linalg.inv(case.operators[0])
    assert torch.linalg.cond(mixing) < 5.0
    assert (mixing > -1e-12).all()


def test_unknown_case_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown case 'F'; known: A, B, C, D, E, patch, inverted"):
        CASES["F"]


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("A", {"horizon": 49}, "horizon must be at most length=48, got 49"),
        ("A", {"horizon": 0}, "horizon must be at least 1, got 0"),
        ("A", {"periods": (24, 7)}, "length must be a multiple of period=7, got 48"),
        ("A", {"periods": (24, 2)}, "period must be at least 3, got 2"),
        ("A", {"periods": (24, 24)}, "periods must be distinct and at least one, got"),
        ("A", {"periods": ()}, "periods must be distinct and at least one, got"),
        ("B", {"width": 4}, "width must be odd and at most num_tokens=48, got 4"),
        ("B", {"width": 49}, "width must be odd and at most num_tokens=48, got 49"),
        ("C", {"factors": 24}, "factors must be at most channels-1=23, got 24"),
        ("D", {"length": 48}, "length must be at least 84, got 48"),
        ("E", {"cycles": 1}, "cycles must be at least 2, got 1"),
        ("E", {"cycles": 7}, "window must be at least 2 cycles . 3 = 17, got 16"),
        ("E", {"centres": (41,)}, "centre must leave 16 samples inside num_tokens=48, got 41; use 8 to 40"),
        ("E", {"centres": ()}, "number of centres must be at least 1, got 0"),
        ("patch", {"lag": 42}, "lag must be at most num_patches-1=41, got 42"),
        ("inverted", {"leakage": 0.5}, "leakage must be below 0.5, got 0.5"),
        ("inverted", {"channels": 1}, "channels must be at least 2, got 1"),
    ],
)
def test_wrong_parameter_is_named_with_its_rule(name: str, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        CASES[name](**arguments)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((1, 5, 4), "T must be at most N=4, got 5"),
        ((2, 3, 4), "operators of 2 regimes must be square, got T=3 and N=4"),
        ((4, 4), "operators must have 3 axes"),
    ],
)
def test_case_of_a_wrong_shape_is_refused(shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Case(name="x", title="x", operators=torch.zeros(shape, dtype=torch.float64), features=1)
