import math

import pytest
import torch
from torch import Tensor

from tests.support import assert_near, message, scatter_parameters
from toa.nn import AutoCorrelation
from toa.nn.informer_autoformer import aggregate_delays, delay_correlation, delay_count, delay_weights, fit_length

LENGTHS = (1, 2, 7, 8, 25)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def as_printed(layer: AutoCorrelation, query: Tensor, source: Tensor, *, shared: bool) -> Tensor:
    """The layer computed with explicit sums over steps and rolled series."""
    batch, length, _ = query.shape
    q = layer.q_proj(query)
    k = layer.k_proj(source)
    v = layer.v_proj(source)
    if source.shape[1] < length:
        k, v = (torch.cat((x, x.new_zeros(batch, length - x.shape[1], x.shape[2])), 1) for x in (k, v))
    k, v = k[:, :length], v[:, :length]
    correlation = torch.stack([(q.roll(-delay, 1) * k).sum(1).mean(-1) for delay in range(length)], 1)
    count = int(layer.factor * math.log(length))
    rows = []
    for row in range(batch):
        ranked = correlation.mean(0) if shared else correlation[row]
        delays = ranked.argsort(descending=True)[:count].tolist()
        weights = correlation[row, delays].softmax(0)
        rows.append(sum(w * v[row].roll(-delay, 0) for w, delay in zip(weights, delays, strict=True)))
    return layer.out_proj(torch.stack(rows))


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("queries", "keys"), [(12, 12), (13, 13), (12, 9), (9, 12)])
def test_layer_matches_its_formula(queries, keys, shared):
    layer = scatter_parameters(AutoCorrelation(6, factor=2)).double().train(shared)
    assert isinstance(layer, AutoCorrelation)
    query, source = normal(3, queries, 6).requires_grad_(), normal(3, keys, 6).requires_grad_()
    got = layer(query, source)
    expected = as_printed(layer, query, source, shared=shared)
    assert_near(got, expected)
    inputs = (query, source, *layer.parameters())
    cotangent = torch.randn_like(got)
    grads = (torch.autograd.grad(out, inputs, cotangent, allow_unused=True) for out in (got, expected))
    for one, other in zip(*grads, strict=True):
        assert_near(one, torch.zeros_like(one) if other is None else other, 1e-11)


@pytest.mark.parametrize("length", LENGTHS)
def test_correlation_is_the_circular_sum_over_all_pairs_of_steps(length):
    q, k = normal(2, length, 3), normal(2, length, 3)
    expected = torch.zeros(2, length, dtype=torch.float64)
    for delay in range(length):
        for t in range(length):
            expected[:, delay] += (q[:, (t + delay) % length] * k[:, t]).mean(-1)
    assert_near(delay_correlation(q, k), expected)


@pytest.mark.parametrize("length", LENGTHS)
def test_aggregate_is_a_weighted_sum_of_rolled_series(length):
    v = normal(2, length, 3)
    weights = normal(2, length)
    expected = sum(weights[:, d, None, None] * v.roll(-d, 1) for d in range(length))
    assert isinstance(expected, Tensor)
    assert_near(aggregate_delays(v, weights), expected)


def test_a_shifted_copy_is_found_at_its_delay():
    series = normal(1, 32, 4)
    correlation = delay_correlation(series.roll(5, 1), series)
    assert correlation.argmax().item() == 5
    one = delay_weights(correlation, 1, shared=False)
    assert_near(aggregate_delays(series.roll(5, 1), one), series)


def test_weights_sum_to_one_and_lie_on_the_largest_correlations():
    correlation = torch.tensor([[0.0, 3.0, 1.0, 2.0], [9.0, 0.0, 0.5, 8.0]])
    own = delay_weights(correlation, 2, shared=False)
    sigmoid = torch.tensor(1.0).sigmoid()
    assert_near(own, torch.stack((sigmoid, 1 - sigmoid))[torch.tensor([[0, 0, 0, 1], [0, 0, 0, 1]])] * (own > 0), 1e-6)
    assert (own > 0).tolist() == [[False, True, False, True], [True, False, False, True]]
    # the means are 4.5, 1.5, 0.75, 5
    shared = delay_weights(correlation, 2, shared=True)
    assert (shared > 0).tolist() == [[True, False, False, True]] * 2
    assert_near(shared.sum(1), torch.ones(2), 1e-6)
    assert_near(shared[0, [0, 3]], torch.tensor([0.0, 2.0]).softmax(0), 1e-6)


def test_training_shares_delays_over_the_batch_and_evaluation_does_not():
    layer = AutoCorrelation(4, factor=1).double()
    x = normal(3, 16, 4)
    alone = torch.cat([layer.train()(row, row) for row in x.split(1)])
    assert not torch.allclose(layer.train()(x, x), alone)
    # in a batch of one, the mean correlation is the sample's
    assert_near(layer.eval()(x, x), alone)


def test_training_with_all_delays_equals_evaluation():
    layer = AutoCorrelation(4, factor=9).double()
    x = normal(3, 16, 4)
    assert_near(layer.train()(x, x), layer.eval()(x, x))


def test_counts_grow_with_the_logarithm_and_are_clipped():
    assert [delay_count(n, 1) for n in (1, 2, 3, 96, 720)] == [1, 1, 1, 4, 6]
    assert [delay_count(n, 3) for n in (1, 2, 3, 96, 720)] == [1, 2, 3, 13, 19]


def test_sources_are_cut_or_zero_padded():
    x = normal(1, 3, 2)
    assert torch.equal(fit_length(x, 2), x[:, :2])
    assert torch.equal(fit_length(x, 5), torch.cat((x, x.new_zeros(1, 2, 2)), 1))


def test_half_precision_is_transformed_in_float32():
    layer = AutoCorrelation(4)
    x = torch.randn(2, 16, 4)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x, x)
    assert out.dtype == torch.bfloat16
    assert out.isfinite().all()


def test_gradients_pass_gradcheck():
    layer = AutoCorrelation(3).double()
    query, source = normal(2, 6, 3).requires_grad_(), normal(2, 5, 3).requires_grad_()
    assert torch.autograd.gradcheck(layer, (query, source))


def test_bad_input_raises():
    with pytest.raises(ValueError, match=message("factor must be at least 1, got 0.")):
        AutoCorrelation(4, factor=0)
    with pytest.raises(ValueError, match=message("embed_dim must be at least 1, got 0.")):
        AutoCorrelation(0)
    with pytest.raises(ValueError, match=message("query must have shape (B, M, E)=(any, any, 4), got (2, 8, 3).")):
        AutoCorrelation(4)(torch.zeros(2, 8, 3), torch.zeros(2, 8, 4))
    with pytest.raises(ValueError, match=message("source must have shape (B, N, E)=(2, any, 4), got (3, 8, 4).")):
        AutoCorrelation(4)(torch.zeros(2, 8, 4), torch.zeros(3, 8, 4))
