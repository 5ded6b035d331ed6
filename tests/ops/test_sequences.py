"""Shared key heads, windows, sequences of different lengths, and decoding with a cache."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.support import ACTIVATIONS, GATED, assert_near, make_problem, message
from toa import ops
from toa.ops.attention import blocked, definitions
from toa.ops.operators import causal_rows

BACKENDS = ("reference", "folded")
# batch size
B = 2
# number of tokens, or of keys
N = 9
# number of heads
H = 4
# width of queries and keys
D = 3


def make(
    activation: str, tokens: int = N, kv: int = H, operators: int | None = None, kind: str = "dense"
) -> dict[str, Any]:
    """Arguments of `operator_attention` in float64, with keys of `kv` heads."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    count = kv if operators is None else operators
    made: dict[str, Any] = {"q": normal(B, tokens, H, D), "k": normal(B, tokens, kv, D), "v": normal(B, tokens, kv, D)}
    names = ["s1", "s2"]
    if activation in GATED:
        made |= {"gate_q": normal(B, tokens, H, 2), "gate_k": normal(B, tokens, kv, 2)}
        names.append("gate_s1")
    for name in names:
        parts: dict[str, Any] = {"dense": ((count, tokens, tokens),), "toeplitz": ((count, 2 * tokens - 1),)}
        parts["dplr"] = ((count, tokens), (count, tokens, 2), (count, tokens, 2))
        kinds: dict[str, Any] = {"dense": ops.Dense, "toeplitz": ops.Toeplitz, "dplr": ops.DiagonalLowRank}
        made[name] = kinds[kind](*(normal(*shape) / tokens**0.5 for shape in parts[kind]))
    return made | {"activation": activation, "scale": 0.7}


def run(arguments: dict[str, Any], backend: str = "auto", **options: Any) -> Tensor:
    return ops.operator_attention(**arguments | options, backend=backend)


