from copy import deepcopy

import pytest
import torch
from torch import nn

from toa.training.optimization import PiecewiseAdam, PiecewiseAdamW

KINDS = [(PiecewiseAdam, torch.optim.Adam), (PiecewiseAdamW, torch.optim.AdamW)]


def model() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(10, 7), nn.GELU(), nn.Linear(7, 3))
    layers.register_parameter("unused", nn.Parameter(torch.ones(2)))
    # one whose numbers do not lie one after another
    layers[2].weight = nn.Parameter(torch.randn(7, 3).mT)
    return layers


def take_steps(layers: nn.Module, optimizer: torch.optim.Optimizer, count: int) -> None:
    for number in range(count):
        torch.manual_seed(number)
        optimizer.zero_grad(set_to_none=True)
        layers(torch.randn(5, 10)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize(("piecewise", "plain"), KINDS)
@pytest.mark.parametrize("least", [4, 2**14])
def test_pieces_are_updated_as_pytorch_updates_complete_tensors(piecewise, plain, least):
    settings = {"lr": torch.tensor(0.01), "betas": (0.8, 0.9), "weight_decay": 0.1, "fused": True}
    found, expected = model(), model()
    ours = piecewise(found.parameters(), **settings)
    ours.least_piece = least
    ours.alignment = 1
    theirs = plain(expected.parameters(), **settings)
    take_steps(found, ours, 3)
    take_steps(expected, theirs, 3)
    # a state of either is one of the other
    states = [deepcopy(optimizer.state_dict()) for optimizer in (ours, theirs)]
    theirs.load_state_dict(states[0])
    ours.load_state_dict(states[1])
    take_steps(found, ours, 2)
    take_steps(expected, theirs, 2)
    for (name, x), y in zip(found.state_dict().items(), expected.state_dict().values(), strict=True):
        assert torch.allclose(x, y, rtol=1e-6, atol=1e-7), name
    for p, q in zip(found.parameters(), expected.parameters(), strict=True):
        assert ours.state[p].keys() == theirs.state[q].keys()
        assert all(torch.allclose(x, theirs.state[q][name]) for name, x in ours.state[p].items())


def test_small_models_are_cut_and_large_ones_are_not():
    lists = []

    class Watched(PiecewiseAdam):
        _update = staticmethod(lambda *tensors, **settings: lists.append([len(x) for x in tensors[0]]))

    def sizes(count: int) -> list[int]:
        weight = nn.Parameter(torch.zeros(count))
        weight.grad = torch.zeros(count)
        Watched([weight], fused=True, lr=torch.tensor(1.0)).step()
        return lists.pop()

    assert sizes(2**14) == [2**14]
    assert sizes(2**15 + 1) == [2**14, 2**14, 1]
    assert set(sizes(2**21)) == {2**15}
    assert all(size % 1024 == 0 for size in sizes(1_100_003)[:-1])
    assert sizes(2**22) == [2**22]


def test_a_closure_is_called_and_its_result_returned():
    layers = nn.Linear(2, 1)
    optimizer = PiecewiseAdam(layers.parameters(), lr=torch.tensor(0.1), fused=True)

    def closure() -> float:
        layers(torch.ones(1, 2)).sum().backward()
        return 2.5

    assert optimizer.step(closure) == 2.5
