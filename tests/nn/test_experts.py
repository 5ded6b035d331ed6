import math

import pytest
import torch
from torch import Tensor, nn

from tests.support import assert_near, message
from toa.nn import LinearExperts, NoisyTopKGate, SeriesDecomposition


def gate_of_logits(experts: int, top_k: int, *, noisy: bool = True) -> NoisyTopKGate:
    """A gate whose logits and raw noise are its input."""
    gate = NoisyTopKGate(experts, experts, top_k, hidden_dim=2, noisy=noisy).double()
    gate.logits = nn.Identity()  # type: ignore[assignment]
    if noisy:
        gate.noise = nn.Identity()  # type: ignore[assignment]
    return gate


def squared_variation(totals: list[float]) -> float:
    mean = sum(totals) / len(totals)
    return sum((t - mean) ** 2 for t in totals) / (len(totals) - 1) / (mean**2 + 1e-10)


def test_gates_are_the_largest_probabilities_over_their_sum() -> None:
    gate = gate_of_logits(3, 2).eval()
    logits = torch.tensor([[0.0, 1.0, 3.0], [2.0, -1.0, 0.0]], dtype=torch.float64)
    gates = gate(logits).gates
    e = math.e
    assert_near(gates[0], torch.tensor([0.0, e / (e + e**3), e**3 / (e + e**3)], dtype=torch.float64), 2e-6)
    assert_near(gates[1], torch.tensor([e**2 / (e**2 + 1), 0.0, 1 / (e**2 + 1)], dtype=torch.float64), 2e-6)


