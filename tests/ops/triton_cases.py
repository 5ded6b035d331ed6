"""Tests of the attention kernels; run on a GPU, or by test_compile.py under Triton's interpreter."""

import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, get_args

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.ops.oracle import compare, draw_case
from tests.ops.rounding import share_past_zero, unit_of_rounding
from tests.ops.test_row_norms import problem_of, worst_error
from tests.support import BLOCKED, FUSED, Problem, assert_registered, make_problem, message, poison_buffers
from toa import ops
from toa.ops import triton_helpers
from toa.ops.attention import api, short_sequences, tile_kernels, tiles
from toa.ops.attention.blocked import Factors
from toa.ops.attention.definitions import GATE_NORMS, SCORE_NORMS, AttentionInputs, RowNorms
from toa.ops.attention.tile_kernels import Blocks, choose_blocks
from toa.ops.attention.tiles import attend_tiles, kernel_settings
from toa.ops.triton_helpers import padded

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
LENGTHS = (1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 672, 1000) if ON_GPU else (1, 63, 64, 65)
WIDTHS = (4, 8, 16, 24, 64, 128, 256) if ON_GPU else (4, 24, 256)
# the interpreter multiplies bfloat16 as if it were integers
DTYPES = (torch.float32, torch.bfloat16, torch.float16) if ON_GPU else (torch.float32, torch.float16)


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch) -> None:
    poison_buffers(monkeypatch)
    monkeypatch.setattr(api, "_PLANS", {})


def assert_kernels_are_as_accurate_as_the_reference(dtype=torch.float32, **options) -> None:
    """Compare root mean square errors, relative to float64.

    The reference runs in the same dtype: in 16 bits, each of its products is rounded to 16 bits. Where rounding moves a
    score past zero, ReLU's gradient jumps. This happens to about eps of all scores, and not to the same ones on both
    sides, so the same share is allowed. Behind a norm, the row of a query that sees one key has no gradient but
    rounding: gradients of such outputs are left out.
    """
    problem = make_problem(**options).cast(dtype).to(DEVICE)
    queries = _see_several_keys(problem)
    exact = problem.cast(torch.float64).results("reference", queries)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "promote_types", lambda one, other: one)
        plain = problem.results("reference", queries)
    eps = unit_of_rounding(dtype, tf32=torch.get_float32_matmul_precision() == "high")
    (b, m, h, _), n = problem.leaves["q"].shape, problem.leaves["k"].shape[1]
    kinks = share_past_zero(b * m * h * n, eps) if options["activation"] != "softmax" else 0.0
    for name, got in problem.results("triton", queries).items():
        assert got.isfinite().all(), f"{name} at N={n}"
        size = _rms(exact[name])
        granted = (1e-6 + 4 * eps + (kinks**0.5 if name.startswith("grad") else 0.0)) * size + 1e-7
        error = _rms(got.double() - exact[name])
        allowed = 2 * _rms(plain[name].double() - exact[name]) + granted
        assert error <= allowed, f"{name} at N={n}: error {error:.2e}, allowed {allowed:.2e}"


def _see_several_keys(problem: Problem) -> torch.Tensor | None:
    options = problem.options
    if not {"l2", "rms"} & {options.get("score_norm"), options.get("gate_norm")}:
        return None
    return (inputs_of(problem).visible_keys().sum(-1) > 1).squeeze(1)


def inputs_of(problem: Problem) -> AttentionInputs:
    return AttentionInputs(**{name: x.detach() if name in "qkv" else x for name, x in problem.arguments().items()})


def _rms(x: torch.Tensor) -> float:
    return x.double().square().mean().sqrt().item() if x.numel() else 0.0


@pytest.fixture(params=["tiles", "short"])
def form(request, monkeypatch) -> Iterator[str]:
    """Which kernels short sequences take; on a GPU the short ones round to TF32, so the reference may too."""
    if request.param == "tiles":
        monkeypatch.setattr(short_sequences, "fits", lambda inputs: False)
    elif ON_GPU:
        torch.set_float32_matmul_precision("high")
    yield request.param
    torch.set_float32_matmul_precision("highest")


def differs(activation: str, dtype: torch.dtype, width: int) -> bool:
    """Whether the interpreter runs code that no other case runs; all others are slow tests."""
    return width == 24 or (dtype == torch.float32 and width == 256 and activation == "relu")


