"""Rotary positions: turned before S1 mixes the keys, in every backend."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.ops.test_gradcheck import BACKENDS, away_from_kinks, check
from tests.support import ACTIVATIONS, Problem, assert_near, make_problem, message
from toa import ops


def rotation(position: float, width: int, base: float) -> Tensor:
    """R(p) as a matrix."""
    half = width // 2
    matrix = torch.zeros(width, width, dtype=torch.float64)
    for i in range(half):
        angle = torch.tensor(position * base ** (-i / half), dtype=torch.float64)
        matrix[i, i] = matrix[i + half, i + half] = angle.cos()
        matrix[i, i + half] = -angle.sin()
        matrix[i + half, i] = angle.sin()
    return matrix


def turned_by_hand(x: Tensor, positions: Tensor, base: float) -> Tensor:
    rows = [x[:, n] @ rotation(float(p), x.shape[3], base).T for n, p in enumerate(positions)]
    return torch.stack(rows, 1)


def make_turned(activation: str, **options: Any) -> tuple[Problem, ops.Rotary]:
    problem = make_problem(queries=4, keys=5, width=6, gate_width=4, activation=activation, **options)
    rotary = ops.Rotary(torch.tensor([3.0, 4.0, 5.5, 9.0]), torch.arange(-2.0, 3.0), base=50.0)
    return replace(problem, options=problem.options | {"rotary": rotary}), rotary


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_reference_turns_queries_and_keys_before_the_operators(activation) -> None:
    problem, rotary = make_turned(activation, padding="random")
    by_hand = {
        name: turned_by_hand(x.detach(), rotary.queries if name in ("q", "gate_q") else rotary.keys, rotary.base)
        for name, x in problem.leaves.items()
        if name in ("q", "k", "gate_q", "gate_k")
    }
    options = {name: value for name, value in problem.options.items() if name != "rotary"}
    expected = Problem(leaves=problem.leaves | by_hand, kinds=problem.kinds, options=options).run("reference")
    assert_near(problem.run("reference"), expected)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_scores_depend_on_distances_alone(activation) -> None:
    problem, rotary = make_turned(activation)
    moved = ops.Rotary(rotary.queries + 7.0, rotary.keys + 7.0, rotary.base)
    other = replace(problem, options=problem.options | {"rotary": moved})
    assert_near(other.run("reference"), problem.run("reference"))
    stretched = ops.Rotary(rotary.queries * 2.0, rotary.keys, rotary.base)
    far = replace(problem, options=problem.options | {"rotary": stretched})
    assert not torch.allclose(far.run("reference"), problem.run("reference"))


@pytest.mark.parametrize("kind", ["dense", "dplr", "toeplitz", "banded"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_backends_agree_with_the_reference_under_rotary_positions(activation, kind) -> None:
    problem, _ = make_turned(activation, s1=kind, s2=kind, gate_s1=kind, score_norm="rms")
    expected = problem.results("reference")
    for name, got in problem.results("folded").items():
        assert_near(got, expected[name], name=name)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_through_rotary_positions_are_derivatives(activation, backend) -> None:
    rotary = ops.Rotary(torch.arange(3.0), torch.arange(3.0), base=20.0)
    problem = away_from_kinks(activation=activation, gate_width=2)
    check(replace(problem, options=problem.options | {"rotary": rotary}), backend, torch.autograd.gradcheck)


def test_half_precision_keeps_distances_at_far_positions() -> None:
    x = torch.randn(1, 3, 1, 8, generator=torch.Generator().manual_seed(0))
    s = torch.zeros(1, 3, 3)
    far = ops.Rotary(torch.arange(2000.0, 2003.0), torch.arange(2000.0, 2003.0))
    near = ops.Rotary(torch.arange(3.0), torch.arange(3.0))
    low = ops.operator_attention(*(x.bfloat16(),) * 3, s.bfloat16(), rotary=far)
    exact = ops.operator_attention(x.double(), x.double(), x.double(), s.double(), rotary=near)
    # bfloat16 has 8 bits: each of the four products rounds by at most 2**-8 of numbers below 8
    assert float((low.double() - exact).abs().max()) < 4 * 2**-8 * 8


def test_decoding_with_a_cache_equals_one_call() -> None:
    x = torch.randn(2, 5, 2, 4, dtype=torch.float64)
    s = torch.randn(2, 5, 5, dtype=torch.float64)
    positions = torch.arange(5.0)
    whole = ops.operator_attention(x, x, x, s, s, causal=True, rotary=ops.Rotary(positions, positions))
    cache = ops.AttentionCache()
    steps = []
    for n in range(5):
        new = x[:, n : n + 1]
        rotary = ops.Rotary(positions[n : n + 1], positions[n : n + 1])
        steps.append(ops.operator_attention(new, new, new, s, s, causal=True, rotary=rotary, cache=cache))
    assert_near(torch.cat(steps, 1), whole)


def test_packed_sequences_count_positions_from_their_start() -> None:
    x = torch.randn(5, 2, 4, dtype=torch.float64)
    s = torch.randn(2, 3, 3, dtype=torch.float64)
    positions = torch.arange(3.0)
    boundaries = torch.tensor([0, 3, 5])
    packed = ops.operator_attention(x, x, x, s, s, rotary=ops.Rotary(positions, positions), cu_seqlens=boundaries)
    alone = x[3:].unsqueeze(0)
    short = ops.Rotary(positions[:2], positions[:2])
    assert_near(packed[3:], ops.operator_attention(alone, alone, alone, s, s, rotary=short)[0])


@pytest.mark.parametrize(
    ("positions", "width", "parts"),
    [
        (torch.arange(4.0), 4, ("q must have shape", "(any, 4, any, any)", "(1, 3, 1, 4)")),
        (torch.zeros(3, 1), 4, ("rotary.queries must have one position per token", "(3, 1)")),
        (torch.arange(3.0), 3, ("q must have an even width", "got 3", "pad it")),
    ],
)
def test_wrong_positions_and_widths_raise(positions, width, parts) -> None:
    x = torch.zeros(1, 3, 1, width)
    with pytest.raises(ValueError, match=message(*parts)):
        ops.operator_attention(x, x, x, rotary=ops.Rotary(positions, positions))


def test_a_base_of_one_raises() -> None:
    with pytest.raises(ValueError, match=message("rotary.base must be above 1", "1.0", "10000 is customary")):
        ops.Rotary(torch.arange(3), torch.arange(3), base=1.0)
