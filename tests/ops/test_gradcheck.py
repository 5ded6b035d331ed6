import pytest
import torch
from torch import Tensor

from tests.support import ACTIVATIONS, BLOCKED, Problem, make_problem

BACKENDS = ("folded", "reference")


def away_from_kinks(**options) -> Problem:
    """A small problem none of whose left scores is near ReLU's kink, where finite differences are meaningless."""
    for seed in range(100):
        problem = make_problem(seed=seed, batch=1, keys=3, width=2, value_width=2, heads=1, **options)
        if _smallest_score(problem) > 1e-3:
            return problem
    raise AssertionError("no seed keeps clear of the kink")


def _smallest_score(problem: Problem) -> float:
    # with values that read single columns of the kernel, a score near zero shows in the kernel before ReLU
    q, k = problem.leaves["q"].detach(), problem.leaves["k"].detach()
    s1 = problem.arguments()["s1"]
    scores = torch.einsum("bmhd,bnhd->bhmn", q, k)
    if s1 is not None:
        matrix = s1 if isinstance(s1, Tensor) else s1.dense(k.shape[1])
        scores = scores @ (matrix.detach().triu() if problem.options.get("causal") else matrix.detach())
    visible = scores.tril() if problem.options.get("causal") else scores
    return visible[visible != 0].abs().min().item()


def check(problem: Problem, backend: str, checker) -> None:
    names = list(problem.leaves)

    def function(*leaves: Tensor) -> Tensor:
        copy = Problem(leaves=dict(zip(names, leaves, strict=True)), kinds=problem.kinds, options=problem.options)
        return copy.run(backend)

    assert checker(function, tuple(problem.leaves.values()))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_are_derivatives(activation, causal, backend) -> None:
    problem = away_from_kinks(activation=activation, causal=causal, gate_width=1)
    check(problem, backend, torch.autograd.gradcheck)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("score_norm", "gate_norm"), [("l2", "l2"), ("mean", "none"), ("rms", "rms")])
def test_gradients_through_the_norms_are_derivatives(score_norm, gate_norm, backend) -> None:
    problem = away_from_kinks(
        activation="gated", score_norm=score_norm, gate_norm=gate_norm, s1="dplr", s2="toeplitz", gate_s1="none"
    )
    check(problem, backend, torch.autograd.gradcheck)


def test_softmax_of_the_reference_has_second_derivatives() -> None:
    problem = away_from_kinks(activation="softmax", s1="raw", s2="none", gate_s1="none")
    check(problem, "reference", torch.autograd.gradgradcheck)


@pytest.mark.parametrize("activation", BLOCKED)
def test_second_derivatives_of_folded_are_derivatives(activation) -> None:
    problem = away_from_kinks(activation=activation, s1="raw", s2="none", gate_s1="none", gate_width=1)
    check(problem, "folded", torch.autograd.gradgradcheck)