def test_penalty_in_evaluation_counts_gates_and_series() -> None:
    gate = gate_of_logits(3, 1).eval()
    logits = torch.tensor([[0.0, 1.0, 3.0], [2.0, -1.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    gates, penalty = gate(logits)
    expected = squared_variation(gates.sum(0).tolist()) + squared_variation([1.0, 0.0, 2.0])
    assert penalty.item() == pytest.approx(expected)
    # the same series in a different shape
    assert gate(logits.unsqueeze(1)).penalty.item() == pytest.approx(expected)


def test_noise_acts_only_in_training_through_the_mixing_matrix() -> None:
    gate = gate_of_logits(4, 2)
    logits, noise = torch.randn(5, 4, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    assert gate.mixing is not None
    nn.init.normal_(gate.mixing)
    gate._draw = lambda like: noise  # type: ignore[method-assign]
    z = (logits + noise * (nn.functional.softplus(logits) + 0.01)) @ gate.mixing
    expected = gate_of_logits(4, 2).eval()(z.detach()).gates
    assert_near(gate(logits).gates, expected)
    quiet = gate_of_logits(4, 2).eval()(logits).gates
    assert_near(gate.eval()(logits).gates, quiet)
    assert not torch.allclose(expected, quiet)
    silent = gate_of_logits(4, 2, noisy=False)
    assert silent.mixing is None
    assert_near(silent.train()(logits).gates, quiet)


def test_load_with_noise_is_the_sum_of_probabilities() -> None:
    gate = gate_of_logits(3, 1)
    logits, noise = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    gate._draw = lambda like: noise  # type: ignore[method-assign]
    gates, penalty = gate(logits)
    load = [0.0] * 3
    for row in range(4):
        spread = [math.log1p(math.exp(x)) + 0.01 for x in logits[row].tolist()]
        noisy = [x + n * s for x, n, s in zip(logits[row].tolist(), noise[row].tolist(), spread, strict=True)]
        first, second, _ = sorted((math.exp(z) / sum(math.exp(y) for y in noisy) for z in noisy), reverse=True)
        for x in range(3):
            threshold = second if noisy[x] > second else first
            load[x] += 0.5 * (1 + math.erf((logits[row, x].item() - threshold) / spread[x] / math.sqrt(2)))
    assert penalty.item() == pytest.approx(squared_variation(gates.sum(0).tolist()) + squared_variation(load))


def test_penalty_gives_gate_and_noise_a_gradient() -> None:
    gate = NoisyTopKGate(8, 4, 2, hidden_dim=5)
    gate(torch.randn(6, 8)).penalty.backward()
    assert all(p.grad is not None and (p.grad != 0).any() for p in gate.parameters())


def test_lowering_the_penalty_spreads_the_series_over_the_experts() -> None:
    gate = NoisyTopKGate(8, 4, 1, hidden_dim=16)
    series = torch.randn(64, 8) + 1.0
    optimizer = torch.optim.Adam(gate.parameters(), lr=1e-2)

    def largest_share() -> float:
        return (gate.eval()(series).gates.sum(0).max() / len(series)).item()

    before = largest_share()
    for _ in range(100):
        optimizer.zero_grad()
        gate.train()(series).penalty.backward()
        optimizer.step()
    assert largest_share() < 0.5 < before


def test_gates_with_all_experts_or_one_expert_are_not_random() -> None:
    gates, penalty = gate_of_logits(3, 3)(torch.randn(5, 3, dtype=torch.float64))
    assert_near(gates.sum(-1), torch.ones(5, dtype=torch.float64), 2e-6)
    assert (gates > 0).all()
    alone, none = gate_of_logits(1, 1)(torch.randn(5, 1, dtype=torch.float64))
    assert_near(alone, torch.ones(5, 1, dtype=torch.float64), 2e-6)
    assert none.item() == 0.0
    assert penalty.item() > 0.0


def literal(experts: LinearExperts, series: Tensor, gates: Tensor) -> Tensor:
    """The sum over the experts of each series, computed with loops."""
    parts = SeriesDecomposition(experts.decompose.kernel)(series)
    tokens = torch.zeros(series.shape[0], series.shape[2], experts.weight.shape[-1], dtype=series.dtype)
    for b in range(series.shape[0]):
        for c in range(series.shape[2]):
            for x in range(experts.num_experts):
                gate = gates[b, c if gates.shape[1] > 1 else 0, x]
                for j, part in enumerate(parts):
                    tokens[b, c] += gate * (part[b, :, c] @ experts.weight[x, j] + experts.bias[x, j])
    return tokens


@pytest.mark.parametrize("shared", [False, True])
def test_one_product_equals_the_sum_over_chosen_experts(shared) -> None:
    experts = LinearExperts(9, 4, 3, moving_average=5).double()
    nn.init.normal_(experts.weight)
    series = torch.randn(2, 9, 5, dtype=torch.float64)
    gates = gate_of_logits(3, 2).eval()(torch.randn(2, 1 if shared else 5, 3, dtype=torch.float64)).gates
    assert_near(experts(series, gates), literal(experts, series, gates))


def test_expert_without_series_gets_no_gradient() -> None:
    experts = LinearExperts(9, 4, 3, moving_average=5)
    gates = torch.tensor([0.7, 0.0, 0.3]).expand(2, 5, 3)
    experts(torch.randn(2, 9, 5), gates).square().sum().backward()
    for parameter in experts.parameters():
        assert parameter.grad is not None
        assert [bool((parameter.grad[x] != 0).any()) for x in range(3)] == [True, False, True]


def test_experts_are_initially_the_mean_over_time() -> None:
    experts = LinearExperts(9, 4, 3, moving_average=5)
    nn.init.zeros_(experts.bias)
    series = torch.randn(2, 9, 5)
    gates = torch.tensor([0.5, 0.0, 0.5]).expand(2, 5, 3)
    assert_near(experts(series, gates), series.mean(1).unsqueeze(-1).expand(2, 5, 4), 1e-6)


def test_wrong_sizes_raise() -> None:
    with pytest.raises(ValueError, match=message("top_k must be at most num_experts=3, got 4; use top_k=3")):
        NoisyTopKGate(8, 3, 4, hidden_dim=2)
    with pytest.raises(ValueError, match=message("top_k must be at least 1, got 0.")):
        NoisyTopKGate(8, 3, 0, hidden_dim=2)
    with pytest.raises(ValueError, match=message("hidden_dim must be at least 1, got 0.")):
        NoisyTopKGate(8, 3, 1, hidden_dim=0)
    with pytest.raises(ValueError, match=message("kernel must be odd", "got 4; use 5")):
        LinearExperts(9, 4, 3, moving_average=4)
    experts = LinearExperts(9, 4, 3, moving_average=5)
    with pytest.raises(ValueError, match=message("series must have shape (B, L, C)=(any, 9, any), got (2, 8, 5)")):
        experts(torch.zeros(2, 8, 5), torch.zeros(2, 5, 3))
    with pytest.raises(ValueError, match=message("gates must have shape (B, C or 1, X)=(2, 5, 3), got (2, 4, 3)")):
        experts(torch.zeros(2, 9, 5), torch.zeros(2, 4, 3))
