from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support import message, scatter_parameters
from toa import ops
from toa.nn import (
    Attention,
    DenseOperator,
    StochasticOperatorRegularization,
    TemporalOperatorAttention,
    build_attention,
    drop_offset,
    make_operator,
)

STRUCTURES = ("dense", "dplr", "toeplitz")


def record_rates(monkeypatch) -> list[Tensor]:
    """Return a list that collects the rate of every offset regularized from now on."""
    rates: list[Tensor] = []

    def recorded(offset: Tensor, rate: Tensor, **options: Any) -> Tensor:
        rates.append(rate)
        return drop_offset(offset, rate, **options)

    monkeypatch.setattr("toa.nn.regularization.drop_offset", recorded)
    return rates


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9])
def test_dropped_offset_has_the_mean_and_variance_of_inverted_dropout(p) -> None:
    offset = torch.tensor([[[0.5, -2.0], [1.0, 3.0]]], dtype=torch.float64)
    draws = drop_offset(offset.expand(4000, 2, 2), torch.tensor(p)).unsqueeze(1)
    variance = p / (1 - p) * offset.square()
    standard_error = (variance / len(draws)).sqrt()
    assert ((draws.mean(0) - offset).abs() <= 4.5 * standard_error + 1e-7).all()
    # an entry is a scaled Bernoulli variable, whose fourth central moment gives the error of the variance
    fourth = variance.square() * (1 / (p * (1 - p)) - 3) if p else torch.zeros_like(variance)
    error_of_variance = ((fourth - variance.square()).clamp(min=0) / len(draws)).sqrt()
    assert ((draws.var(0) - variance).abs() <= 4.5 * error_of_variance + 1e-2 * variance + 1e-7).all()


def test_dropped_entries_are_zero_and_kept_ones_scaled() -> None:
    offset = torch.randn(2, 50, 50)
    dropped = drop_offset(offset, torch.tensor(0.75))
    kept = dropped != 0
    assert torch.allclose(dropped[kept], 4 * offset[kept])
    assert abs(kept.float().mean().item() - 0.25) < 0.03


def test_drop_rate_can_differ_per_head() -> None:
    dropped = drop_offset(torch.ones(2, 40, 40), torch.tensor([0.0, 0.5]))
    assert (dropped[0] == 1).all()
    assert set(dropped[1].unique().tolist()) == {0.0, 2.0}


def test_gradient_is_dropped_with_the_offset() -> None:
    offset = torch.randn(1, 8, 8, requires_grad=True)
    dropped = drop_offset(offset, torch.tensor(0.5))
    dropped.sum().backward()
    assert offset.grad is not None
    assert torch.equal(offset.grad, 2.0 * (dropped != 0))


@pytest.mark.parametrize("max_rate", [1.0, 0.3])
def test_drop_rate_is_uniform_up_to_its_maximum(max_rate) -> None:
    count = 4000
    sor = StochasticOperatorRegularization(max_rate=max_rate)
    rates = sor.draw((count,), torch.device("cpu")).double()
    assert rates.min() >= 0
    assert rates.max() < max_rate
    # largest distance of the empirical distribution from the uniform one: Kolmogorov's bound with probability 1e-6
    uniform = torch.arange(1, count + 1) / count
    distance = (rates.sort().values / max_rate - uniform).abs().max().item()
    assert distance < 2.7 / count**0.5


def test_largest_drop_rate_leaves_offsets_finite(monkeypatch) -> None:
    monkeypatch.setattr(torch, "rand", lambda shape, **_: torch.ones(shape))
    rate = StochasticOperatorRegularization().draw((), torch.device("cpu"))
    assert rate < 1
    assert drop_offset(torch.ones(1, 2, 2), rate).isfinite().all()


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("variant", ops.ACTIVATIONS)
def test_identity_is_never_dropped(structure, variant) -> None:
    layer = TemporalOperatorAttention(8, 2, 5, variant, structure=structure, operator_std=0.0)
    x = torch.randn(2, 5, 8)
    trained = layer.train()(x, x, x)[0]
    assert torch.equal(trained, layer.eval()(x, x, x)[0])


@pytest.mark.parametrize("structure", STRUCTURES)
def test_regularized_operator_keeps_its_mean(structure) -> None:
    operator = make_operator(structure, 1, 4, init_std=1.0)
    sor = StochasticOperatorRegularization(max_rate=0.5)
    with torch.no_grad():
        draws = torch.stack([operator.operator(sor.rates(1, torch.device("cpu"))).dense(4) for _ in range(3000)])
        error = draws.std(0) / len(draws) ** 0.5
        assert (draws.std(0) > 0).any()
        assert ((draws.mean(0) - operator.dense()).abs() <= 4.5 * error + 1e-6).all()


@pytest.mark.parametrize("name", ["toa-softmax", "toa-relu", "toa-gated"])
def test_regularization_acts_only_in_training(name) -> None:
    layer = build_attention(name, 8, 2, 5)
    assert isinstance(layer, TemporalOperatorAttention)
    scatter_parameters(layer)
    x = torch.randn(2, 5, 8)
    assert torch.equal(layer.eval()(x, x, x)[0], layer(x, x, x)[0])
    assert not torch.equal(layer.train()(x, x, x)[0], layer(x, x, x)[0])
    layer.sor = None
    assert torch.equal(layer(x, x, x)[0], layer(x, x, x)[0])


