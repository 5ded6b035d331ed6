import copy

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.nn.test_sor import record_rates
from toa.nn import Sharing, StochasticOperatorRegularization, TemporalOperatorAttention, share_drop_rate


class Stack(nn.Module):
    """Three TOA layers of different variants."""

    def __init__(self, sharing: Sharing = "pass", generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            TemporalOperatorAttention(8, 2, 5, variant, sor_sharing=sharing, generator=generator, operator_std=1.0)
            for variant in ("gated", "relu", "softmax")
        )
        self.fail = False

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x, _ = layer(x, x, x)
        if self.fail:
            raise RuntimeError("planted")
        return x


def shared_rate(model: nn.Module) -> Tensor | None:
    sor = next(m for m in model.modules() if isinstance(m, StochasticOperatorRegularization))
    return None if sor._shared is None else sor._shared.rate


def test_without_sharing_every_layer_draws_its_own_rate(monkeypatch) -> None:
    rates = record_rates(monkeypatch)
    Stack()(torch.randn(2, 5, 8))
    assert len(rates) == 7
    assert len({rate.item() for rate in rates}) == 3


def test_shared_rate_is_drawn_once_per_model_pass(monkeypatch) -> None:
    model = Stack()
    assert share_drop_rate(model) == 3
    rates = record_rates(monkeypatch)
    x = torch.randn(2, 5, 8)
    model(x)
    assert len(rates) == 7
    assert len({rate.item() for rate in rates}) == 1
    model(x)
    assert len({rate.item() for rate in rates}) == 2


def test_recomputation_in_backward_uses_the_rate_of_its_pass() -> None:
    def gradients(recompute: bool) -> list[torch.Tensor]:
        torch.manual_seed(3)
        model = Stack()
        share_drop_rate(model)
        if recompute:
            for layer in model.layers:
                forward = layer.forward
                layer.forward = lambda *x, run=forward: checkpoint(run, *x, use_reentrant=False)
        x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1))
        model(x).square().mean().backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    for plain, recomputed in zip(gradients(False), gradients(True), strict=True):
        torch.testing.assert_close(recomputed, plain)


def test_sharing_twice_is_sharing_once() -> None:
    model = Stack()
    assert share_drop_rate(model) == share_drop_rate(model) == 3
    assert len(model._forward_pre_hooks) == 1


def test_shared_rate_is_off_in_evaluation(monkeypatch) -> None:
    model = Stack().eval()
    share_drop_rate(model)
    rates = record_rates(monkeypatch)
    x = torch.randn(2, 5, 8)
    state = torch.random.get_rng_state()
    assert torch.equal(model(x), model(x))
    assert rates == []
    assert torch.equal(torch.random.get_rng_state(), state)


def test_layers_with_a_rate_per_operator_do_not_share(monkeypatch) -> None:
    model = Stack("operator")
    assert share_drop_rate(model) == 0
    rates = record_rates(monkeypatch)
    model(torch.randn(2, 5, 8))
    assert len(set(torch.cat(rates).tolist())) == 14


def test_shared_rate_comes_from_the_layers_generator() -> None:
    def outputs(seed: int) -> Tensor:
        torch.manual_seed(0)
        model = Stack(generator=torch.Generator().manual_seed(seed))
        share_drop_rate(model)
        x = torch.randn(2, 5, 8)
        torch.manual_seed(seed + 100)
        return model(x)

    assert torch.equal(outputs(1), outputs(1))
    assert not torch.equal(outputs(1), outputs(2))


def test_copied_model_still_shares_one_rate(monkeypatch) -> None:
    model = Stack()
    share_drop_rate(model)
    copied = copy.deepcopy(model)
    rates = record_rates(monkeypatch)
    copied(torch.randn(2, 5, 8))
    assert len({rate.item() for rate in rates}) == 1
