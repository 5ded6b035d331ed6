from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.support import assert_near, message, scatter_parameters
from toa.nn import ProbSparseAttention, SoftmaxAttention
from toa.nn.informer_autoformer import draw_keys, fixed_keys, prob_sparse_attention, sparse_count, top_queries


def problem(queries: int, keys: int, width: int = 4, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((2, queries, 2, width), (2, keys, 2, width), (2, keys, 2, 3))
    q, k, v = (torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes)
    return q, k, v


def measures(q: Tensor, k: Tensor, sample: Tensor) -> Tensor:
    """The measure of each query (B, H, M), computed with loops."""
    batch, queries, heads, _ = q.shape
    out = torch.empty(batch, heads, queries, dtype=q.dtype)
    for b in range(batch):
        for h in range(heads):
            for m in range(queries):
                scores = torch.stack([q[b, m, h] @ k[b, s, h] for s in sample[m].tolist()])
                out[b, h, m] = scores.max() - scores.sum() / k.shape[1]
    return out


def by_formula(q: Tensor, k: Tensor, v: Tensor, top: Tensor, *, causal: bool) -> Tensor:
    out = torch.empty(*q.shape[:3], v.shape[3], dtype=q.dtype)
    for b in range(q.shape[0]):
        for h in range(q.shape[2]):
            for m in range(q.shape[1]):
                seen = m + 1 if causal else k.shape[1]
                if m in top[b, h]:
                    weights = (k[b, :seen, h] @ q[b, m, h] / q.shape[3] ** 0.5).softmax(0)
                    out[b, m, h] = weights @ v[b, :seen, h]
                else:
                    out[b, m, h] = v[b, :seen, h].sum(0) if causal else v[b, :, h].mean(0)
    return out


# the first case computes all scores, the second only the sampled ones
@pytest.mark.parametrize(("keys", "width"), [(9, 4), (20, 2)])
def test_top_queries_have_the_largest_measures(keys, width):
    q, k, _ = problem(7, keys, width)
    sample = draw_keys(7, keys, 5)
    top = top_queries(q, k, sample, 3)
    assert top.shape == (2, 2, 3)
    expected = measures(q, k, sample).argsort(-1, descending=True)[..., :3]
    assert torch.equal(top.sort(-1).values, expected.sort(-1).values)


@pytest.mark.parametrize(("queries", "keys", "causal"), [(7, 7, True), (7, 7, False), (5, 9, False), (9, 5, False)])
def test_attention_matches_its_formula(queries, keys, causal):
    q, k, v = problem(queries, keys)
    top = top_queries(q, k, draw_keys(queries, keys, 3), 3)
    got = prob_sparse_attention(q, k, v, top, causal=causal)
    assert_near(got, by_formula(q, k, v, top, causal=causal))


@given(length=st.integers(1, 12), causal=st.booleans(), seed=st.integers(0, 99))
def test_attention_with_every_query_at_the_top_is_softmax_attention(length, causal, seed):
    q, k, v = problem(length, length, seed=seed)
    top = top_queries(q, k, torch.zeros(length, 1, dtype=torch.long), length)
    got = prob_sparse_attention(q, k, v, top, causal=causal)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    assert_near(got, expected.transpose(1, 2))


@pytest.mark.parametrize("causal", [True, False])
def test_layer_is_softmax_attention_only_with_a_large_factor(causal):
    plain = scatter_parameters(SoftmaxAttention(8, 2, 10, causal=causal)).double()
    x = torch.randn(3, 10, 8, dtype=torch.float64)
    expected, operator = plain(x, x, x, need_weights=True)
    for factor, same in ((4, True), (3, False)):
        layer = ProbSparseAttention(8, 2, 10, factor=factor, causal=causal).double()
        layer.load_state_dict(plain.state_dict())
        for training in (True, False):
            got, mixing = layer.train(training)(x, x, x, need_weights=True)
            assert mixing is not None
            assert operator is not None
            assert torch.allclose(got, expected) is same
            assert torch.allclose(mixing, operator) is same


@given(length=st.integers(2, 12), seed=st.integers(0, 99))
def test_causal_output_contains_no_later_value(length, seed):
    torch.manual_seed(seed)
    layer = scatter_parameters(ProbSparseAttention(4, 2, length, factor=1, causal=True))
    x = torch.randn(2, length, 4)
    _, mixing = layer(x, x, x, need_weights=True)
    assert torch.equal(mixing.triu(1), torch.zeros_like(mixing))
    value = x.clone()
    value[:, length // 2 :] += 1.0
    layer.eval()
    assert torch.equal(layer(x, x, value)[0][:, : length // 2], layer(x, x, x.clone())[0][:, : length // 2])


def test_later_keys_can_change_the_top_queries():
    q, k, _ = problem(6, 6)
    sample = torch.full((6, 1), 5)
    before = top_queries(q, k, sample, 1)
    k[:, 5] *= -1.0
    assert not torch.equal(top_queries(q, k, sample, 1), before)


def test_mixed_heads_are_reshaped_without_transpose():
    joined = ProbSparseAttention(4, 2, 6, factor=9).eval()
    mixed = ProbSparseAttention(4, 2, 6, factor=9, mix_heads=True).eval()
    mixed.load_state_dict(joined.state_dict())
    for layer in (joined, mixed):
        layer.out_proj.weight.data = torch.eye(4)
        layer.out_proj.bias.data.zero_()
    x = torch.randn(2, 6, 4)
    heads = joined(x, x, x)[0].unflatten(-1, (2, 2))
    got = mixed(x, x, x)[0].flatten(1)
    assert torch.equal(got, torch.cat([heads[:, :, h].flatten(1) for h in range(2)], 1))


def test_evaluation_is_deterministic_and_training_is_not():
    layer = scatter_parameters(ProbSparseAttention(4, 2, 64, factor=1))
    x = torch.randn(2, 64, 4)
    assert not torch.equal(layer(x, x, x)[0], layer(x, x, x)[0])
    layer.eval()
    state = torch.get_rng_state()
    first = layer(x, x, x)[0]
    assert torch.equal(layer(x, x, x)[0], first)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("num_keys", [1, 2, 49, 96, 720])
def test_fixed_keys_lie_in_range_and_look_random(num_keys):
    sample = fixed_keys(1000, num_keys, 16)
    assert torch.equal(fixed_keys(1000, num_keys, 16), sample)
    assert 0 <= sample.min() <= sample.max() < num_keys
    # for independent draws, the count of each key has this mean and nearly this variance
    mean = 16000 / num_keys
    counts = sample.flatten().bincount(minlength=num_keys).double()
    assert (counts - mean).square().mean() < 2.0 * mean
    if num_keys > 2:
        assert len({tuple(row) for row in sample.tolist()}) == 1000
        centred = sample.double() - sample.double().mean()
        neighbours = (centred[:, 1:] * centred[:, :-1]).mean(), (centred[1:] * centred[:-1]).mean()
        assert max(abs(c.item()) for c in neighbours) < 0.03 * centred.square().mean()


def test_drawn_keys_use_the_global_generator():
    torch.manual_seed(3)
    expected = torch.randint(9, (4, 5))
    torch.manual_seed(3)
    assert torch.equal(draw_keys(4, 9, 5), expected)


def test_counts_grow_with_the_logarithm_and_are_clipped():
    assert [sparse_count(n, 1) for n in (1, 2, 3, 96, 720)] == [1, 1, 2, 5, 7]
    assert [sparse_count(n, 3) for n in (1, 2, 3, 96, 720)] == [1, 2, 3, 15, 21]


def test_gradients_pass_gradcheck_for_fixed_top_queries():
    q, k, v = (x.requires_grad_() for x in problem(5, 5))
    top = top_queries(q, k, fixed_keys(5, 5, 2), 2)
    assert not top.requires_grad
    for causal in (True, False):
        function = partial(prob_sparse_attention, top=top, causal=causal)
        assert torch.autograd.gradcheck(function, (q, k, v))


def test_layer_runs_under_autocast_without_a_backend():
    layer = ProbSparseAttention(8, 2, 12, factor=1, causal=True)
    x = torch.randn(2, 12, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x, x, x)[0].isfinite().all()
    assert layer.chosen_backend() == "none"


def test_bad_input_raises():
    with pytest.raises(ValueError, match=message("factor must be at least 1, got 0.")):
        ProbSparseAttention(8, 2, 10, factor=0)
    layer = ProbSparseAttention(8, 2, 10, causal=True)
    x = torch.zeros(2, 10, 8)
    with pytest.raises(ValueError, match=message("causal", "as many queries as keys, got 10 and 9", "causal=False.")):
        layer(x, x[:, :9], x[:, :9])
    with pytest.raises(
        ValueError, match=message("key_padding_mask must be None for ProbSparseAttention, got shape (2, 10)")
    ):
        layer(x, x, x, torch.zeros(2, 10, dtype=torch.bool))
    with pytest.raises(ValueError, match=message("pair_mask must be None", "got shape (2, 10, 10)")):
        layer.attend(x, x, x, pair_mask=torch.ones(2, 10, 10))
    with pytest.raises(ValueError, match=message("at most 10 tokens, got a sequence of 11")):
        layer(*(torch.zeros(2, 11, 8),) * 3)
