"""What an eager call of the kernels costs the host; run on a GPU, or by test_compile.py under Triton's interpreter."""

import sys
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support import BLOCKED, make_problem
from toa import ops
from toa.ops import kernels, mixing, triton_helpers
from toa.ops.attention import api, short_sequences, tile_kernels, tiles

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"

# functions of Python and of PyTorch that a call runs, kernels excluded: forward, and backward with autograd's own;
# lower a number when the code needs fewer
CEILINGS = {"relu": (125, 205), "gated": (135, 225)}


@pytest.fixture(autouse=True)
def _tiles_only(monkeypatch) -> None:
    monkeypatch.setenv("TOA_BACKEND", "triton")
    monkeypatch.setattr(short_sequences, "fits", lambda inputs: False)
    monkeypatch.setattr(api, "_PLANS", {})
    monkeypatch.setattr(triton_helpers, "_launches", {})


def problem_of(activation: str, dtype: torch.dtype = torch.float32) -> tuple[Callable[[], Tensor], list[Tensor]]:
    """A call with dense operators, and the tensors that need gradients."""
    problem = make_problem(keys=16, activation=activation).cast(dtype).to(DEVICE)
    arguments = problem.arguments()
    return lambda: ops.operator_attention(**arguments), list(problem.leaves.values())


class CountOperators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func._schema.name] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("activation", BLOCKED)
def test_each_direction_is_one_operator(activation) -> None:
    run, leaves = problem_of(activation)
    with CountOperators() as forward:
        out = run()
    cotangent = torch.ones_like(out)
    with CountOperators() as backward:
        torch.autograd.grad(out, leaves, cotangent)
    # the rest are views
    assert forward.calls - Counter({"aten::detach": 1}) == {"toa::tiled_attention": 1}
    assert backward.calls - Counter({"aten::detach": 9}) == {"toa::tiled_attention_backward": 1}


def count_calls(run: Callable[[], Any]) -> int:
    count = 0

    def profile(frame: Any, event: str, _: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.skipif(ON_GPU, reason="other functions of PyTorch run there")
@pytest.mark.parametrize("activation", BLOCKED)
def test_an_eager_call_runs_few_functions(monkeypatch, activation) -> None:
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", abs, raising=False)
    launched: list[Any] = []
    for module, name in (
        *((tile_kernels, name) for name in ("forward_kernel", "backward_keys_kernel")),
        *((kernels, name) for name in ("mix_kernel", "outer_kernel")),
    ):
        monkeypatch.setattr(module, name, Kernel(getattr(module, name).arg_names, launched))
    run, leaves = problem_of(activation, torch.float16)
    # the first calls prepare what the later ones use, and are counted once as well: that imports something
    cotangent = torch.ones_like(run())
    count_calls(lambda: torch.autograd.grad(run(), leaves, cotangent))
    launched.clear()
    forward = count_calls(run)
    out = run()
    backward = count_calls(lambda: torch.autograd.grad(out, leaves, cotangent))
    most = CEILINGS[activation]
    assert (forward <= most[0], backward <= most[1]) == (True, True), (forward, backward)
    # two calls forward, which mix and attend; one tile holds all pairs, so backward has one kernel besides mixing
    assert len(launched) == 2 * 2 + 3


class Kernel:
    """A kernel that notes its launches: with the arguments of Triton's own in `first`, compiled in `launched`."""

    function = "function"
    packed_metadata = "sizes"

    def __init__(self, arg_names: list[str], launched: list[Any], first: list[Any] | None = None) -> None:
        self.arg_names = arg_names
        self._launched = launched
        self._first = [] if first is None else first

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        def launch(*given: Any, **options: Any) -> Any:
            self._first.append((grid, given, options))
            return self

        return launch

    def run(self, *given: Any) -> None:
        self._launched.append(given)


def test_plain_tensors_bypass_the_dispatcher(monkeypatch) -> None:
    def fail(*arguments: Any) -> None:
        raise AssertionError("the dispatcher was called")

    for op in (tiles._forward, tiles._backward, mixing.mix_op, mixing.outer_op):
        monkeypatch.setattr(op, "op", fail)
    run, leaves = problem_of("gated")
    torch.autograd.grad(run().sum(), leaves)
    with torch.no_grad():
        run()
    with CountOperators(), pytest.raises(AssertionError, match="dispatcher"):
        run()


def test_backward_drops_mixed_tokens_unless_the_graph_is_kept() -> None:
    run, leaves = problem_of("relu")
    mixed: list[Any] = []
    plain = mixing.outer_op.run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixing.mix_op, "run", tracked(mixing.mix_op.run, mixed))
        out = run()
        held = [x() is not None for x in mixed]

        def outer(*given: Any) -> Tensor:
            held.append(mixed[0]() is not None)
            return plain(*given)

        patch.setattr(mixing.outer_op, "run", outer)
        first = torch.autograd.grad(out.sum(), leaves, retain_graph=True)
        second = torch.autograd.grad(out.sum(), leaves)
    # two mixed tensors after forward; backward has two products, with the graph kept and without
    assert held == [True, True, True, True, False, False]
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def tracked(function: Callable[..., Tensor], found: list[Any]) -> Callable[..., Tensor]:
    """The function, which adds weak references to its results to a list."""

    def call(*given: Any) -> Tensor:
        out = function(*given)
        found.append(weakref.ref(out))
        return out

    return call


