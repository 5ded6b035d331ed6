import pytest
import torch

from tests.support import ACTIVATIONS, BLOCKED, KINDS, NORMS, assert_as_accurate, assert_near, make_problem
from toa import ops
from toa.ops.attention import api, blocked

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def assert_backends_agree(**options) -> None:
    problem = make_problem(**options).to("cuda")
    expected = problem.results("reference")
    for name, got in problem.results("folded").items():
        assert got.is_cuda
        assert_near(got, expected[name], name=name)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_folded_matches_reference_on_cuda(activation, causal, kind) -> None:
    kinds = {"s1": kind, "s2": kind, "gate_s1": kind}
    assert_backends_agree(keys=65, queries=33, activation=activation, causal=causal, surplus=2, **kinds)


@pytest.mark.parametrize("padding", ["random", "leading"])
@pytest.mark.parametrize(("activation", "score_norm", "gate_norm"), NORMS)
def test_folded_matches_reference_on_cuda_under_every_norm_and_mask(activation, score_norm, gate_norm, padding) -> None:
    for causal in (False, True):
        assert_backends_agree(
            keys=64,
            activation=activation,
            score_norm=score_norm,
            gate_norm=gate_norm,
            padding=padding,
            causal=causal,
        )


@pytest.mark.parametrize("activation", BLOCKED)
def test_blocked_scores_match_reference_on_cuda(monkeypatch, activation) -> None:
    monkeypatch.setattr(blocked, "_BLOCK_ELEMENTS_DEFAULT", 700)
    assert_backends_agree(keys=65, queries=33, activation=activation, causal=True, padding="random")


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_results_on_cuda_equal_those_on_the_cpu(activation) -> None:
    problem = make_problem(keys=65, activation=activation, padding="random", score_norm="l2")
    expected = problem.results("folded")
    for name, got in problem.to("cuda").results("folded").items():
        assert_near(got.cpu(), expected[name], name=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_folded_on_cuda_is_about_as_accurate_as_reference(activation, dtype) -> None:
    problem = make_problem(keys=65, queries=33, activation=activation, width=8)
    low = problem.cast(dtype).to("cuda")
    exact = low.cast(torch.float64).run("reference")
    plain = low.run("reference")
    got = low.run("folded")
    # the reference always accumulates in float32: allow folded some more roundings
    atol = 16 * torch.finfo(dtype).eps * exact.abs().max().item()
    assert_as_accurate("output", got, exact, plain, atol=atol)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_autocast_on_cuda_returns_its_dtype(activation) -> None:
    problem = make_problem(keys=16, activation=activation).cast(torch.float32).to("cuda")
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cuda", dtype):
            assert problem.run("auto").dtype == dtype


def test_auto_chooses_the_kernels_on_cuda_where_they_can_run(monkeypatch) -> None:
    monkeypatch.setattr(api, "_WARNED", set())
    assert ops.choose_backend(activation="gated", device="cuda") == "triton"
    with pytest.warns(RuntimeWarning, match="not torch.float64"):
        assert ops.choose_backend(activation="gated", device="cuda", dtype=torch.float64) == "folded"
