from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import ACTIVATIONS, BLOCKED, KINDS, LENGTHS, NORMS, Problem, assert_near, make_problem, message
from toa import ops
from toa.nn import TemporalOperatorAttention
from toa.ops.attention import blocked, folded
from toa.ops.attention.definitions import ActivationEntry, Band


def assert_backends_agree(problem: Problem, tolerance: float = 1e-12) -> None:
    expected = problem.results("reference")
    for name, got in problem.results("folded").items():
        assert_near(got, expected[name], tolerance, name=name)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    activation, score_norm, gate_norm = draw(st.sampled_from(NORMS))
    return make_problem(
        seed=draw(st.integers(0, 2**20)),
        batch=draw(st.integers(1, 3)),
        keys=draw(st.sampled_from(LENGTHS)),
        queries=draw(st.sampled_from((None, 1, 2, 63, 66))),
        heads=draw(st.integers(1, 3)),
        width=draw(st.integers(1, 5)),
        value_width=draw(st.integers(1, 5)),
        gate_width=draw(st.integers(1, 5)),
        activation=activation,
        score_norm=score_norm,
        gate_norm=gate_norm,
        s1=draw(st.sampled_from(KINDS)),
        s2=draw(st.sampled_from(KINDS)),
        gate_s1=draw(st.sampled_from(KINDS)),
        surplus=draw(st.sampled_from((0, 1, 8))),
        padding=draw(st.sampled_from(("none", "random", "leading", "trailing"))),
        causal=draw(st.booleans()),
        scale=draw(st.sampled_from((1.0, 0.5))),
    )


@settings(max_examples=120)
@given(problems())
def test_folded_output_and_every_gradient_match_reference(problem: Problem) -> None:
    assert_backends_agree(problem)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padding", ["none", "random", "leading"])
@pytest.mark.parametrize(("activation", "score_norm", "gate_norm"), NORMS)
def test_folded_matches_reference_under_every_norm_and_mask(activation, score_norm, gate_norm, padding, causal) -> None:
    assert_backends_agree(
        make_problem(
            keys=9,
            queries=7,
            activation=activation,
            score_norm=score_norm,
            gate_norm=gate_norm,
            padding=padding,
            causal=causal,
            surplus=2,
        )
    )


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_folded_gradients_match_reference_at_odd_length(activation, causal, length) -> None:
    kinds: dict[str, Any] = {"s1": "dense", "s2": "toeplitz", "gate_s1": "dplr"}
    assert_backends_agree(make_problem(keys=length, activation=activation, causal=causal, score_norm="l2", **kinds))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_folded_matches_reference_for_every_kind_of_operator(activation, causal, kind) -> None:
    kinds = {"s1": kind, "s2": kind, "gate_s1": kind}
    problem = make_problem(keys=10, activation=activation, causal=causal, padding="random", surplus=3, **kinds)
    assert_backends_agree(problem)


