import pytest
import torch

from tests.support import assert_near, scatter_parameters
from toa import ops
from toa.nn import ATTENTIONS, AttentionSpec
from toa.nn.baseline_attention import HyperGLUAttention

# embedding width
E = 8
# number of heads
H = 2
# number of queries
M = 4
# number of tokens, or of keys
N = 6
SPECS = [
    *(AttentionSpec(name=name) for name in ATTENTIONS),
    AttentionSpec(name="toa-gated", structure="dplr", rank=3, score_norm="l2", gate_norm="l2"),
    AttentionSpec(name="toa-softmax", structure="toeplitz", score_norm="mean"),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: "-".join(map(str, (s.name, *s.options().values()))))
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("backend", ["folded", "reference"])
def test_mixing_operator_reproduces_the_output_before_projection(spec, masked, backend) -> None:
    layer = spec.build(E, H, N + 1)
    scatter_parameters(layer, std=0.5).double().eval()
    layer.backend = backend
    query, key, value = (torch.randn(2, n, E, dtype=torch.float64) for n in (M, N, N))
    mask = torch.arange(N).expand(2, N) >= 4 if masked else None
    out, weights = layer(query, key, value, key_padding_mask=mask, need_weights=True)
    assert weights is not None
    assert weights.shape == (2, H, M, N)

    # HyperGLU mixes convolved values
    source = layer._convolve(value, mask) if isinstance(layer, HyperGLUAttention) else value
    values = layer.v_proj(source).unflatten(-1, (H, -1))  # (B, N, H, D)
    mixed = torch.einsum("bhmn,bnhd->bmhd", weights, values).flatten(2)
    assert_near(out, layer._output(query, mixed))


@pytest.mark.parametrize("name", ["softmax", "toa-softmax"])
def test_softmax_weights_lie_in_the_simplex_while_operators_are_identities(name) -> None:
    options = {} if name == "softmax" else {"operator_std": 0.0}
    layer = AttentionSpec(name=name, **options).build(E, H, N).double()  # type: ignore[arg-type]
    x = torch.randn(2, N, E, dtype=torch.float64)
    _, weights = layer(x, x, x, need_weights=True)
    assert (weights >= 0).all()
    assert_near(weights.sum(-1), torch.ones(2, H, N, dtype=torch.float64))


@pytest.mark.parametrize("variant", ops.ACTIVATIONS)
def test_operators_make_the_weights_signed(variant) -> None:
    layer = AttentionSpec(name=f"toa-{variant}").build(E, H, N)
    scatter_parameters(layer).eval()
    x = torch.randn(2, N, E)
    _, weights = layer(x, x, x, need_weights=True)
    assert weights is not None
    assert (weights < 0).any()
    assert (weights > 0).any()
    assert not torch.allclose(weights.sum(-1), torch.ones(2, H, N))


@pytest.mark.parametrize("name", list(ATTENTIONS))
def test_weights_are_returned_only_on_request_and_change_nothing(name) -> None:
    layer = AttentionSpec(name=name).build(E, H, N).eval()
    x = torch.randn(2, N, E)
    plain, nothing = layer(x, x, x)
    asked, weights = layer(x, x, x, need_weights=True)
    assert nothing is None
    assert weights is not None
    assert torch.equal(plain, asked)


def test_weights_come_from_the_operators_of_the_same_training_pass() -> None:
    # SOR draws once per pass: the returned operator produced the output
    layer = AttentionSpec(name="toa-gated", operator_std=1.0).build(E, H, N).double().train()
    x = torch.randn(2, N, E, dtype=torch.float64)
    out, weights = layer(x, x, x, need_weights=True)
    assert weights is not None
    values = layer.v_proj(x).unflatten(-1, (H, -1))
    mixed = torch.einsum("bhmn,bnhd->bmhd", weights, values).flatten(2)
    assert_near(out, layer.out_proj(mixed))
