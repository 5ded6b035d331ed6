"""What holds around `operator_attention` besides its values; docs/contract.md states it."""

import importlib.util
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.utils.checkpoint import checkpoint

from tests.conftest import SHAPE_CHECKED
from tests.support import ACTIVATIONS, BLOCKED, GATED, Problem, assert_near, make_problem
from toa import ops
from toa.nn import TemporalOperatorAttention
from toa.ops.attention import folded


def test_shapes_in_annotations_are_checked_here() -> None:
    assert all(importlib.util.find_spec(name) for name in SHAPE_CHECKED)
    with pytest.raises(jaxtyping.TypeCheckError, match="b n h d"):
        folded._heads_first(torch.zeros(2, 3))


def attend(activation: str, x: Tensor, s: Tensor, **options: Any) -> Tensor:
    gate = {"gate_q": x, "gate_k": x} if activation in GATED else {}
    return ops.operator_attention(x, x, x, s, s, activation=activation, **gate, **options)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("backend", ["reference", "folded"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_vmap_of_outputs_and_of_gradients_per_sample(activation, backend) -> None:
    x = torch.randn(3, 2, 5, 2, 4, dtype=torch.float64)
    s = torch.randn(2, 5, 5, dtype=torch.float64)
    options: dict[str, Any] = {"score_norm": "rms", "backend": backend}
    found = vmap(lambda each: attend(activation, each, s, causal=True, **options))(x)
    assert_near(found, torch.stack([attend(activation, each, s, causal=True, **options) for each in x]))

    def loss(matrix: Tensor, each: Tensor) -> Tensor:
        return attend(activation, each, matrix, **options).square().sum()

    assert_near(vmap(grad(loss), in_dims=(None, 0))(s, x), torch.stack([grad(loss)(s, each) for each in x]))


@pytest.mark.parametrize("activation", BLOCKED)
def test_vmap_takes_inputs_that_all_samples_share(activation) -> None:
    q = torch.randn(3, 2, 5, 2, 4)
    shared = torch.randn(2, 5, 2, 4)
    s = torch.randn(2, 5, 5)
    gate: dict[str, Any] = {"gate_q": shared, "gate_k": shared} if activation in GATED else {}

    def run(query: Tensor) -> Tensor:
        return ops.operator_attention(query, shared, shared, s, s, activation=activation, **gate)

    assert_near(vmap(run)(q), torch.stack([run(each) for each in q]), 1e-5)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_second_derivatives_of_a_penalty_on_gradients_agree_between_backends(activation) -> None:
    results = []
    for backend in ("reference", "folded"):
        problem = make_problem(activation=activation, score_norm="rms", causal=True)
        leaves = list(problem.leaves.values())
        first = torch.autograd.grad(problem.run(backend).square().sum(), leaves, create_graph=True)
        penalty = sum((each.square().sum() for each in first), torch.zeros((), dtype=torch.float64))
        results.append(torch.autograd.grad(penalty, leaves))
    for one, other in zip(*results, strict=True):
        assert_near(one, other, 1e-10)


@pytest.mark.parametrize("dropout_p", [0.0, 0.4])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_checkpointing_repeats_the_same_numbers(activation, dropout_p) -> None:
    problem = make_problem(activation=activation, dropout_p=dropout_p)
    names = list(problem.leaves)
    leaves = list(problem.leaves.values())

    def run(*found: Tensor) -> Tensor:
        made = Problem(leaves=dict(zip(names, found, strict=True)), kinds=problem.kinds, options=problem.options)
        return made.run("folded")

    results = []
    for function in (run, lambda *found: checkpoint(run, *found, use_reentrant=False)):
        torch.manual_seed(3)
        out = function(*leaves)
        results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_checkpointing_a_layer_repeats_dropout_and_regularization(activation) -> None:
    layer = TemporalOperatorAttention(8, 2, 5, activation, dropout=0.3)
    x = torch.randn(2, 5, 8, requires_grad=True)
    results = []
    for function in (layer, lambda *found: checkpoint(layer, *found, use_reentrant=False)):
        torch.manual_seed(3)
        out, _ = function(x, x, x)
        results.append(torch.autograd.grad(out.square().sum(), [x, *layer.parameters()]))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