def test_layer_without_sor_is_the_same_in_training_and_evaluation() -> None:
    layer = TemporalOperatorAttention(8, 2, 5, sor=False, operator_std=1.0)
    x = torch.randn(2, 5, 8)
    assert torch.equal(layer.train()(x, x, x)[0], layer.eval()(x, x, x)[0])


def test_pass_sharing_draws_one_rate_for_all_operators_of_a_layer(monkeypatch) -> None:
    rates = record_rates(monkeypatch)
    layer = TemporalOperatorAttention(8, 2, 5, "gated", sor_sharing="pass")
    x = torch.randn(2, 5, 8)
    layer(x, x, x)
    assert len(rates) == 3
    assert all(rate.shape == () for rate in rates)
    assert len({rate.item() for rate in rates}) == 1
    layer(x, x, x)
    assert len({rate.item() for rate in rates}) == 2


def test_operator_sharing_draws_one_rate_per_operator_and_head(monkeypatch) -> None:
    rates = record_rates(monkeypatch)
    layer = TemporalOperatorAttention(8, 2, 5, "gated", sor_sharing="operator")
    x = torch.randn(2, 5, 8)
    layer(x, x, x)
    assert [rate.shape for rate in rates] == [(2,)] * 3
    assert len(set(torch.cat(rates).tolist())) == 6


def test_factors_of_one_operator_share_its_rate_but_not_its_mask(monkeypatch) -> None:
    rates = record_rates(monkeypatch)
    layer = TemporalOperatorAttention(8, 2, 5, "relu", structure="dplr", sor_sharing="operator")
    x = torch.randn(2, 5, 8)
    layer(x, x, x)
    # diagonal and left factor of s1, then of s2
    assert torch.equal(rates[0], rates[1])
    assert torch.equal(rates[2], rates[3])
    assert not torch.equal(rates[0], rates[2])


def test_masks_are_independent_across_operators() -> None:
    sor = StochasticOperatorRegularization(max_rate=0.5)
    rates = sor.rates(1, torch.device("cpu"))
    first, second = DenseOperator(1, 30, init_std=1.0), DenseOperator(1, 30, init_std=1.0)
    with torch.no_grad():
        masks = [operator.operator(rates).dense(30) == torch.eye(30) for operator in (first, second)]
    assert not torch.equal(*masks)


@pytest.mark.parametrize("sharing", ["pass", "operator"])
def test_generator_makes_a_training_pass_reproducible(sharing) -> None:
    x = torch.randn(2, 5, 8)

    def outputs(seed: int) -> list[Tensor]:
        torch.manual_seed(1)
        generator = torch.Generator().manual_seed(seed)
        layer = TemporalOperatorAttention(8, 2, 5, operator_std=1.0, generator=generator, sor_sharing=sharing)
        torch.manual_seed(seed + 100)  # the default generator must not matter
        return [layer(x, x, x)[0] for _ in range(2)]

    first, again, other = outputs(3), outputs(3), outputs(4)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], other[0])


def test_generator_on_another_device_raises() -> None:
    generator = torch.Generator("cpu")
    pattern = message("generator must be on the tensors' device meta, got one on cpu", "torch.Generator(device='meta')")
    with pytest.raises(ValueError, match=pattern):
        drop_offset(torch.empty(1, 2, 2, device="meta"), torch.tensor(0.5), generator=generator)
    with pytest.raises(ValueError, match=pattern):
        StochasticOperatorRegularization(generator=generator).rates(2, torch.device("meta"))


@pytest.mark.parametrize("max_rate", [0.0, 1.5, -1.0, float("nan")])
def test_max_rate_outside_its_range_raises(max_rate) -> None:
    with pytest.raises(ValueError, match=message("max_rate must lie in (0, 1], got", max_rate)):
        StochasticOperatorRegularization(max_rate=max_rate)


def test_unknown_sharing_lists_the_choices() -> None:
    with pytest.raises(ValueError, match=message("unknown sharing 'model'; known: pass, operator.")):
        StochasticOperatorRegularization(sharing="model")  # type: ignore[arg-type]


class NoSynchronisation(TorchDispatchMode):
    """Fails if a value is read from the device."""

    FORBIDDEN = ("_local_scalar_dense", "item", "is_nonzero", "nonzero", "equal")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in self.FORBIDDEN, f"{name} synchronises"
        return func(*args, **(kwargs or {}))


def training_step(layer: Attention, x: Tensor) -> None:
    out, _ = layer(x, x, x)
    out.square().mean().backward()


@pytest.mark.parametrize("sharing", ["pass", "operator"])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_training_step_never_synchronises(structure, sharing) -> None:
    layer = TemporalOperatorAttention(8, 2, 5, "gated", structure=structure, score_norm="l2", sor_sharing=sharing)
    x = torch.randn(2, 5, 8)
    with NoSynchronisation():
        training_step(layer, x)
    assert all(p.grad is not None for p in layer.parameters())


def test_synchronisation_detector_works() -> None:
    with pytest.raises(AssertionError, match="synchronises"), NoSynchronisation():
        torch.ones(()).item()
