# tests/test_compile.py runs this file in a process without shape checks, which torch.compile cannot trace.
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from tests.support import assert_near
from toa.nn import ATTENTIONS, Attention, AttentionSpec, TemporalOperatorAttention, build_attention, share_drop_rate


def every_attention() -> pytest.MarkDecorator:
    """Parametrise over all attentions, with the slow cases."""
    return pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in ATTENTIONS])


# the compiler calls deprecated functions of PyTorch
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def inputs(masked: bool = False) -> dict[str, Tensor]:
    x = torch.randn(2, 6, 8)
    batch = {"query": x, "key": x, "value": x}
    return {**batch, "key_padding_mask": torch.arange(6).expand(2, 6) >= 4} if masked else batch


def step(function, layer: nn.Module, batch: dict[str, Tensor]) -> list[Tensor]:
    """Output and gradients of a pass with a fixed seed for SOR."""
    layer.zero_grad()
    torch.manual_seed(5)
    out, _ = function(**batch)
    out.square().mean().backward()
    return [out.detach(), *(p.grad.clone() for p in layer.parameters() if p.grad is not None)]


def assert_compiled_matches(layer: Attention, batch: dict[str, Tensor], backend: str, training: bool) -> None:
    layer.train(training)
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    expected = step(layer, layer, batch)
    got = step(compiled, layer, batch)
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        assert_near(one, other, 1e-5)


@pytest.mark.parametrize("training", [True, pytest.param(False, marks=pytest.mark.slow)])
@every_attention()
def test_compiled_layer_matches_eager(name, training) -> None:
    layer = AttentionSpec(name=name).build(8, 2, 6)
    # training with padding, evaluation without
    assert_compiled_matches(layer, inputs(masked=training), "aot_eager", training)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"structure": "dplr", "rank": 2, "score_norm": "l2", "gate_norm": "l2"},
        {"structure": "toeplitz", "score_norm": "mean"},
        {"backend": "reference"},
        {"sor_sharing": "operator"},
    ],
    ids=str,
)
def test_compiled_gated_layer_matches_eager_in_every_structure(options) -> None:
    layer = AttentionSpec(name="toa-gated", **options).build(8, 2, 6, causal=True)
    assert_compiled_matches(layer, inputs(), "aot_eager", training=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["toa-softmax", "toa-gated"])
def test_inductor_matches_eager(name) -> None:
    # without SOR: inductor draws different random numbers
    layer = AttentionSpec(name=name, sor=False).build(8, 2, 6)
    assert_compiled_matches(layer, inputs(), "inductor", training=True)


@pytest.mark.slow
def test_compiled_passes_draw_different_rates() -> None:
    layer = TemporalOperatorAttention(8, 2, 6, operator_std=1.0)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    batch = inputs()
    assert not torch.equal(compiled(**batch)[0], compiled(**batch)[0])


@pytest.mark.slow
# tracing stops at the hooks, where the compiler reads the output's gradient
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
def test_compiled_model_shares_one_drop_rate() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(TemporalOperatorAttention(8, 2, 6, operator_std=1.0) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x, x, x)[0]
            return x

    model = Model()
    share_drop_rate(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 6, 8)
    torch.manual_seed(1)
    expected = model(x)
    torch.manual_seed(1)
    assert_near(compiled(x), expected, 1e-5)


@every_attention()
def test_compiled_layer_accepts_many_lengths(name) -> None:
    layer = build_attention(name, 8, 2, 40).eval()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for length in (5, 9, 17):
        x = torch.randn(2, length, 8)
        padding = torch.arange(length).expand(2, length) >= 4
        assert_near(compiled(x, x, x, padding)[0], layer(x, x, x, padding)[0], 1e-5)


@pytest.mark.parametrize("variant", ["gated", pytest.param("softmax", marks=pytest.mark.slow)])
def test_compiled_and_exported_layer_shares_heads_and_has_a_window(variant) -> None:
    layer = TemporalOperatorAttention(8, 4, 6, variant, num_kv_heads=2, window=3, causal=True, sor=False)
    assert_compiled_matches(layer, inputs(), "aot_eager", training=True)
    x = torch.randn(2, 6, 8)
    exported = torch.export.export(layer.eval(), (x, x, x)).module()
    assert_near(exported(x, x, x)[0], layer(x, x, x)[0], 1e-5)


@every_attention()
def test_exported_layer_accepts_any_batch_size(name) -> None:
    layer = build_attention(name, 8, 2, 12).eval()
    batch = torch.export.Dim("batch", min=2, max=64)
    x = torch.randn(4, 12, 8)
    exported = torch.export.export(layer, (x, x, x), dynamic_shapes=({0: batch}, {0: batch}, {0: batch})).module()
    y = torch.randn(7, 12, 8)
    assert_near(exported(y, y, y)[0], layer(y, y, y)[0], 1e-5)
