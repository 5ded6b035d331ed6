"""Row norms of extreme scores: they neither overflow nor lose the gradients of rows with one key."""

from dataclasses import replace

import pytest
import torch

from tests.support import Problem, make_problem
from toa.ops import operator_attention

BACKENDS = ("reference", "folded")
# sizes of queries and keys: their scores are up to 1e25
SIZES = (1e-6, 1.0, 1e6, 1e12)
NORMED = [
    ("softmax", "l2", "none"),
    ("softmax", "rms", "none"),
    ("relu", "l2", "none"),
    ("relu", "rms", "none"),
    ("gated", "l2", "l2"),
    ("gated", "rms", "rms"),
    ("gated", "l2", "rms"),
]
MASKS = [{}, {"causal": True}, {"padding": "leading"}, {"window": 4, "causal": True}]


def problem_of(activation: str, score_norm: str, gate_norm: str, size: float = 1.0, **options) -> Problem:
    """A problem in float32 whose queries and keys are multiplied by `size`."""
    if activation == "gated":
        options["gate_norm"] = gate_norm
    problem = make_problem(keys=13, width=3, gate_width=3, activation=activation, score_norm=score_norm, **options)
    leaves = {
        name: (x.detach() * (size if name in ("q", "k", "gate_q", "gate_k") else 1.0)).requires_grad_()
        for name, x in problem.leaves.items()
    }
    return replace(problem, leaves=leaves).cast(torch.float32)


def worst_error(problem: Problem, backend: str) -> float:
    """Largest error of the output and of each gradient, relative to the largest entry, against float64."""
    exact = problem.cast(torch.float64).results("reference")
    errors = [
        (got.double() - exact[name]).abs().max() / exact[name].abs().max().clamp(min=1e-300)
        for name, got in problem.results(backend).items()
        if exact[name].abs().max() > 1e-30
    ]
    return torch.stack(errors).nan_to_num(nan=torch.inf).max().item()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("options", MASKS, ids=str)
@pytest.mark.parametrize(("activation", "score_norm", "gate_norm"), NORMED)
def test_normalised_scores_are_accurate_at_any_size(activation, score_norm, gate_norm, options, backend) -> None:
    for size in SIZES:
        assert worst_error(problem_of(activation, score_norm, gate_norm, size, **options), backend) < 1e-3, size


@pytest.mark.parametrize("norm", ["l2", "rms"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_of_huge_scores_keep_their_length(backend, norm) -> None:
    # with V = I the output is the row of weights
    rows = 1e12 * torch.rand(1, 4, 1, 8)
    v = torch.eye(4)[None, :, None]
    weights = operator_attention(rows, rows, v, activation="relu", score_norm=norm, backend=backend)
    expected = 1.0 if norm == "l2" else 4**-0.5
    torch.testing.assert_close(weights.norm(dim=-1), torch.full((1, 4, 1), expected))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("options", [{"window": 1}, {"window": 1, "causal": True}], ids=str)
def test_gradients_of_queries_that_see_one_key_are_those_of_their_scores(options, backend) -> None:
    worst = []
    for seed in range(8):
        problem = make_problem(seed=seed, keys=33, width=64, activation="relu", score_norm="l2", **options)
        exact = problem.results("reference")
        rounded = problem.cast(torch.float32).results(backend)
        errors = [
            (part.double() - exact[name]).abs().max() / exact[name].abs().max().clamp(min=1.0)
            for name, part in rounded.items()
        ]
        worst.append(max(errors).item())
    # the usual error: where a score is nearly zero, an l2 norm multiplies any rounding by up to a thousand
    assert sorted(worst)[4] <= 2e-4
