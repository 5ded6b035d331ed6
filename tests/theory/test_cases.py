import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from toa.theory import CASES, Case, in_simplex, local_atoms


@pytest.mark.parametrize("name", list(CASES))
def test_every_claim_of_the_lemma_holds(name: str) -> None:
    case = CASES[name]()
    assert case.facts
    assert all(case.facts.values()), case.facts
    assert case.name == name
    assert case.operators.dtype == torch.float64


@pytest.mark.parametrize("name", list(CASES))
def test_averaging_fails_the_claims_that_refute_softmax(name: str) -> None:
    case = CASES[name]()
    average = torch.full_like(case.operators, 1.0 / case.operators.shape[-1])
    failed = {text for text, holds in case.claims.items() if not holds(average)}
    assert failed - {"an orthogonal projector", "orthogonal projectors", "diagonal strictly between zero and one"}


def test_zero_row_sums_are_those_of_a_b_e_and_the_stationary_d() -> None:
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


def test_b_takes_constants_and_inner_trends_away() -> None:
    operator = CASES["B"](num_tokens=20, width=5).operators[0]
    trend = torch.arange(20, dtype=torch.float64)
    residual = operator @ (3.0 + trend)
    assert residual[2:-2].abs().max() < 1e-12
    assert residual[0] != 0.0
    smoothing = torch.eye(20, dtype=torch.float64) - operator
    assert in_simplex(smoothing).all()


@given(st.integers(0, 2**31))
def test_c_keeps_what_the_factors_drive(seed: int) -> None:
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
    assert all(case.facts.values())
    mixing = torch.linalg.inv(case.operators[0])
    assert torch.linalg.cond(mixing) < 5.0
    assert (mixing > -1e-12).all()


def test_unknown_case_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown case 'F'; known: A, B, C, D, E, patch, inverted"):
        CASES["F"]


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("A", {"horizon": 49}, "horizon must be at most length=48, got 49; observe 49 steps or more"),
        ("A", {"horizon": 0}, "horizon must be at least 1, got 0"),
        ("A", {"periods": (24, 7)}, "length must be a multiple of period=7, got 48"),
        ("A", {"periods": (24, 2)}, "period must be at least 3, got 2"),
        ("A", {"periods": (24, 24)}, "periods must be distinct and at least one, got"),
        ("A", {"periods": ()}, "periods must be distinct and at least one, got"),
        ("B", {"width": 4}, "width must be odd and at most num_tokens=48, got 4"),
        ("B", {"width": 49}, "width must be odd and at most num_tokens=48, got 49"),
        ("C", {"factors": 24}, "factors must be below channels=24, got 24"),
        ("D", {"length": 48}, "length must be at least 84, got 48"),
        ("E", {"cycles": 1}, "cycles must be at least 2, got 1"),
        ("E", {"cycles": 7}, "window must be at least 2 cycles . 3 = 17, got 16"),
        ("E", {"centres": (41,)}, "centre must leave 16 samples inside num_tokens=48, got 41; use 8 to 40"),
        ("E", {"centres": ()}, "number of centres must be at least 1, got 0"),
        ("patch", {"lag": 42}, "lag must be below num_patches=42, got 42"),
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
        ((2, 3, 4), "a family of 2 operators must be square, got T=3 and N=4"),
        ((4, 4), "operators must have 3 axes"),
    ],
)
def test_case_of_a_wrong_shape_is_refused(shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Case(name="x", title="x", operators=torch.zeros(shape, dtype=torch.float64), features=1, claims={})