def test_second_derivatives_of_kernels_raise() -> None:
    run, leaves = problem_of("relu")
    first = torch.autograd.grad(run().square().sum(), leaves, create_graph=True)
    with pytest.raises(RuntimeError, match="tiled_attention_backward"):
        torch.autograd.grad(torch.stack([x.sum() for x in first]).sum(), leaves)


@pytest.mark.parametrize("kinds", ["++-", "+ +", " - "], ids=lambda kinds: kinds.replace(" ", "0"))
@pytest.mark.parametrize("weights", [torch.float16, torch.float32], ids=str)
def test_one_kernel_mixes_as_products_do(monkeypatch, kinds, weights) -> None:
    """`kinds` are operators with the identity added, without it, and none."""
    b, n, h = 3, 40, 2
    x = [torch.randn(b, n, h, d, device=DEVICE).half() for d in (8, 12, 5)]
    grads = [torch.randn(b, n, h, d, device=DEVICE).half() for d in (8, 12, 5)]
    matrices = [torch.randn(h, n + 1, n + 1, device=DEVICE).to(weights)[:, :n, :n] / n**0.5 for _ in range(3)]
    indices = [index for index, kind in enumerate(kinds) if kind != " "]
    given = [mixing.Mixing(x[index], matrices[index], None, None, index != 1, kinds[index] == "+") for index in indices]
    results = []
    for most in (0, n):
        monkeypatch.setattr(mixing, "MOST_TOKENS", most)
        launches: dict[Any, Any] = {}
        found = mixing.mix_all(launches, given)
        pairs = mixing.mix_all_backward(launches, given, [grads[index] for index in indices])
        assert len(launches) == (4 if most else 1)
        results.append([*found, *(one for pair in pairs for one in pair)])
    for one, other in zip(*results, strict=True):
        assert one.dtype == other.dtype
        assert one.stride() == other.stride()
        torch.testing.assert_close(one, other, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("options", [{}, {"surplus": 2, "residual": False}, {"rate": 0.4}], ids=str)
def test_operators_inside_equal_operators_before(monkeypatch, options) -> None:
    n = 17 + options.get("surplus", 0)
    q, k, v, gate_q, gate_k = (torch.randn(2, 17, 2, 8, device=DEVICE, requires_grad=True) for _ in range(5))
    weights = [torch.randn(2, n, n, device=DEVICE, requires_grad=True) for _ in range(3)]
    drops: list[mixing.EntryDrop | None] = [None] * 3
    if "rate" in options:
        rate = torch.tensor(options["rate"], device=DEVICE)
        drops = [mixing.EntryDrop(torch.tensor([i], dtype=torch.int32, device=DEVICE), rate) for i in range(3)]
    operators = [
        ops.Dense(weight, residual=options.get("residual", True), drop=drop)
        for weight, drop in zip(weights, drops, strict=True)
    ]
    leaves = [q, k, v, gate_q, gate_k, *weights]
    results = []
    for inside in (True, False):
        if not inside:
            monkeypatch.setattr(tiles, "dense_operators", lambda x: None)
            monkeypatch.setattr(api, "_PLANS", {})
        gate: dict[str, Any] = {"gate_q": gate_q, "gate_k": gate_k, "gate_s1": operators[2]}
        out = ops.operator_attention(q, k, v, *operators[:2], activation="gated", scale=0.1, **gate)
        results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_a_launch_like_an_earlier_one_reuses_its_kernel() -> None:
    run, leaves = problem_of("gated")
    plain = triton_helpers.Launch.__init__
    made = list[Any]()

    def make(one: Any, *given: Any) -> None:
        made.append(one)
        plain(one, *given)

    results = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_helpers.Launch, "__init__", make)
        for _ in range(2):
            out = run()
            results.append([out, *torch.autograd.grad(out.sum(), leaves)])
            # forward and backward; one tile needs one kernel
            assert len(made) == 2
    assert [one._compiled is not None for one in made] == [ON_GPU] * 2
    first, second = results
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_a_known_launch_passes_pointers_to_its_compiled_kernel(monkeypatch) -> None:
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: "stream", raising=False)
    launched, first = list[Any](), list[Any]()
    x = torch.zeros(9)
    kernel = Kernel(["x", "y", "size", "setting", "BLOCK"], launched, first)
    known = triton_helpers.Launch(kernel, (2,), (3, 0.5, 7), {"num_warps": 4})
    for tensor in (x, x, x[1:], x[1:], x):
        known(tensor, None)
    # a kernel compiled for aligned tensors takes no others
    same = ((2,), (None, 3, 0.5, 7), {"enable_fp_fusion": True, "num_warps": 4})
    assert [(grid, given[1:], options) for grid, given, options in first] == [same] * 3
    assert [given[0].data_ptr() - x.data_ptr() for _, given, _ in first] == [0, 4, 4]
    hooks = [None] * 3
    assert launched == [(2, 1, 1, "stream", "function", "sizes", *hooks, x.data_ptr(), None, 3, 0.5, 7)] * 2


