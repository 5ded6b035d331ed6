import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import ACTIVATIONS, KINDS, NORMS, Problem, assert_near, make_problem, message
from toa import ops

BACKENDS = ("folded", "reference")


def masked_problem(*, shared: bool = False, hard: bool = True, **options: Any) -> Problem:
    """A problem with a pair mask among its leaves: zeros and ones if `hard`, else fractions too."""
    problem = make_problem(**options)
    batch, m = problem.leaves["q"].shape[:2]
    mask = torch.rand(1 if shared else batch, m, problem.leaves["k"].shape[1], dtype=torch.float64)
    mask = (mask > 0.4).double() if hard else mask.masked_fill(mask < 0.4, 0.0)
    return replace(problem, leaves={**problem.leaves, "pair_mask": mask.requires_grad_()})


@pytest.mark.parametrize("hard", [True, False])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padding", ["none", "random"])
@pytest.mark.parametrize(("activation", "score_norm", "gate_norm"), NORMS)
def test_folded_matches_reference_with_the_gradient_of_the_mask(
    activation, score_norm, gate_norm, padding, causal, hard
) -> None:
    norms = {"activation": activation, "score_norm": score_norm, "gate_norm": gate_norm}
    problem = masked_problem(keys=9, queries=7, padding=padding, causal=causal, hard=hard, scale=0.5, **norms)
    expected = problem.results("reference")
    assert (expected["grad of pair_mask"] != 0).any()
    for name, got in problem.results("folded").items():
        assert_near(got, expected[name], name=name)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_mask_shared_by_the_batch_is_that_mask_for_each_entry(activation, kind) -> None:
    kinds = {"s1": kind, "s2": kind, "gate_s1": kind}
    problem = masked_problem(batch=3, activation=activation, shared=True, **kinds)
    mask = problem.leaves["pair_mask"].detach()
    each = replace(problem, leaves={**problem.leaves, "pair_mask": mask.expand(3, -1, -1).clone().requires_grad_()})
    for backend in BACKENDS:
        got, expected = problem.results(backend), each.results(backend)
        assert_near(got["output"], expected["output"])
        assert_near(got["grad of pair_mask"], expected["grad of pair_mask"].sum(0, keepdim=True))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_mask_of_ones_changes_nothing(activation, backend) -> None:
    problem = make_problem(activation=activation, queries=3, padding="random")
    ones = torch.ones(1, 3, 5, dtype=torch.float64)
    masked = replace(problem, leaves={**problem.leaves, "pair_mask": ones.requires_grad_()})
    assert_near(masked.run(backend), problem.run(backend))


def scores_of(problem: Problem) -> Tensor:
    """Q Kᵀ S1, the scores that a pair mask multiplies."""
    q, k, matrix = (problem.leaves[name].detach() for name in ("q", "k", "s1.matrix"))
    return torch.einsum("bmhd,bnhd->bhmn", q, k) @ matrix


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_softmax_multiplies_scores_and_shifts_masked_pairs_as_duet_does(backend, scale) -> None:
    problem = masked_problem(s1="raw", s2="raw", scale=scale)
    mask = problem.leaves["pair_mask"].detach().unsqueeze(1)
    shift = torch.zeros_like(mask).masked_fill(mask == 0, -math.log(1e10))
    logits = scale * (scores_of(problem) * mask + shift)
    values = torch.einsum("hnk,bkhe->bhne", problem.leaves["s2.matrix"], problem.leaves["v"])
    assert_near(problem.run(backend), (logits.softmax(-1) @ values).transpose(1, 2))


def test_a_masked_pair_of_softmax_weighs_1e_10_at_scale_one() -> None:
    zero = torch.zeros(1, 2, 1, 1, dtype=torch.float64)
    eye = torch.eye(2, dtype=torch.float64)
    mask = torch.tensor([[[1.0, 0.0], [1.0, 1.0]]], dtype=torch.float64)
    for backend in BACKENDS:
        weights = ops.operator_attention(zero, zero, eye[None, :, None], pair_mask=mask, backend=backend)[0, :, 0]
        assert weights[0, 1].item() == pytest.approx(1e-10, rel=1e-6)
        assert weights[1].tolist() == [0.5, 0.5]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("activation", ["relu", "gated"])
def test_a_masked_pair_passes_nothing_to_s2(activation, backend) -> None:
    problem = masked_problem(activation=activation, s1="raw", s2="raw", gate_s1="none")
    mask = problem.leaves["pair_mask"].detach().unsqueeze(1)
    kernel = scores_of(problem).relu()
    if activation == "gated":
        right = torch.einsum("bmhd,bnhd->bhmn", problem.leaves["gate_q"], problem.leaves["gate_k"])
        kernel = kernel * torch.nn.functional.softplus(right)
    values = torch.einsum("hnk,bkhe->bhne", problem.leaves["s2.matrix"], problem.leaves["v"])
    assert_near(problem.run(backend), ((kernel * mask) @ values).transpose(1, 2))
    # the gradient of the mask is the pair's contribution, whether it is kept or not
    out = problem.run(backend)
    (got,) = torch.autograd.grad(out.sum(), [problem.leaves["pair_mask"]])
    assert_near(got, (kernel * values.sum(-1).unsqueeze(-2)).sum(1))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_dropout_drops_the_same_pairs_in_both_backends(activation) -> None:
    problem = masked_problem(keys=6, activation=activation, dropout_p=0.5)
    results = []
    for backend in BACKENDS:
        torch.manual_seed(7)
        results.append(problem.results(backend))
    for name, expected in results[1].items():
        assert_near(results[0][name], expected, name=name)


BAD = [
    (torch.ones(3, 4), ("pair_mask must have 3 axes (B or 1, M, N), got 2: shape (3, 4)",)),
    (torch.ones(2, 4, 4), ("pair_mask must have shape (B or 1, M, N)=(2, 3, 4), got (2, 4, 4)",)),
    (torch.ones(3, 3, 4), ("pair_mask must have shape (B or 1, M, N)=(2, 3, 4), got (3, 3, 4)",)),
    (
        torch.ones(2, 3, 4, dtype=torch.bool),
        ("pair_mask must be floating point, 1 where a pair is kept, got torch.bool", ".float()"),
    ),
    (torch.ones(2, 3, 4, device="meta"), ("pair_mask must be on the device of q, cpu, got meta", ".to(q.device)")),
]


@pytest.mark.parametrize(("mask", "parts"), BAD, ids=lambda x: x[0] if isinstance(x, tuple) else "")
def test_a_pair_mask_of_a_wrong_shape_dtype_or_device_raises(mask, parts) -> None:
    q, k = torch.zeros(2, 3, 1, 2), torch.zeros(2, 4, 1, 2)
    with pytest.raises(ValueError, match=message(*parts)):
        ops.operator_attention(q, k, k, pair_mask=mask)
