from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import ACTIVATIONS, GATED, KINDS, Problem, assert_as_accurate, make_problem, message
from toa import ops
from toa.nn import DenseOperator
from toa.ops.operators import Operator

DTYPES = (torch.float32, torch.bfloat16)


def literal(problem: Problem) -> Tensor:
    """act(Q Kᵀ S1) S2 V with every product in the dtype of its inputs."""
    a: dict[str, Any] = problem.arguments()
    n = a["k"].shape[1]

    def matrix(s: Tensor | Operator | None, like: Tensor) -> Tensor:
        if s is None:
            return torch.eye(n, dtype=like.dtype)
        return (s if isinstance(s, Tensor) else s.dense(n)).to(like.dtype)

    def scores(left: Tensor, right: Tensor, s: Tensor | Operator | None) -> Tensor:
        return torch.einsum("bmhd,bnhd->bhmn", left, right) @ matrix(s, left)

    w = gate = scores(a["q"], a["k"], a["s1"])
    if a["activation"] in GATED:
        gate = scores(a["gate_q"], a["gate_k"], a["gate_s1"])
    w = ops.ACTIVATIONS[a["activation"]].weights(w, gate)
    return torch.einsum("bhmn,bnhe->bmhe", w @ matrix(a["s2"], w), a["v"])


def literal_results(problem: Problem) -> dict[str, Tensor]:
    out = literal(problem)
    generator = torch.Generator().manual_seed(1)
    cotangent = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out)
    grads = torch.autograd.grad(out, list(problem.leaves.values()), cotangent)
    return {"output": out, **{f"grad of {n}": g for n, g in zip(problem.leaves, grads, strict=True)}}


def clear_of_the_kink(problem: Problem) -> Problem:
    """A problem with positive scores only: rounding cannot move them past ReLU's kink."""
    leaves = {name: x.detach() if name == "v" else x.detach().abs() for name, x in problem.leaves.items()}
    return replace(problem, leaves={name: x.requires_grad_() for name, x in leaves.items()})


def roundings(exact: Tensor, dtype: torch.dtype) -> float:
    """A few roundings of the largest entry."""
    return 4 * torch.finfo(dtype).eps * exact.abs().max().item()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_folded_and_its_gradients_are_as_accurate_as_the_formula_in_that_dtype(activation, dtype, kind) -> None:
    problem = make_problem(keys=65, queries=33, activation=activation, width=8, s1=kind, s2=kind, gate_s1=kind)
    low = clear_of_the_kink(problem).cast(dtype)
    # the low-precision numbers are exact inputs of a float64 problem
    exact = low.cast(torch.float64).results("reference")
    got = low.results("folded")
    plain = literal_results(low)
    for name in exact:
        assert_as_accurate(name, got[name], exact[name], plain[name], atol=roundings(exact[name], dtype))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_folded_output_of_signed_scores_is_as_accurate_as_the_formula(activation, dtype, kind) -> None:
    low = make_problem(keys=65, queries=33, activation=activation, width=8, s1=kind, s2=kind, gate_s1=kind).cast(dtype)
    exact = low.cast(torch.float64).run("reference")
    assert_as_accurate("output", low.run("folded"), exact, literal(low), atol=roundings(exact, dtype))


@pytest.mark.parametrize(
    "options",
    [{"score_norm": "l2"}, {"score_norm": "mean"}, {"score_norm": "rms"}, {"gate_norm": "l2"}, {"gate_norm": "rms"}],
    ids=str,
)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_folded_norms_are_about_as_accurate_as_reference(dtype, causal, options) -> None:
    activation = "gated" if "gate_norm" in options else "softmax"
    low = make_problem(keys=65, activation=activation, width=8, causal=causal, **options).cast(dtype)
    exact = low.cast(torch.float64).results("reference")
    plain = low.results("reference")
    # gradients through ReLU jump where rounding crosses its kink
    smooth = {n for n in exact if activation == "softmax" or n.startswith(("output", "grad of gate", "grad of v"))}
    for name, got in low.results("folded").items():
        if name in smooth:
            # the reference always accumulates in float32: allow folded some more roundings
            assert_as_accurate(name, got, exact[name], plain[name], atol=4 * roundings(exact[name], dtype))