def test_a_plan_is_used_for_equal_calls_only(monkeypatch) -> None:
    used: list[Any] = []

    def attend(plan: tiles.TilePlan, tokens: Any, operators: Any) -> Tensor:
        used.append(plan)
        return tokens[0]

    monkeypatch.setattr(tiles.TilePlan, "attend", attend)
    q, k, v = (torch.randn(2, 17, 2, 8, device=DEVICE) for _ in range(3))
    s = torch.randn(2, 17, 17, device=DEVICE)

    def plan_of(q: Any = q, v: Any = v, s1: Any = s, **options: Any) -> object:
        used.clear()
        ops.operator_attention(q, k, v, s1, None, **{"activation": "relu", **options})
        return used[0] if used else None

    plain = plan_of()
    assert plain is plan_of() is plan_of(q=q.clone().requires_grad_())
    others = [
        plan_of(q=torch.randn(2, 18, 2, 8, device=DEVICE)),
        plan_of(v=v.transpose(2, 3).contiguous().transpose(2, 3)),
        plan_of(s1=ops.Dense(s)),
        plan_of(s1=torch.randn(2, 18, 18, device=DEVICE)),
        plan_of(scale=0.5),
        plan_of(score_norm="l2"),
        plan_of(dropout_p=0.5),
    ]
    assert None not in others
    assert len({plain, *others}) == 8
    # checked each time
    padding = torch.zeros(2, 17, dtype=torch.bool, device=DEVICE)
    assert plan_of(causal=True) is plan_of(s1=ops.Toeplitz(torch.randn(2, 33, device=DEVICE))) is None
    assert plan_of(scale=torch.tensor(0.5)) is plan_of(key_padding_mask=padding) is None
    with pytest.raises(ValueError, match="s1 must have"):
        plan_of(s1=s[:1])
    with pytest.raises(ValueError, match="unknown score_norm"):
        plan_of(score_norm=["l2"])


def test_a_plan_knows_which_operator_has_the_identity() -> None:
    problem = make_problem(keys=16, activation="relu").cast(torch.float32).to(DEVICE)
    arguments = problem.arguments()
    first, second = (getattr(arguments[name], "weight", arguments[name]) for name in ("s1", "s2"))
    for pair in ((ops.Dense(first), second), (first, ops.Dense(second))):
        given = arguments | dict(zip(("s1", "s2"), pair, strict=True))
        expected = ops.operator_attention(**given | {"backend": "reference"})
        torch.testing.assert_close(ops.operator_attention(**given), expected, rtol=1e-3, atol=1e-3)