def repeated(s: ops.Operator | None, groups: int) -> Tensor | None:
    return None if s is None else s.dense(N).repeat_interleave(groups, 0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("operators", [2, 4])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_key_head_is_shared_by_neighbouring_query_heads(activation, operators, backend) -> None:
    shared = make(activation, kv=2, operators=operators)
    full = dict(shared)
    for name in ("k", "v", "gate_k"):
        if name in full:
            full[name] = shared[name].repeat_interleave(2, 2)
    for name in ("s1", "s2", "gate_s1"):
        full[name] = repeated(shared.get(name), H // operators)
    for options in ({}, {"causal": True, "score_norm": "rms"}):
        assert_near(run(shared, backend, **options), run(full, "reference", **options))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_window_hides_what_a_pair_of_masks_hides(activation, causal, backend) -> None:
    arguments = make(activation)
    m = torch.arange(N)[:, None]
    n = torch.arange(N)
    inside = (m - n).abs() < 3
    inside = inside & (n <= m) if causal else inside
    for norm in ("none", "rms"):
        out = run(arguments, backend, window=3, causal=causal, score_norm=norm)
        for query in range(N):
            # one query at a time, with the hidden keys as padding after mixing by hand
            key, value = (arguments[name] for name in ("k", "v"))
            operators = {name: arguments[name].dense(N) for name in ("s1", "s2", "gate_s1") if name in arguments}
            if causal:
                operators = {name: s.tril() if name == "s2" else s.triu() for name, s in operators.items()}
            key = torch.einsum("hnm,bnhd->bmhd", operators["s1"], key)[:, inside[query]]
            value = torch.einsum("hmn,bnhd->bmhd", operators["s2"], value)[:, inside[query]]
            single = {"q": arguments["q"][:, query : query + 1], "k": key, "v": value}
            if activation in GATED:
                gate = torch.einsum("hnm,bnhd->bmhd", operators["gate_s1"], arguments["gate_k"])
                single |= {"gate_q": arguments["gate_q"][:, query : query + 1], "gate_k": gate[:, inside[query]]}
            exact = ops.operator_attention(
                **single, activation=activation, scale=0.7, score_norm=norm, backend="reference"
            )
            assert_near(out[:, query : query + 1], exact)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_with_a_window_and_shared_heads_agree_between_backends(activation) -> None:
    results = []
    for backend in BACKENDS:
        arguments = make(activation, kv=2)
        leaves = [x.requires_grad_() for x in arguments.values() if isinstance(x, Tensor)]
        out = run(arguments, backend, window=4, causal=True, score_norm="l2")
        results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    for one, other in zip(*results, strict=True):
        assert_near(one, other, 1e-11)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_sequences_of_different_lengths_use_the_leading_block(activation, nested) -> None:
    arguments = make(activation)
    lengths = (4, 9, 1)
    generator = torch.Generator().manual_seed(1)
    names = [name for name in ("q", "k", "v", "gate_q", "gate_k") if name in arguments]
    parts = {
        name: [torch.randn(n, *arguments[name].shape[2:], generator=generator, dtype=torch.float64) for n in lengths]
        for name in names
    }
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    options: dict[str, Any] = {"score_norm": "rms", "causal": True}
    if nested:
        tokens = {
            name: torch.nested.nested_tensor_from_jagged(torch.cat(found), offsets) for name, found in parts.items()
        }
        found = run(arguments | tokens, **options).unbind()
    else:
        packed = {name: torch.cat(found) for name, found in parts.items()}
        found = run(arguments | packed, **options, cu_seqlens=offsets.int()).split(lengths)
    for index in range(len(lengths)):
        alone = {name: part[index][None] for name, part in parts.items()}
        assert_near(found[index], run(arguments | alone, "reference", **options)[0])


def test_keys_may_have_other_lengths_than_queries() -> None:
    arguments = make("relu")
    q, k, v = (torch.randn(n, H, D, dtype=torch.float64, requires_grad=True) for n in (5, 8, 8))
    boundaries: dict[str, Any] = {"cu_seqlens": torch.tensor([0, 2, 5]), "cu_seqlens_k": torch.tensor([0, 7, 8])}
    out = run(arguments | {"q": q, "k": k, "v": v}, **boundaries)
    alone = arguments | {"q": q[None, 2:], "k": k[None, 7:], "v": v[None, 7:]}
    assert_near(out[2:], run(alone, "reference")[0])
    (grad,) = torch.autograd.grad(out[2:].sum(), [k])
    assert (grad[7:] != 0).any()
    assert (grad[:7] == 0).all()


@pytest.mark.parametrize("kind", ["dense", "toeplitz", "dplr"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_decoding_step_by_step_equals_the_full_pass(activation, kind, dtype, tolerance) -> None:
    arguments = make(activation, kv=2, kind=kind)
    for name, x in arguments.items():
        if isinstance(x, Tensor):
            arguments[name] = x.to(dtype)
    for options in ({}, {"window": 4}, {"score_norm": "rms"}):
        full = run(arguments, causal=True, **options)
        for sizes in ((1,) * N, (3, 1, 5)):
            cache = ops.AttentionCache()
            steps = []
            for start, stop in zip(
                (0, *torch.tensor(sizes).cumsum(0)[:-1]), torch.tensor(sizes).cumsum(0), strict=True
            ):
                part = {n: x[:, start:stop] for n, x in arguments.items() if isinstance(x, Tensor)}
                steps.append(run(arguments | part, causal=True, cache=cache, **options))
            assert len(cache) == N
            assert_near(torch.cat(steps, 1), full, tolerance)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("kind", ["dense", "toeplitz", "dplr"])
def test_rows_of_an_operator_are_rows_of_its_triangle(kind, transpose) -> None:
    s = make("relu", kind=kind)["s1"]
    matrix = s.dense(7).mT if transpose else s.dense(7)
    assert_near(causal_rows(s, 3, 7, transpose=transpose), matrix.tril()[:, 3:])


def test_bad_lengths_raise() -> None:
    packed: dict[str, Any] = {name: torch.zeros(5, 2, 3) for name in ("q", "k", "v")}
    cases: list[tuple[Any, tuple[str, ...]]] = [
        (torch.tensor([0, 2, 4]), ("cu_seqlens must start at 0 and end at the number of tokens, 5, got 0 and 4",)),
        (torch.tensor([1, 5]), ("must start at 0", "got 1 and 5")),
        (torch.tensor([0, 3, 3, 5]), ("cu_seqlens must increase, got a sequence of length 0", "drop empty")),
        (torch.tensor([0.0, 5.0]), ("cu_seqlens must be integers (B + 1,)", "float32", "cumsum")),
    ]
    for boundaries, parts in cases:
        with pytest.raises(ValueError, match=message(*parts)):
            ops.operator_attention(**packed, cu_seqlens=boundaries)
    good = torch.tensor([0, 5])
    with pytest.raises(ValueError, match=message("as many sequences as cu_seqlens, 1, got 2")):
        ops.operator_attention(**packed, cu_seqlens=good, cu_seqlens_k=torch.tensor([0, 2, 5]))
    with pytest.raises(ValueError, match=message("key_padding_mask must be None with nested tensors or cu_seqlens")):
        ops.operator_attention(**packed, cu_seqlens=good, key_padding_mask=torch.zeros(1, 5, dtype=torch.bool))
    nested = torch.nested.nested_tensor_from_jagged(packed["q"], good)
    with pytest.raises(ValueError, match=message("k must be a nested tensor of layout torch.jagged", "not nested")):
        ops.operator_attention(nested, packed["k"], packed["v"])
    with pytest.raises(ValueError, match=message("q must be a nested tensor of layout torch.jagged", "not nested")):
        ops.operator_attention(packed["q"][None], nested, nested)


@pytest.mark.parametrize("name", ["v", "gate_k", "gate_q"])
def test_nested_tensors_that_go_together_have_the_same_lengths(name) -> None:
    """The totals are equal, so tokens would silently move to another sequence."""
    packed = torch.zeros(6, 2, 3)
    tokens: dict[str, Any] = dict.fromkeys(
        ("q", "k", "v", "gate_q", "gate_k"), torch.nested.nested_tensor_from_jagged(packed, torch.tensor([0, 2, 6]))
    )
    tokens[name] = torch.nested.nested_tensor_from_jagged(packed, torch.tensor([0, 4, 6]))
    with pytest.raises(ValueError, match=message(f"{name} must have the lengths of", "[2, 4], got [4, 2]")):
        ops.operator_attention(**tokens, activation="gated")


def test_a_call_that_fails_leaves_its_cache_unchanged() -> None:
    arguments = make("relu")
    cache = ops.AttentionCache()

    def step(number: int, backend: str = "folded") -> Tensor:
        part = {name: x[:, number : number + 1] for name, x in arguments.items() if isinstance(x, Tensor)}
        return run(arguments | part, backend, causal=True, cache=cache)

    first = step(0)
    with pytest.raises(ValueError, match=message("backend 'triton' cannot run here")):
        step(1, "triton")
    assert len(cache) == 1
    assert_near(torch.cat([first, step(1)], 1), run(arguments, "reference", causal=True)[:, :2])


def test_bad_windows_and_caches_raise() -> None:
    x = torch.zeros(1, 3, 2, 4)
    cases: list[tuple[dict[str, Any], tuple[str, ...]]] = [
        ({"window": 0}, ("window must be at least 1", "got 0", "None is no window")),
        ({"query_start": -1, "causal": True}, ("query_start must be at least 0, got -1",)),
        ({"query_start": 2}, ("query_start requires causal=True or a window, got 2",)),
        ({"cache": ops.AttentionCache()}, ("cache requires causal=True, got False",)),
        ({"cache": ops.AttentionCache(), "causal": True, "query_start": 1}, ("cache requires the same new tokens",)),
    ]
    for options, parts in cases:
        with pytest.raises(ValueError, match=message(*parts)):
            ops.operator_attention(x, x, x, **options)
    cache = ops.AttentionCache()
    ops.operator_attention(x, x, x, causal=True, cache=cache)
    other = torch.zeros(1, 3, 2, 5)
    with pytest.raises(ValueError, match=message("k with this cache", "(1, any, 2, 4)", "(1, 3, 2, 5)")):
        ops.operator_attention(other, other, other, causal=True, cache=cache)
    with pytest.raises(ValueError, match=message("cache must be that of the same attention", "k, v", "none")):
        ops.operator_attention(x, x, x, torch.zeros(2, 9, 9), causal=True, cache=cache)
    with pytest.raises(ValueError, match=message("dtype and device of its cache, torch.float32", "torch.float64")):
        ops.operator_attention(*(x.double(),) * 3, causal=True, cache=cache)
    short = ops.AttentionCache()
    for _ in range(2):
        ops.operator_attention(x[:, :2], x[:, :2], x[:, :2], torch.zeros(2, 4, 4), causal=True, cache=short)
    with pytest.raises(ValueError, match=message("s1 is an operator on at most 4 tokens, got a sequence of 5")):
        ops.operator_attention(x[:, :1], x[:, :1], x[:, :1], torch.zeros(2, 4, 4), causal=True, cache=short)
    assert len(short) == 4


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_windows_in_chunks_agree_with_the_reference(monkeypatch, activation) -> None:
    monkeypatch.setattr(definitions, "_CHUNK", 4)
    monkeypatch.setitem(blocked._BLOCK_ELEMENTS, "cpu", 20)
    same: dict[str, Any] = {"keys": 15, "window": 3, "s1": "toeplitz", "s2": "banded"}
    masks: list[dict[str, Any]] = [{"causal": True}, {"score_norm": "rms", "padding": "leading"}]
    for options in ({}, *masks, {"query_start": 3, "queries": 7}):
        problem = make_problem(activation=activation, **same, **options)
        expected = problem.results("reference")
        for name, got in problem.results("folded").items():
            assert_near(got, expected[name], name=name)


class LargestTensor(TorchDispatchMode):
    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        found = [x.numel() for x in tree_leaves(out) if isinstance(x, torch.Tensor) and not x._is_view()]
        self.numel = max(self.numel, *found, 0)
        return out


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_window_with_toeplitz_and_banded_operators_takes_linear_memory(activation) -> None:
    sizes = []
    for n in (2048, 4096):
        kinds: dict[str, Any] = {"s1": "toeplitz", "s2": "banded", "gate_s1": "banded"}
        problem = make_problem(activation=activation, keys=n, window=8, batch=1, heads=1, **kinds)
        with LargestTensor() as largest:
            torch.autograd.grad(problem.run("folded").sum(), list(problem.leaves.values()), allow_unused=True)
        sizes.append(largest.numel)
    assert sizes[1] <= 2.1 * sizes[0], sizes
    assert sizes[1] < 4096**2 / 16, sizes
