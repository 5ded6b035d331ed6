from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from tests.support import assert_near, message, scatter_parameters
from toa.nn import (
    ATTENTIONS,
    AttentionSpec,
    StochasticOperatorRegularization,
    TemporalOperatorAttention,
    build_attention,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # for the cases in float64
    pytest.mark.filterwarnings("ignore:backend 'folded' runs instead of 'triton':RuntimeWarning"),
]

# batch size
B = 8
# number of tokens, or of keys
N = 32
# embedding width
E = 16
# number of heads
H = 2


def captured(step: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """Return a CUDA graph of `step`, and the tensor that its replays fill."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    return graph, out


@contextmanager
def synchronising_is_an_error() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("sharing", ["pass", "operator"])
def test_replays_of_a_captured_forward_draw_different_rates(monkeypatch, sharing, masked) -> None:
    layer = TemporalOperatorAttention(E, H, N, "gated", operator_std=1.0, sor_sharing=sharing).cuda().train()
    x = torch.randn(B, N, E, device="cuda")
    mask = (torch.arange(N, device="cuda") >= N - 5).expand(B, N) if masked else None
    rates: list[Tensor] = []
    plain = StochasticOperatorRegularization.draw

    def recorded(self: StochasticOperatorRegularization, shape: tuple[int, ...], device: torch.device) -> Tensor:
        rates.append(plain(self, shape, device))
        return rates[-1]

    monkeypatch.setattr(StochasticOperatorRegularization, "draw", recorded)
    graph, out = captured(lambda: layer(x, x, x, key_padding_mask=mask)[0])
    # the last one was recorded during capture: each replay overwrites it
    p = rates[-1]
    outputs = []
    drawn = set()
    for _ in range(5):
        graph.replay()
        outputs.append(out.clone())
        drawn.add(p.flatten()[0].item())
    assert len(drawn) == 5
    assert all(0 <= value < 1 for value in drawn)
    assert not any(torch.equal(outputs[0], other) for other in outputs[1:])
    assert all(other.isfinite().all() for other in outputs)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("structure", ["dense", "dplr", "toeplitz"])
def test_captured_training_step_learns(structure, masked) -> None:
    layer = TemporalOperatorAttention(E, H, N, "gated", structure=structure, score_norm="l2").cuda().train()
    optimizer = torch.optim.AdamW(layer.parameters(), lr=3e-3, capturable=True)
    x = torch.randn(B, N, E, device="cuda")
    # a filter over time: first differences
    target = x - x.roll(1, dims=1)
    mask = (torch.arange(N, device="cuda") >= N - 5).expand(B, N) if masked else None

    def loss() -> Tensor:
        return (layer(x, x, x, key_padding_mask=mask)[0] - target).square().mean()

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=False)
        value = loss()
        value.backward()
        optimizer.step()
        return value

    def evaluated() -> float:
        layer.eval()
        with torch.no_grad():
            value = loss().item()
        layer.train()
        return value

    graph, value = captured(step)
    before = evaluated()
    for _ in range(300):
        graph.replay()
    assert value.isfinite()
    assert evaluated() < 0.8 * before


def test_padding_in_a_captured_forward_is_ignored() -> None:
    layer = scatter_parameters(TemporalOperatorAttention(E, H, N, "gated")).cuda().double().eval()
    x = torch.randn(B, N, E, device="cuda", dtype=torch.float64)
    mask = (torch.arange(N, device="cuda") >= N - 5).expand(B, N)
    graph, out = captured(lambda: layer(x, x, x, key_padding_mask=mask)[0])
    graph.replay()
    clean = out[:, : N - 5].clone()
    # the graph reads its inputs again at each replay
    x[:, N - 5 :] = 1e10
    graph.replay()
    assert_near(out[:, : N - 5], clean)
    short = x[:, : N - 5]
    assert_near(clean, layer(short, short, short)[0])


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("name", list(ATTENTIONS))
def test_training_step_on_cuda_never_synchronises(name) -> None:
    layer = build_attention(name, E, H, N).cuda().train()
    x = torch.randn(B, N, E, device="cuda")
    with synchronising_is_an_error():
        layer(x, x, x)[0].square().mean().backward()


@pytest.mark.parametrize("name", list(ATTENTIONS))
def test_layers_on_cuda_match_those_on_the_cpu(name) -> None:
    layer = AttentionSpec(name=name).build(E, H, N)
    scatter_parameters(layer, std=0.3).double().eval()
    x = torch.randn(B, N, E, dtype=torch.float64)
    expected = layer(x, x, x)[0]
    y = x.cuda()
    assert_near(layer.cuda()(y, y, y)[0].cpu(), expected)


def test_generator_of_the_cuda_device_is_used_and_a_cpu_one_raises() -> None:
    x = torch.randn(B, N, E, device="cuda")

    def output(seed: int) -> Tensor:
        torch.manual_seed(0)
        generator = torch.Generator("cuda").manual_seed(seed)
        return TemporalOperatorAttention(E, H, N, operator_std=1.0, generator=generator).cuda()(x, x, x)[0]

    assert torch.equal(output(1), output(1))
    assert not torch.equal(output(1), output(2))
    layer = TemporalOperatorAttention(E, H, N, generator=torch.Generator("cpu")).cuda()
    with pytest.raises(ValueError, match=message("generator must be on the tensors' device cuda", "got one on cpu")):
        layer(x, x, x)