@pytest.mark.parametrize("backend", ["folded", "reference"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reference_accumulates_in_float32(dtype, backend) -> None:
    # 4096 products of one: bfloat16 sums would stop growing at 256
    ones = torch.ones(1, 4096, 1, 1, dtype=dtype)
    out = ops.operator_attention(ones[:, :1], ones, ones, activation="relu", backend=backend)
    assert out.item() == 4096.0


@pytest.mark.parametrize("backend", ["folded", "reference"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float64, *DTYPES], ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_output_has_the_dtype_of_the_values_with_float32_operators(activation, dtype, kind, backend) -> None:
    problem = make_problem(
        keys=5, activation=activation, score_norm="l2", s1=kind, s2=kind, gate_s1=kind, padding="random"
    ).cast(dtype, operators=torch.float32)
    results = problem.results(backend)
    assert results["output"].dtype == dtype
    for name, leaf in problem.leaves.items():
        assert results[f"grad of {name}"].dtype == leaf.dtype


@pytest.mark.parametrize("backend", ["folded", "reference"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_autocast_computes_and_returns_bfloat16(activation, kind, backend) -> None:
    problem = make_problem(keys=6, activation=activation, s1=kind, s2=kind, gate_s1=kind).cast(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        results = problem.results(backend)
    assert results["output"].dtype == torch.bfloat16
    # as if the caller had cast the tensors, leaving the operators alone
    cast = problem.cast(torch.bfloat16, operators=torch.float32).run(backend)
    assert torch.equal(results["output"], cast)
    assert all(results[f"grad of {name}"].dtype == torch.float32 for name in problem.leaves)


def test_row_norms_survive_queries_nearly_orthogonal_to_the_keys() -> None:
    # every key is close to one direction and every query almost perpendicular to it: the norm is a small difference
    generator = torch.Generator().manual_seed(0)
    direction = torch.nn.functional.normalize(torch.randn(16, generator=generator), dim=0)
    k = direction + 1e-3 * torch.randn(1, 64, 1, 16, generator=generator)
    q = torch.randn(1, 8, 1, 16, generator=generator)
    q = q - (q @ direction)[..., None] * direction
    v = torch.randn(1, 64, 1, 4, generator=generator)
    options: dict[str, Any] = {"activation": "relu", "score_norm": "l2"}
    exact = ops.operator_attention(q.double(), k.double(), v.double(), **options, backend="reference")
    plain = ops.operator_attention(q, k, v, **options, backend="reference")
    got = ops.operator_attention(q, k, v, **options, backend="folded")
    assert_as_accurate("l2", got, exact, plain, factor=4.0)


@pytest.mark.parametrize("name", ["s1", "s2"])
def test_an_operator_layer_raises_and_names_its_operator_method(name) -> None:
    q = torch.randn(1, 4, 2, 3)
    layer: dict[str, Any] = {name: DenseOperator(2, 4)}
    with pytest.raises(ValueError, match=message(name, "tensor", "DenseOperator", ".operator()")):
        ops.operator_attention(q, q, q, **layer)
    integers: dict[str, Any] = {name: torch.ones(2, 4, 4, dtype=torch.int64)}
    with pytest.raises(ValueError, match=message(name, "floating point", "torch.int64", ".float()")):
        ops.operator_attention(q, q, q, **integers)


def test_softmax_in_16_bits_on_a_cpu_is_that_of_float32_rounded_once() -> None:
    generator = torch.Generator().manual_seed(3)
    q, k, v, cotangent = (torch.randn(2, 24, 4, 8, generator=generator).bfloat16() for _ in range(4))
    results = []
    for dtype in DTYPES:
        leaves = [x.to(dtype).requires_grad_() for x in (q, k, v)]
        output = ops.operator_attention(*leaves, activation="softmax", backend="folded")
        results.append([output, *torch.autograd.grad(output, leaves, cotangent.to(dtype))])
    for exact, low in zip(*results, strict=True):
        torch.testing.assert_close(low, exact.bfloat16(), rtol=2**-7, atol=1e-6)
