import pytest
import torch

from tests.support import assert_near, message, scatter_parameters
from toa import ops
from toa.nn import ATTENTIONS, AttentionSpec

# embedding width
E = 8
# number of heads
H = 2
# number of tokens, or of keys
N = 9
SPECS = [
    *(AttentionSpec(name=name) for name in ATTENTIONS if name != "hyperglu"),
    *(
        AttentionSpec(name=f"toa-{variant}", structure=structure)
        for variant in ops.ACTIVATIONS
        for structure in ("dplr", "toeplitz")
    ),
    *(
        AttentionSpec(name=f"toa-{variant}", score_norm=norm)  # type: ignore[arg-type]
        for variant in ops.ACTIVATIONS
        for norm in ops.SCORE_NORMS
        if norm != "none"
    ),
    AttentionSpec(name="toa-gated", gate_norm="l2"),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: "-".join(map(str, (s.name, *s.options().values()))))
@pytest.mark.parametrize("backend", ["folded", "reference"])
def test_future_tokens_never_change_past_outputs(spec, backend) -> None:
    layer = scatter_parameters(spec.build(E, H, N + 2, causal=True)).double().eval()
    layer.backend = backend
    x = torch.randn(2, N, E, dtype=torch.float64)
    now = 4
    changed = x.clone()
    changed[:, now + 1 :] = 100 * torch.randn(2, N - now - 1, E, dtype=torch.float64)
    before, after = layer(x, x, x)[0], layer(changed, changed, changed)[0]
    assert_near(after[:, : now + 1], before[:, : now + 1])
    assert (after[:, now + 1 :] - before[:, now + 1 :]).abs().min() > 0


@pytest.mark.parametrize("variant", ops.ACTIVATIONS)
@pytest.mark.parametrize("structure", ["dense", "dplr", "toeplitz"])
def test_past_outputs_have_no_gradient_from_the_future(variant, structure) -> None:
    layer = scatter_parameters(AttentionSpec(name=f"toa-{variant}", structure=structure).build(E, H, N, causal=True))
    layer.double().train()
    x = torch.randn(1, N, E, dtype=torch.float64, requires_grad=True)
    out, _ = layer(x, x, x)
    (grad,) = torch.autograd.grad(out[:, 3].sum(), x)
    # the FFT of a Toeplitz operator leaves rounding where a triangle is exactly zero
    assert grad[:, 4:].abs().max() <= 1e-12 * grad.abs().max()
    assert grad[:, :4].abs().min() > 0


@pytest.mark.parametrize("name", ["softmax", "toa-softmax", "toa-relu", "toa-gated"])
def test_causal_mixing_operator_is_lower_triangular(name) -> None:
    layer = scatter_parameters(AttentionSpec(name=name).build(E, H, N, causal=True)).eval()
    x = torch.randn(2, N, E)
    _, weights = layer(x, x, x, need_weights=True)
    assert torch.equal(weights, weights.tril())
    assert weights.diagonal(dim1=-2, dim2=-1).abs().sum() > 0


def test_non_causal_layer_sees_the_future() -> None:
    layer = AttentionSpec(name="toa-gated").build(E, H, N).eval()
    x = torch.randn(1, N, E)
    changed = x.clone()
    changed[:, -1] += 1
    assert not torch.equal(layer(x, x, x)[0][:, 0], layer(changed, changed, changed)[0][:, 0])


@pytest.mark.parametrize("name", ["softmax", "toa-softmax", "toa-relu", "toa-gated"])
@pytest.mark.parametrize("built", [False, True])
def test_causal_of_a_call_overrides_that_of_the_layer(name, built) -> None:
    layer = AttentionSpec(name=name).build(E, H, N, causal=built).eval()
    scatter_parameters(layer)
    other = AttentionSpec(name=name).build(E, H, N, causal=not built).eval()
    other.load_state_dict(layer.state_dict())
    x = torch.randn(2, N, E)
    assert torch.equal(layer.attend(x, x, x, causal=not built).output, other(x, x, x)[0])
    assert not torch.equal(layer.attend(x, x, x, causal=not built).output, layer(x, x, x)[0])


def test_causal_call_of_hyperglu_raises() -> None:
    layer = AttentionSpec(name="hyperglu").build(E, H, N)
    x = torch.randn(2, N, E)
    with pytest.raises(ValueError, match=message("causal must be False for hyperglu", "use a TOA variant")):
        layer.attend(x, x, x, causal=True)