SIZES = [
    pytest.param(*case, marks=() if differs(*case) else pytest.mark.slow, id="-".join(map(str, case)))
    for case in itertools.product(FUSED, DTYPES, WIDTHS)
]


# lengths in one test: on a GPU, only the first of those that take the same tile compiles it
@pytest.mark.parametrize(("activation", "dtype", "width"), SIZES)
def test_outputs_and_gradients(form, activation, dtype, width) -> None:
    all_lengths = ON_GPU or (dtype, width) == (torch.float32, 24)
    given = LENGTHS if all_lengths else (65 if form == "tiles" else 17,)
    lengths = [n for n in given if form == "tiles" or _is_short(n, width)]
    if form == "short" and not ON_GPU and activation != "relu" and len(lengths) > 1:
        # the code of a full tile is the same for every activation, and slow in the interpreter
        lengths.remove(64)
    if not lengths or (activation == "softmax" and form == "tiles"):
        pytest.skip("PyTorch's own attention" if lengths else "too wide for one tile")
    for keys in lengths:
        # behind a norm a single score keeps only its sign, and no gradient but rounding
        norm = "rms" if keys > 1 else "none"
        norms = {"score_norm": norm, "gate_norm": norm if activation == "gated" else "none"}
        sizes = {"width": width, "value_width": width, "gate_width": width, "scale": width**-0.5}
        sizes |= (
            {"batch": 16 if keys <= 129 else 2, "heads": 4} if ON_GPU else {"batch": 2 if keys == 65 else 1, "heads": 1}
        )
        assert_kernels_are_as_accurate_as_the_reference(dtype, keys=keys, activation=activation, **sizes, **norms)


def _is_short(tokens: int, width: int) -> bool:
    largest = short_sequences.MAX_ELEMENTS
    return tokens <= short_sequences.MAX_TOKENS and padded(tokens) * padded(width) <= largest


MASKS: list[dict[str, Any]] = [
    {"activation": "relu", "causal": True, "score_norm": "l2", "surplus": 2},
    {"activation": "gated", "padding": "leading", "gate_norm": "l2", "scale": -0.5},
    {"activation": "gated", "causal": True, "padding": "random", "s1": "none"},
    {"activation": "relu", "score_norm": "mean", "scale": -0.5, "s2": "none"},
    {"activation": "gated", "score_norm": "l2", "gate_norm": "l2", "surplus": 1},
    {"activation": "softmax", "score_norm": "mean", "queries": 5},
    {"activation": "relu", "window": 5, "score_norm": "rms", "s1": "toeplitz", "s2": "banded"},
    {"activation": "gated", "window": 4, "causal": True, "query_start": 2},
]


@pytest.mark.parametrize("options", MASKS, ids=lambda options: "-".join(map(str, options.values())))
def test_masks_norms_and_signs_of_the_scale(options) -> None:
    assert_kernels_are_as_accurate_as_the_reference(**{"keys": 19, "queries": 17, "width": 5, **options})


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"padding": "leading"}], ids=str)
@pytest.mark.parametrize("activation", ["relu", "gated"])
def test_row_norms_of_huge_scores_do_not_overflow(activation, options) -> None:
    for score_norm in ("l2", "rms"):
        problem = problem_of(activation, score_norm, "l2", 1e12, **options).to(DEVICE)
        assert worst_error(problem, "triton") < 1e-3, score_norm


@pytest.mark.parametrize("options", [{"window": 1}, {"causal": True}], ids=str)
def test_gradients_of_queries_that_see_one_key_are_those_of_their_scores(options) -> None:
    for seed in (1, 7):
        problem = make_problem(seed=seed, keys=9, width=24, activation="relu", score_norm="l2", **options)
        problem = problem.cast(torch.float32).to(DEVICE)
        exact = problem.cast(torch.float64).results("reference")
        for name, got in problem.results("triton").items():
            # an l2 norm multiplies rounding by up to a thousand
            allowed = 1e-3 * max(1.0, exact[name].abs().max().item())
            assert (got.double() - exact[name]).abs().max() <= allowed, name


