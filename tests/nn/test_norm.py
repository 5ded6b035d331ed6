import copy

import pytest
import torch
from torch import nn

from tests.support import assert_near, message
from toa.nn import LayerNorm, ReversibleInstanceNorm, TokenBatchNorm, make_norm


def series(*, steps: int = 9, channels: int = 3) -> torch.Tensor:
    return torch.randn(4, steps, channels, dtype=torch.float64).cumsum(1) * 2.0 + 5.0


def test_normalised_series_has_mean_zero_and_variance_just_below_one():
    x = series()
    normal, statistics = ReversibleInstanceNorm().normalise(x)
    assert_near(normal.mean(1), torch.zeros(4, 3))
    variance = x.var(1, correction=0)
    assert_near(normal.var(1, correction=0), variance / (variance + 1e-5))
    assert statistics.mean.shape == statistics.std.shape == (4, 1, 3)


@pytest.mark.parametrize("affine", [None, 3])
def test_denormalise_inverts_normalise(affine):
    norm = ReversibleInstanceNorm(affine).double()
    if norm.weight is not None and norm.bias is not None:
        nn.init.uniform_(norm.weight, 0.5, 2.0)
        nn.init.normal_(norm.bias)
    x = series()
    normal, statistics = norm.normalise(x)
    assert_near(norm.denormalise(normal, statistics), x, 1e-9)


def test_denormalised_series_can_have_another_length():
    norm = ReversibleInstanceNorm()
    _, statistics = norm.normalise(series())
    assert_near(norm.denormalise(torch.zeros(4, 2, 3), statistics), statistics.mean.expand(-1, 2, -1))


def test_calls_do_not_change_the_layer():
    norm = ReversibleInstanceNorm(3).double()
    before = copy.deepcopy(vars(norm))
    _, first = norm.normalise(series())
    kept = first.mean.clone()
    norm.normalise(series())
    assert torch.equal(first.mean, kept)
    assert {k: v for k, v in vars(norm).items() if k[0] != "_"} == {k: v for k, v in before.items() if k[0] != "_"}
    assert list(norm.state_dict()) == ["weight", "bias"]


@pytest.mark.parametrize("detach_std", [True, False])
def test_gradients_stop_at_the_mean_and_optionally_at_the_std(detach_std):
    x = series().requires_grad_()
    normal, statistics = ReversibleInstanceNorm(detach_std=detach_std).normalise(x)
    assert not statistics.mean.requires_grad
    assert statistics.std.requires_grad is not detach_std
    (grad,) = torch.autograd.grad(normal[0, 2, 1], x)
    expected = torch.zeros_like(x)
    expected[0, 2, 1] = 1.0 / statistics.std[0, 0, 1].detach()
    if not detach_std:
        centred = (x - x.mean(1, keepdim=True)).detach()[0, :, 1]
        expected[0, :, 1] -= centred[2] * centred / 9 / statistics.std[0, 0, 1].detach() ** 3
    assert_near(grad, expected)


def test_a_constant_series_stays_finite():
    normal, statistics = ReversibleInstanceNorm().normalise(torch.full((1, 5, 1), 7.0))
    assert torch.equal(normal, torch.zeros(1, 5, 1))
    assert_near(statistics.std, torch.full((1, 1, 1), 1e-5**0.5), 1e-6)


def test_wrong_sizes_raise():
    norm = ReversibleInstanceNorm(2)
    with pytest.raises(ValueError, match=message("series must have shape (B, L, C)=(any, any, 2), got (4, 9, 3)")):
        norm.normalise(series())
    _, statistics = norm.normalise(torch.zeros(4, 9, 2))
    with pytest.raises(ValueError, match=message("series must have shape (B, P, C)=(4, any, 2), got (1, 9, 2)")):
        norm.denormalise(torch.zeros(1, 9, 2), statistics)
    with pytest.raises(ValueError, match=message("affine_channels must be at least 1, got 0")):
        ReversibleInstanceNorm(0)
    with pytest.raises(ValueError, match=message("eps must be positive, got 0.0")):
        ReversibleInstanceNorm(eps=0.0)


def test_token_batch_norm_is_batch_norm_over_transposed_tokens():
    ours = TokenBatchNorm(6).double()
    plain = nn.BatchNorm1d(6).double()
    x = torch.randn(4, 5, 6, dtype=torch.float64) * 3.0 + 1.0
    assert_near(ours(x), plain(x.mT).mT)
    assert_near(ours.eval()(x), plain.eval()(x.mT).mT)
    for name, value in plain.state_dict().items():
        assert_near(ours.state_dict()[name].double(), value.double(), name=name)


def test_token_batch_norm_accepts_any_memory_layout():
    norm = TokenBatchNorm(6)
    x = torch.randn(5, 4, 6)
    assert torch.equal(norm(x.transpose(0, 1)), norm(x.transpose(0, 1).contiguous()))


@pytest.mark.parametrize(
    ("shape", "options"),
    [(6, {}), ((4, 6), {}), (6, {"bias": False}), (6, {"elementwise_affine": False}), (6, {"eps": 0.1})],
    ids=str,
)
def test_layer_norm_matches_torch(shape, options):
    plain = nn.LayerNorm(shape, **options)
    ours = LayerNorm(shape, **options)
    assert repr(ours) == repr(plain)
    for parameter in plain.parameters():
        nn.init.normal_(parameter)
    ours.load_state_dict(plain.state_dict())
    x = torch.randn(5, 4, 6)
    assert torch.equal(ours(x), plain(x))


def test_make_norm_builds_norms_by_name():
    assert isinstance(make_norm("layer", 4), LayerNorm)
    assert isinstance(make_norm("batch", 4), TokenBatchNorm)
    with pytest.raises(ValueError, match=message("unknown norm 'group'; known: layer, batch.")):
        make_norm("group", 4)  # type: ignore[arg-type]


def test_instance_statistics_use_valid_steps_and_padding_becomes_zero():
    norm = ReversibleInstanceNorm()
    series = torch.randn(2, 9, 3, dtype=torch.float64)
    mask = torch.arange(9) < torch.tensor([[9], [4]])
    noisy = torch.where(mask.unsqueeze(-1), series, torch.nan)
    got, statistics = norm.normalise(noisy, mask)
    alone, of_it = norm.normalise(series[1:, :4])
    assert_near(got[1:, :4], alone)
    assert (got[1, 4:] == 0).all()
    assert_near(statistics.mean[1:], of_it.mean)
    assert_near(statistics.std[1:], of_it.std)
    assert_near(got[:1], norm.normalise(series[:1])[0])


def test_batch_statistics_exclude_padding():
    masked, plain = (TokenBatchNorm(3).double().train() for _ in range(2))
    tokens = torch.randn(2, 5, 3, dtype=torch.float64)
    padding = torch.arange(5) >= torch.tensor([[5], [2]])
    real = tokens[~padding].unsqueeze(0)  # (1, 7, 3)
    assert_near(masked(tokens, padding)[~padding].unsqueeze(0), plain(real))
    for name, buffer in masked.named_buffers():
        assert_near(buffer, dict(plain.named_buffers())[name], name=name)
    assert_near(masked.eval()(tokens, padding)[~padding].unsqueeze(0), plain.eval()(real))
