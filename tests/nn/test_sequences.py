"""Layers with shared key heads, windows, nested tensors and caches; and habits of `nn.MultiheadAttention`."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import assert_near, message, scatter_parameters
from toa import ops
from toa.nn import ATTENTIONS, Attention, AttentionSpec, SoftmaxAttention, TemporalOperatorAttention, build_attention

# embedding width
E = 8
# number of heads
H = 4
# number of tokens, or of keys
N = 7
# layers whose attention is one call of `toa.ops.operator_attention`
NAMES = ("softmax", "relu", *(f"toa-{name}" for name in ops.ACTIVATIONS))


def build(name: str, **options: Any) -> Attention:
    kinds: dict[str, Any] = {"softmax": SoftmaxAttention, "relu": ATTENTIONS["relu"].layer}
    if name in kinds:
        layer = kinds[name](E, H, N, **options)
    else:
        layer = TemporalOperatorAttention(E, H, N, name.removeprefix("toa-"), **options)
    scatter_parameters(layer, std=0.5).double().eval()
    assert isinstance(layer, Attention)
    return layer


def tokens(batch: int = 2, length: int = N) -> Tensor:
    return torch.randn(batch, length, E, dtype=torch.float64)


@torch.no_grad()
def shared_weights(small: Attention, full: Attention) -> None:
    """Give a layer with a key head per query head the weights of one that shares them."""
    groups = H // small.num_kv_heads
    state = small.state_dict()
    for name, value in full.state_dict().items():
        found = state[name]
        if found.shape != value.shape:
            axis, count = (0, small.num_kv_heads) if "proj" in name else (0, None)
            if "k_proj" in name:
                count = small.num_kv_heads * small._qk_groups
            parts = found.unflatten(axis, (count, -1)) if count is not None else found
            found = parts.repeat_interleave(groups, 0).reshape(value.shape)
        value.copy_(found)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_shared_heads_equal_a_layer_with_repeated_weights(name, training) -> None:
    options: dict[str, Any] = {"sor": False} if name.startswith("toa") else {}
    small = build(name, num_kv_heads=2, **options)
    full = build(name, **options)
    shared_weights(small, full)
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in full.parameters())
    x = tokens()
    for layer in (small, full):
        layer.train(training)
    got = small(x, x, x, need_weights=True)
    expected = full(x, x, x, need_weights=True)
    for one, other in zip(got, expected, strict=True):
        assert one is not None
        assert other is not None
        assert_near(one, other)


@pytest.mark.parametrize("name", NAMES)
def test_a_window_of_all_tokens_changes_nothing_and_a_short_one_is_local(name) -> None:
    x = tokens()
    plain = build(name)
    wide, narrow = (build(name, window=window) for window in (N, 2))
    for layer in (wide, narrow):
        layer.load_state_dict(plain.state_dict())
    assert_near(wide(x, x, x)[0], plain(x, x, x)[0])
    assert not torch.allclose(narrow(x, x, x)[0], plain(x, x, x)[0])
    if name == "softmax":
        _, weights = narrow(x, x, x, need_weights=True)
        outside = (torch.arange(N)[:, None] - torch.arange(N)).abs() >= 2
        assert weights is not None
        assert (weights[..., outside] == 0).all()
        assert (weights[..., ~outside] > 0).all()


@pytest.mark.parametrize("structure", ["dense", "toeplitz"])
@pytest.mark.parametrize("variant", ops.ACTIVATIONS)
def test_decoding_with_a_cache_equals_the_full_pass(variant, structure) -> None:
    layer = TemporalOperatorAttention(E, H, N, variant, structure=structure, causal=True, num_kv_heads=2)
    scatter_parameters(layer, std=0.5).eval()
    x = tokens().float()
    full, _ = layer(x, x, x)
    cache = ops.AttentionCache()
    steps = [layer(part, part, part, cache=cache)[0] for part in x.split((3, 1, 1, 1, 1), 1)]
    assert_near(torch.cat(steps, 1), full, 1e-6)
    one = x[:, :1]
    with pytest.raises(ValueError, match=message("at most 7 tokens, got a sequence of 8", "resize(8)")):
        layer(one, one, one, cache=cache)


def test_a_cache_of_another_layer_and_wrong_modes_raise() -> None:
    first, second = (build("toa-relu", causal=True) for _ in range(2))
    cache = ops.AttentionCache()
    x = tokens(length=2)
    first(x, x, x, cache=cache)
    with pytest.raises(ValueError, match=message("cache must be used by one layer only", "with 2 tokens", "per layer")):
        second(x, x, x, cache=cache)
    with pytest.raises(ValueError, match=message("cache requires evaluation", "need_weights=True")):
        first(x, x, x, need_weights=True, cache=cache)
    with pytest.raises(ValueError, match=message("cache requires evaluation", "training mode", "eval()")):
        first.train()(x, x, x, cache=cache)
    with pytest.raises(ValueError, match=message("cache requires causal=True")):
        build("toa-relu")(x, x, x, cache=ops.AttentionCache())
    with pytest.raises(ValueError, match=message("cache must be None for CogAttention")):
        build_attention("cog", E, H, N).double().eval()(x, x, x, cache=cache)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_nested_tensors_equal_each_sequence_alone(name) -> None:
    layer = scatter_parameters(build_attention(name, E, H, N), std=0.5).double().eval()
    parts = [torch.randn(n, E, dtype=torch.float64, requires_grad=True) for n in (3, N, 1)]
    x = torch.nested.nested_tensor_from_jagged(torch.cat(parts), torch.tensor([0, 3, 3 + N, 4 + N]))
    out, mixing = layer(x, x, x, need_weights=True)
    assert out.is_nested
    assert mixing is not None
    assert mixing.shape == (3, H, N, N)
    assert (mixing[2, :, 1:] == 0).all()
    for got, part in zip(out.unbind(), parts, strict=True):
        assert_near(got, layer(*(part[None],) * 3)[0][0])
    torch.autograd.grad(out.values().sum(), parts)
    with pytest.raises(ValueError, match=message("key_padding_mask must be None with nested tensors")):
        layer(x, x, x, torch.zeros(3, N, dtype=torch.bool))
    with pytest.raises(ValueError, match=message("cache must be None with nested tensors")):
        layer(x, x, x, cache=ops.AttentionCache())
    other = torch.nested.nested_tensor_from_jagged(torch.cat(parts), torch.tensor([0, N, 3 + N, 4 + N]))
    with pytest.raises(ValueError, match=message("value must have the lengths of", "[3, 7, 1], got [7, 3, 1]")):
        layer(x, x, other)
    with pytest.raises(ValueError, match=message("query must be a nested tensor of layout torch.jagged")):
        layer(parts[0][None].expand(3, -1, -1), x, x)


def test_options_of_other_layers_raise() -> None:
    with pytest.raises(ValueError, match=message("num_heads must be a multiple of num_kv_heads=3, got 4")):
        build("toa-relu", num_kv_heads=3)
    with pytest.raises(ValueError, match=message("window must be at least 1, got 0")):
        build("toa-relu", window=0)
    for name in ("window", "num_kv_heads"):
        options: dict[str, Any] = {name: 2}
        with pytest.raises(ValueError, match=message(f"{name} must be None for DifferentialAttention, got 2")):
            ATTENTIONS["differential"].layer(E, H, N, **options)


# what PyTorch tests of `nn.MultiheadAttention`, where it makes sense here


@pytest.mark.parametrize("name", ATTENTIONS)
def test_inference_equals_evaluation_with_gradients(name) -> None:
    layer = scatter_parameters(build_attention(name, E, H, N), std=0.5).double().eval()
    x = tokens()
    mask = torch.arange(N).expand(2, N) >= 5
    tracked, _ = layer(x, x, x, mask)
    with torch.inference_mode():
        assert_near(layer(x, x, x, mask)[0], tracked)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_a_mask_that_hides_nothing_changes_nothing(name) -> None:
    layer = scatter_parameters(build_attention(name, E, H, N), std=0.5).double().eval()
    x = tokens()
    assert_near(layer(x, x, x, torch.zeros(2, N, dtype=torch.bool))[0], layer(x, x, x)[0])


@pytest.mark.parametrize("name", ATTENTIONS)
def test_strided_inputs_and_an_empty_batch_are_taken(name) -> None:
    layer = scatter_parameters(build_attention(name, E, H, N), std=0.5).double().eval()
    x = torch.randn(N, 2, E, dtype=torch.float64).transpose(0, 1)
    assert_near(layer(x, x, x)[0], layer(*(x.contiguous(),) * 3)[0])
    out, mixing = layer(*(tokens(batch=0),) * 3, need_weights=True)
    assert out.shape == (0, N, E)
    assert mixing is not None
    assert mixing.shape == (0, H, N, N)


def test_toeplitz_operators_take_an_empty_batch() -> None:
    layer = build_attention(AttentionSpec(name="toa-relu", structure="toeplitz"), E, H, N)
    x = torch.zeros(0, N, E, requires_grad=True)
    out = layer(x, x, x)[0]
    out.sum().backward()
    assert out.shape == (0, N, E)
    assert x.grad is not None
    assert all(p.grad is not None for name, p in layer.named_parameters() if "s1" in name or "s2" in name)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_samples_of_a_batch_do_not_depend_on_each_other(name) -> None:
    layer = scatter_parameters(build_attention(name, E, H, N), std=0.5).double().eval()
    x = tokens(batch=3)
    assert_near(layer(x, x, x)[0][1:2], layer(*(x[1:2],) * 3)[0])