@pytest.mark.skipif(ON_GPU, reason="the oracle draws its cases on the CPU")
@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in range(25, 200, 25))])
def test_kernels_compute_the_formula(first) -> None:
    cases = [case for case in map(draw_case, range(first, first + 25)) if "pair_mask" not in case.options]
    assert len(cases) > 10
    assert [compare("triton", case, torch.float32) for case in cases] == [None] * len(cases)


@pytest.mark.parametrize("activation", ["relu", "gated"])
def test_rotary_positions(activation) -> None:
    rotary = ops.Rotary(torch.arange(17.0) - 20.0, torch.arange(19.0), base=50.0)
    assert_kernels_are_as_accurate_as_the_reference(keys=19, queries=17, width=6, activation=activation, rotary=rotary)


# on a GPU each drawn problem compiles its own kernels
@pytest.mark.slow
@settings(
    max_examples=8 if ON_GPU else 15,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_drawn_problems(form, data) -> None:
    draw = data.draw
    activation = draw(st.sampled_from(FUSED if form == "short" else BLOCKED))
    longest = 140 if ON_GPU else 70
    if form == "short":
        longest = short_sequences.MAX_TOKENS
    assert_kernels_are_as_accurate_as_the_reference(
        seed=draw(st.integers(0, 99)),
        batch=draw(st.integers(1, 3)),
        queries=draw(st.integers(1, longest)),
        keys=draw(st.integers(6, longest)),
        heads=draw(st.integers(1, 3)),
        width=draw(st.integers(1, 40)),
        value_width=draw(st.integers(1, 40)),
        gate_width=draw(st.integers(1, 40)),
        activation=activation,
        scale=draw(st.sampled_from([1.0, 0.3, -0.5])),
        score_norm=draw(st.sampled_from(list(ops.SCORE_NORMS))),
        gate_norm=draw(st.sampled_from(list(ops.GATE_NORMS))) if activation == "gated" else "none",
        causal=form == "tiles" and draw(st.booleans()),
        padding=draw(st.sampled_from(["none", "random", "leading"])) if form == "tiles" else "none",
        s1=draw(st.sampled_from(["none", "dense"])),
        s2=draw(st.sampled_from(["none", "dense"])),
        surplus=draw(st.integers(0, 2)),
    )


QUICK_SCALES = [("relu", torch.float32, 0.2), ("gated", torch.float16, -0.5)]


@pytest.mark.parametrize(
    ("activation", "dtype", "scale"),
    [
        pytest.param(*case, marks=() if case in QUICK_SCALES else pytest.mark.slow)
        for case in itertools.product(BLOCKED, DTYPES, (0.2, -0.5))
    ],
)
def test_scores_are_scaled_without_a_norm(dtype, activation, scale) -> None:
    sizes = {"keys": 65, "width": 24, "gate_width": 24, "batch": 1}
    assert_kernels_are_as_accurate_as_the_reference(dtype, activation=activation, scale=scale, **sizes)


@pytest.mark.parametrize("activation", BLOCKED)
def test_scores_that_overflow_float16_without_their_scale(activation) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = [60 * torch.randn(1, 33, 2, 64, generator=generator) for _ in range(5 if activation == "gated" else 3)]
    inputs[2] /= 60
    results = []
    for dtype in (torch.float16, torch.float32):
        leaves = [x.half().to(DEVICE, dtype).requires_grad_() for x in inputs]
        out = attend_tiles(Factors(*leaves), scales=(1e-4, 1e-4))
        assert (leaves[0][0, :, 0] @ leaves[1][0, :, 0].mT).float().max() > torch.finfo(torch.float16).max
        results.append([out, *torch.autograd.grad(out.float().square().mean(), leaves)])
    for got, exact in zip(*results, strict=True):
        assert _rms(got - exact) <= 5e-3 * _rms(exact) + 1e-7


def test_non_contiguous_inputs() -> None:
    generator = torch.Generator().manual_seed(0)

    def leaf(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(DEVICE).requires_grad_()

    q, k, v = leaf(2, 3, 8, 17), leaf(2, 8, 3, 17), leaf(17, 2, 3, 8)
    views = [q.permute(0, 3, 1, 2), k.permute(0, 3, 2, 1), v.permute(1, 0, 2, 3)]
    copies = [x.detach().contiguous().requires_grad_() for x in views]
    results = []
    for tensors in (views, copies):
        out = attend_tiles(Factors(*tensors))
        results.append((out, torch.autograd.grad(out.square().sum(), tensors)))
    (got, got_grads), (expected, expected_grads) = results
    assert torch.equal(got, expected)
    for one, other in zip(got_grads, expected_grads, strict=True):
        assert torch.equal(one, other)


def test_dropout_keeps_the_mean_and_draws_once_for_both_directions() -> None:
    torch.manual_seed(0)
    q = torch.ones(1, 64, 1, 4, device=DEVICE)
    v = torch.ones(1, 64, 1, 4, device=DEVICE).requires_grad_()
    out = attend_tiles(Factors(q, q, v), dropout_p=0.25)
    weights = out[..., 0] / 4.0  # number of kept keys of a query, divided by 1 - p
    kept = weights * 0.75
    assert torch.allclose(kept, kept.round(), atol=1e-4)
    assert abs(kept.mean().item() / 64 - 0.75) < 0.03
    (grad,) = torch.autograd.grad(out.sum(), v)
    # forward sums over keys and backward over queries, both with the same mask
    assert grad[..., 0].sum().item() == pytest.approx(out[..., 0].sum().item(), rel=1e-5)
    again = attend_tiles(Factors(q, q, v), dropout_p=0.25)
    assert not torch.equal(again, out)


def test_heads_of_neighbouring_seeds_have_different_masks() -> None:
    ones = torch.ones(1, 64, 2, 4, device=DEVICE)
    eye = torch.eye(64, device=DEVICE)[None, :, None].expand(1, -1, 2, -1)
    outputs = []
    for number in (5, 6):
        seed = torch.tensor([number], dtype=torch.int32, device=DEVICE)
        numbers, _ = kernel_settings((1.0, 1.0), RowNorms())
        nothing: list[Any] = [None] * 5
        outputs.append(
            tiles._forward(ones, ones, eye, *nothing, seed, [], [], [0.5, *numbers], [False] * 5, [0] * 3)[0]
        )
    one, other = outputs
    assert not torch.equal(one[:, :, 0], one[:, :, 1])
    assert not torch.equal(one[:, :, 1], other[:, :, 0])


# the compiler itself calls deprecated functions of PyTorch
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.slow
@pytest.mark.parametrize("names", [("rms", "rms"), ("none", "none"), ("none", "l2")], ids=str)
def test_tiles_are_registered_correctly(names) -> None:
    arguments = make_problem(keys=7, queries=5, heads=1, activation="gated").cast(torch.float32).to(DEVICE).leaves
    tensors = [arguments[name] for name in ("q", "k", "v", "gate_q", "gate_k")]
    tensors += [arguments[f"{name}.weight"] for name in ("s1", "s2", "gate_s1")]
    seed, *seeds = (torch.tensor([number], dtype=torch.int32, device=DEVICE) for number in (3, 4, 5, 6))
    rates = [torch.tensor(0.3, device=DEVICE) for _ in seeds]
    norms = RowNorms(SCORE_NORMS[names[0]].row_norm(7), GATE_NORMS[names[1]].row_norm(7))
    numbers, normalised = kernel_settings((0.5, 0.5), norms)
    flags = [*normalised, True, False, True]
    assert_registered(tiles._forward, (*tensors, seed, seeds, rates, [0.2, *numbers], flags, [2, -4, 3]))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.slow
@pytest.mark.parametrize(("activation", "dropped"), [("gated", True), ("softmax", False)])
def test_short_sequence_attention_is_registered_correctly(activation, dropped) -> None:
    problem = make_problem(keys=7, queries=5, heads=1, activation=activation).cast(torch.float32).to(DEVICE)
    given = problem.arguments()
    tensors = [given.get(name) for name in ("q", "k", "v", "gate_q", "gate_k")]
    matrices = [None if given.get(name) is None else given[name].weight for name in ("s1", "s2", "gate_s1")]
    seeds = [torch.tensor([place], dtype=torch.int32, device=DEVICE) for place in range(4)]
    rates = [torch.tensor([0.2], device=DEVICE) for _ in range(3)]
    drops = (seeds[1:], rates) if dropped else ([], [])
    rms = SCORE_NORMS["rms"].row_norm(7), GATE_NORMS["rms"].row_norm(7) if activation == "gated" else None
    numbers, normalised = kernel_settings((0.5, 0.5), RowNorms(*rms))
    arguments = (*tensors, *matrices, seeds[0], *drops, activation, [*numbers, 0.2], normalised)
    assert_registered(short_sequences._forward, arguments)


@pytest.mark.parametrize("length", [16, pytest.param(65, marks=pytest.mark.slow)])
def test_dropout_gradients_are_those_of_the_masked_weights(length) -> None:
    torch.manual_seed(0)
    q, k, v, gate_q, gate_k = (torch.randn(1, length, 1, 4, device=DEVICE, requires_grad=True) for _ in range(5))
    eye = torch.eye(length, device=DEVICE)[None, :, None]

    def attend(values: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return attend_tiles(Factors(q, k, values, gate_q, gate_k), dropout_p=0.5)

    mask = attend(eye)[0, :, 0].detach() != 0  # (M, N), where kept and positive
    left = (q[0, :, 0] @ k[0, :, 0].T).relu()
    right = gate_q[0, :, 0] @ gate_k[0, :, 0].T
    expected = (left * torch.nn.functional.softplus(right) * mask * 2.0) @ v[0, :, 0]
    got = attend(v)[0, :, 0]
    torch.testing.assert_close(got, expected, rtol=1e-2 if ON_GPU else 1e-4, atol=1e-2 if ON_GPU else 1e-4)
    leaves = (q, k, v, gate_q, gate_k)
    for a, b in zip(torch.autograd.grad(got.sum(), leaves), torch.autograd.grad(expected.sum(), leaves), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2 if ON_GPU else 1e-4, atol=2e-2 if ON_GPU else 1e-4)


def test_an_empty_batch_has_empty_results() -> None:
    q = torch.zeros(0, 5, 2, 4, device=DEVICE, requires_grad=True)
    out = attend_tiles(Factors(q, q, q))
    assert out.shape == (0, 5, 2, 4)
    assert torch.autograd.grad(out.sum(), q)[0].shape == q.shape


@pytest.mark.parametrize("activation", ["relu", "gated"])
def test_queries_that_see_no_key_have_a_gradient_of_zeros(activation) -> None:
    q, k, v = (torch.randn(1, 5, 1, 16, device=DEVICE, requires_grad=True) for _ in range(3))
    gate: dict[str, Any] = {"gate_q": q, "gate_k": k} if activation == "gated" else {}
    options: dict[str, Any] = {"activation": activation, "window": 4, "query_start": 20, "backend": "triton"}
    out = ops.operator_attention(q, k, v, **gate, **options)
    for x in (out, *torch.autograd.grad(out.sum(), (q, k, v))):
        assert torch.equal(x, torch.zeros_like(x))


def test_softmax_of_a_long_sequence_is_pytorchs_attention() -> None:
    problem = make_problem(keys=short_sequences.MAX_TOKENS + 1, activation="softmax").cast(torch.float32).to(DEVICE)
    assert torch.equal(problem.run("triton"), problem.run("folded"))


def test_only_unmasked_short_sequences_with_dense_operators_fit() -> None:
    def fits(**options: Any) -> bool:
        return short_sequences.fits(inputs_of(make_problem(**options)))

    assert fits(keys=64, width=64, activation="gated")
    assert fits(keys=12, value_width=256)
    assert not fits(keys=65)
    assert not fits(keys=64, queries=65)
    assert not fits(keys=17, value_width=129)
    assert not fits(keys=33, activation="gated", gate_width=65)
    assert not fits(keys=5, causal=True)
    assert not fits(keys=5, padding="random")
    assert not fits(keys=5, s2="toeplitz")
    assert not fits(keys=5, activation="gated", gate_s1="dplr")


# gated heads of width 256 in float32 need more than the smaller one
@pytest.mark.parametrize(
    ("width", "dtype"), [*((width, torch.bfloat16) for width in (16, 32, 64, 128, 256)), (128, torch.float32)]
)
@pytest.mark.parametrize("shared", [101376, 166912])
def test_tiles_are_small_on_gpus_with_less_memory(width, dtype, shared) -> None:
    row = width * dtype.itemsize
    for kernel, gated in itertools.product(get_args(tile_kernels.Kernel), (False, True)):
        blocks = choose_blocks(kernel, 4096, 4096, width, dtype, gated=gated, shared=shared)
        assert tile_kernels._memory(kernel, blocks, row, gated) <= 0.8 * shared
    assert choose_blocks("forward", 4096, 4096, 256, torch.bfloat16, gated=True) == Blocks(128, 32, 8, 2)


@pytest.mark.parametrize("activation", FUSED)
def test_dropout_of_a_short_sequence_has_one_mask(activation) -> None:
    problem = make_problem(keys=17, activation=activation).cast(torch.float32).to(DEVICE)
    values = torch.eye(17, device=DEVICE)[None, :, None].expand(2, -1, 2, -1)

    def attend(values: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        given = problem.arguments() | {"v": values, "s2": None, "dropout_p": 0.5}
        return ops.operator_attention(**given, backend="triton")

    mask = (attend(values) != 0).float().transpose(1, 2)  # (B, H, M, N), where kept and active
    plain = ops.operator_attention(**(problem.arguments() | {"v": values, "s2": None}), backend="reference")
    kernel = plain.transpose(1, 2) * mask * 2.0  # (B, H, M, N)
    leaves = [x for name, x in problem.leaves.items() if not name.startswith("s2")]
    expected = torch.einsum("bhmn,bnhe->bmhe", kernel, problem.leaves["v"])
    got = attend(problem.leaves["v"])
    loose = 2e-2 if ON_GPU else 1e-4
    torch.testing.assert_close(got, expected, rtol=loose, atol=loose)
    wanted = torch.autograd.grad(expected.square().sum(), leaves)
    for a, b in zip(torch.autograd.grad(got.square().sum(), leaves), wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=10 * loose, atol=10 * loose)


def test_kernels_raise_for_what_they_cannot_run(monkeypatch) -> None:
    with pytest.raises(ValueError, match=message("'triton' cannot run here", "float64", "'folded'")):
        make_problem(activation="relu").to(DEVICE).run("triton")
    wide = make_problem(activation="relu", width=257).cast(torch.float32).to(DEVICE)
    with pytest.raises(ValueError, match=message("up to 256, not 257")):
        wide.run("triton")
    pairs = make_problem(keys=5, activation="relu").cast(torch.float32).to(DEVICE)
    with pytest.raises(ValueError, match=message("no pair_mask", "'folded'")):
        ops.operator_attention(**pairs.arguments(), pair_mask=torch.ones(1, 5, 5, device=DEVICE), backend="triton")
    monkeypatch.setattr(api, "_WARNED", set())
    warned = pytest.warns(RuntimeWarning, match="up to 256, not 257") if ON_GPU else nullcontext()
    with warned:
        assert ops.choose_backend(device=DEVICE, activation="relu", width=257) == "folded"


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("kernel", ["forward", "keys", "queries"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [1, 16, 64, 65, 128, 129, 256])
def test_blocks_are_powers_of_two_that_tensor_cores_take(width, dtype, kernel, gated) -> None:
    for m in (1, 16, 17, 100, 5000):
        blocks = choose_blocks(kernel, m, m, width, dtype, gated=gated)
        for side in (blocks.queries, blocks.keys):
            assert side >= 16
            assert side & (side - 1) == 0


@pytest.mark.parametrize(
    ("activation", "blocks"),
    [
        ("relu", Blocks(16, 32, 1, 1)),
        ("relu", Blocks(32, 16, 1, 2)),
        pytest.param("gated", Blocks(16, 32, 1, 1), marks=pytest.mark.slow),
        pytest.param("gated", Blocks(32, 16, 1, 2), marks=pytest.mark.slow),
    ],
)
def test_tiles_need_not_be_square(monkeypatch, activation, blocks) -> None:
    monkeypatch.setattr(tile_kernels, "choose_blocks", lambda *sizes, **options: blocks)
    assert_kernels_are_as_accurate_as_the_reference(keys=70, queries=65, batch=1, activation=activation, causal=True)


@pytest.mark.parametrize(
    ("activation", "options"),
    [
        ("relu", {"window": 9}),
        ("gated", {"window": 20, "causal": True, "query_start": 3}),
        pytest.param("gated", {"window": 9}, marks=pytest.mark.slow),
        pytest.param("relu", {"window": 20, "causal": True, "query_start": 3}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_windows_skip_tiles(monkeypatch, activation, options) -> None:
    monkeypatch.setattr(tile_kernels, "choose_blocks", lambda *sizes, **settings: Blocks(16, 32, 1, 1))
    assert_kernels_are_as_accurate_as_the_reference(keys=70, queries=65, batch=1, activation=activation, **options)


def test_tuned_tiles_are_only_for_problems_that_fill_them() -> None:
    large = choose_blocks("keys", 4096, 4096, 64, torch.bfloat16, gated=False)
    assert large == Blocks(32, 128, 4, 3)
    assert choose_blocks("keys", 4096, 100, 64, torch.bfloat16, gated=False) == Blocks(64, 64, 4, 2)
    assert choose_blocks("forward", 866, 866, 64, torch.float32, gated=True) == Blocks(128, 64, 8, 3)
    assert choose_blocks("forward", 866, 866, 64, torch.float32, gated=True, exact=True) == Blocks(32, 32, 4, 2)


@pytest.mark.parametrize("activation", FUSED)
def test_shared_heads_and_a_last_query_match_the_reference(activation) -> None:
    # the last query sees every key, but causal operators are triangles: not the kernel of short sequences
    heads_of_keys = ("k", "v", "gate_k", "s1.weight", "s2.weight", "gate_s1.weight")
    last: dict[str, Any] = {"causal": True, "queries": 1, "query_start": 16}
    for groups, options in ((2, {}), (1, last)):
        problem = make_problem(keys=17, heads=2, activation=activation, **options)
        leaves = {
            name: x.detach()[(slice(None),) * (2 if x.dim() == 4 else 0) + (slice(2 // groups),)]
            if name in heads_of_keys
            else x.detach()
            for name, x in problem.leaves.items()
        }
        problem = Problem(leaves=leaves, kinds=problem.kinds, options=problem.options).cast(torch.float32).to(DEVICE)
        torch.testing.assert_close(problem.run("triton"), problem.run("reference"), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("activation", "operators"), [("relu", ["s1"]), ("gated", ["s1", "s2"])])
def test_decoding_with_operators_per_query_head_and_shared_keys(activation, operators) -> None:
    """The cache then returns mixed keys per query head, and values or keys of the gate with fewer heads."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"q": 4, "k": 2, "v": 2} | ({"gate_q": 4, "gate_k": 2} if activation == "gated" else {})
    tokens: dict[str, Any] = {
        name: torch.randn(2, 5, heads, 4, generator=generator).to(DEVICE) for name, heads in shapes.items()
    }
    options: dict[str, Any] = {name: torch.randn(4, 5, 5, generator=generator).to(DEVICE) for name in operators}
    options |= {"activation": activation, "causal": True}
    cache = ops.AttentionCache()
    steps = []
    for step in range(5):
        new = {name: x[:, step : step + 1] for name, x in tokens.items()}
        steps.append(ops.operator_attention(**new, **options, cache=cache, backend="triton"))
    exact = ops.operator_attention(**tokens, **options, backend="reference")
    torch.testing.assert_close(torch.cat(steps, 1), exact, rtol=1e-2 if ON_GPU else 1e-5, atol=1e-2 if ON_GPU else 1e-4)


# the compiler itself calls deprecated functions of PyTorch
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("short", [True, False])
def test_attention_compiles_without_a_graph_break(monkeypatch, short) -> None:
    plain = triton_helpers.needs_exact_products

    def asked(dtype: torch.dtype) -> bool:
        # not every PyTorch can trace the question
        assert not torch.compiler.is_compiling()
        return plain(dtype)

    for module in (tiles, short_sequences):
        monkeypatch.setattr(module, "needs_exact_products", asked)
    if not short:
        monkeypatch.setattr(short_sequences, "fits", lambda inputs: False)
    problem = make_problem(keys=17, activation="gated").cast(torch.float32).to(DEVICE)
    # the interpreter cannot be compiled, but it can be traced
    compiled = torch.compile(problem.run, fullgraph=True, backend="inductor" if ON_GPU else "eager")
    torch.testing.assert_close(compiled("triton"), problem.run("triton"))