@pytest.mark.usefixtures("as_matrices")
@pytest.mark.parametrize("kind", ["toeplitz", "banded"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_folded_matches_reference_for_structures_as_matrices(activation, causal, kind) -> None:
    test_folded_matches_reference_for_every_kind_of_operator(activation, causal, kind)


@pytest.mark.parametrize("backend", ["folded", "reference"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_non_contiguous_input_gives_the_same_result(activation, backend) -> None:
    problem = make_problem(keys=6, activation=activation)
    strided = {
        name: x.detach().transpose(0, -1).contiguous().transpose(0, -1) if x.dim() == 4 else x
        for name, x in problem.leaves.items()
    }
    assert not strided["q"].is_contiguous()
    got = Problem(leaves=strided, kinds=problem.kinds, options=problem.options).run(backend)
    assert_near(got, problem.run(backend))


# four heads of 5 x 7 scores: one query, some queries of a head, one head, two heads, all heads
BUDGETS = {1: 20, 15: 12, 35: 4, 80: 2, 10**6: 1}


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("activation", BLOCKED)
def test_blocked_scores_match_reference(monkeypatch, activation, causal, budget) -> None:
    monkeypatch.setattr(blocked, "_BLOCK_ELEMENTS", {"cpu": budget})
    blocks: list[Any] = []
    plan = blocked._blocks

    def counted(q, k, band):
        blocks.append(list(plan(q, k, band)))
        return iter(blocks[-1])

    monkeypatch.setattr(blocked, "_blocks", counted)
    problem = make_problem(
        queries=5, keys=7, activation=activation, causal=causal, padding="random", score_norm="mean", gate_s1="raw"
    )
    assert_backends_agree(problem)
    # forward and backward loop over the same blocks
    assert [len(each) for each in blocks] == [BUDGETS[budget]] * 2


@pytest.mark.parametrize("budget", [1, 7, 12, 35, 36, 70, 71, 10**6])
def test_blocks_cover_every_score_once(monkeypatch, budget) -> None:
    monkeypatch.setattr(blocked, "_BLOCK_ELEMENTS", {"cpu": budget})
    heads = 3
    m = 5
    n = 7
    seen = torch.zeros(heads, m)
    for head, row, _ in blocked._blocks(torch.empty(heads, 2, m), torch.empty(heads, 2, n), Band()):
        seen[head, row] += 1
        assert seen[head, row].numel() * n <= max(budget, n)
    assert (seen == 1).all()


def test_blocks_of_heads_have_about_the_same_size(monkeypatch) -> None:
    monkeypatch.setattr(blocked, "_BLOCK_ELEMENTS", {"cpu": 10 * 35})
    blocks = blocked._blocks(torch.empty(22, 2, 5), torch.empty(22, 2, 7), Band())
    sizes = [head.stop - head.start for head, *_ in blocks]
    assert sizes == [8, 8, 6]


@pytest.mark.parametrize("dropout_p", [0.0, 0.4])
@pytest.mark.parametrize(("activation", "score_norm", "gate_norm"), [n for n in NORMS if n[0] in BLOCKED])
def test_kept_and_recomputed_scores_give_the_same_gradients(
    monkeypatch, activation, score_norm, gate_norm, dropout_p
) -> None:
    norms = {"score_norm": score_norm, "gate_norm": gate_norm}
    problem = make_problem(keys=7, queries=5, activation=activation, dropout_p=dropout_p, **norms)
    results = []
    for kept_keys in (6, 7):
        monkeypatch.setattr(blocked, "_KEPT_KEYS", kept_keys)
        torch.manual_seed(3)
        results.append(problem.results("folded"))
    for name, again in results[0].items():
        assert torch.equal(results[1][name], again), name


def test_scores_are_kept_unchanged_and_only_if_gradients_are_tracked(monkeypatch) -> None:
    problem = make_problem(keys=6, activation="gated", score_norm="rms", gate_norm="rms", dropout_p=0.4)
    leaves = list(problem.leaves.values())
    kept: list[bool] = []
    forward = blocked._BlockedAttention.forward

    def watched(*args: Any) -> Any:
        kept.append(args[-1])
        return forward(*args)

    monkeypatch.setattr(blocked._BlockedAttention, "forward", staticmethod(watched))
    loss = problem.run("folded").square().sum()
    first = torch.autograd.grad(loss, leaves, retain_graph=True)
    for once, twice in zip(first, torch.autograd.grad(loss, leaves), strict=True):
        assert torch.equal(once, twice)
    with torch.no_grad():
        problem.run("folded")
    assert kept == [True, False]


def test_second_derivatives_match_reference_across_blocks(monkeypatch) -> None:
    monkeypatch.setattr(blocked, "_BLOCK_ELEMENTS", {"cpu": 10})
    problem = make_problem(keys=4, activation="gated", score_norm="l2", causal=True)
    leaves = list(problem.leaves.values())

    def curvature(backend: str) -> tuple[torch.Tensor, ...]:
        grads = torch.autograd.grad(problem.run(backend).square().sum(), leaves, create_graph=True)
        return torch.autograd.grad(torch.stack([g.square().sum() for g in grads]).sum(), leaves)

    for name, got, expected in zip(problem.leaves, curvature("folded"), curvature("reference"), strict=True):
        assert_near(got, expected, 1e-11, name=name)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("activation", BLOCKED)
def test_dropout_drops_the_same_scores_in_both_backends(activation, causal) -> None:
    problem = make_problem(keys=6, activation=activation, causal=causal, dropout_p=0.5)
    results = []
    for backend in ("reference", "folded"):
        torch.manual_seed(7)
        results.append(problem.results(backend))
    for name, expected in results[0].items():
        assert_near(results[1][name], expected, name=name)


@pytest.mark.parametrize("backend", ["folded", "reference"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_dropout_keeps_the_mean(activation, backend) -> None:
    problem = make_problem(keys=4, batch=1, activation=activation)
    kept = problem.run(backend).detach()
    dropped = Problem(leaves=problem.leaves, kinds=problem.kinds, options={**problem.options, "dropout_p": 0.3})
    with torch.no_grad():
        draws = torch.stack([dropped.run(backend) for _ in range(100)])
    error = draws.std(0) / len(draws) ** 0.5
    assert (draws.std(0) > 0).any()
    assert ((draws.mean(0) - kept).abs() <= 5 * error + 1e-12).all()


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("formed_attention", {"pair_mask": torch.ones(1, 5, 5, dtype=torch.float64)}),
        ("softmax_attention", {"activation": "softmax"}),
        ("blocked_attention", {"activation": "gated", "causal": True}),
    ],
)
def test_each_strategy_is_chosen_by_its_rule(monkeypatch, strategy, options) -> None:
    def chosen(inputs: object) -> None:
        raise AssertionError(f"chosen: {strategy}")

    monkeypatch.setattr(folded, strategy, chosen)
    with pytest.raises(AssertionError, match=f"chosen: {strategy}"):
        make_problem(**options).run("folded")


@pytest.mark.parametrize(("activation", "score_norm", "gate_norm"), [n for n in NORMS if n[0] in BLOCKED])
def test_unblocked_attention_matches_reference(monkeypatch, activation, score_norm, gate_norm) -> None:
    monkeypatch.setattr(folded, "blocked_attention", folded.unblocked_attention)
    for causal in (False, True):
        norms = {"score_norm": score_norm, "gate_norm": gate_norm}
        assert_backends_agree(make_problem(keys=7, queries=5, activation=activation, causal=causal, **norms))


def test_an_activation_needs_only_its_entry(monkeypatch) -> None:
    entry = ActivationEntry(formula="ReLU(Q Kᵀ S1)²", weights=lambda scores, _: scores.relu().square())
    monkeypatch.setitem(ops.ACTIVATIONS, "square", entry)
    for options in ({"causal": True}, {"padding": "trailing"}, {"score_norm": "rms"}):
        assert_backends_agree(make_problem(keys=7, activation="square", **options))
    with pytest.raises(ValueError, match=message("'triton'", "no kernel for 'square'", "'folded'")):
        ops.choose_backend("triton", activation="square")
    layer = TemporalOperatorAttention(8, 2, 5, "square", sor=False)
    x = torch.randn(2, 5, 8)
    out, mixing = layer(x, x, x, need_weights=True)
    values = layer.v_proj(x).unflatten(-1, (2, 4)).transpose(1, 2)
    assert_near(layer.out_proj((mixing @ values).transpose(1, 2).flatten(2)), out, 1e-5)


@pytest.mark.parametrize(
    "options", [{}, {"causal": True, "score_norm": "rms"}, {"window": 2, "score_norm": "l2"}], ids=str
)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_no_queries_give_an_empty_result(activation, options) -> None:
    if activation == "softmax":
        options = {name: value for name, value in options.items() if name != "score_norm"}
    problem = make_problem(activation=activation, queries=0, **options)
    out = problem.run("folded")
    assert out.shape == problem.run("reference").shape == (2, 0, 2, 4)
    # nothing depends on keys and values
    found = torch.autograd.grad(out.sum(), list(problem.leaves.values()), materialize_grads=True)
    assert all((grad == 0).all() for grad in found)
