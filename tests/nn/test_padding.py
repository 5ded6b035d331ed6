import pytest
import torch
from torch import Tensor

from tests.support import assert_near, scatter_parameters
from toa import ops
from toa.nn import ATTENTIONS, Attention, AttentionSpec, build_attention

# embedding width
E = 8
# number of heads
H = 2
# number of tokens, or of keys
N = 7
# tokens of each sequence that are not padding
LENGTHS = (4, 7, 1)
NAMES = tuple(ATTENTIONS)
# a length of one has a single score, whose l2 norm is always one
SPECS = [
    *(AttentionSpec(name=name) for name in NAMES),
    *(AttentionSpec(name=f"toa-{v}", score_norm=norm) for v in ops.ACTIVATIONS for norm in ("l2", "mean")),
    AttentionSpec(name="toa-gated", gate_norm="l2", structure="dplr", rank=2),
    AttentionSpec(name="toa-gated", score_norm="l2", structure="toeplitz"),
    AttentionSpec(name="toa-softmax", structure="toeplitz"),
    AttentionSpec(name="toa-relu", score_norm="rms"),
]
BY_SPEC = pytest.mark.parametrize("spec", SPECS, ids=lambda s: "-".join(map(str, (s.name, *s.options().values()))))


def make(spec: AttentionSpec, backend: str = "auto", **options) -> Attention:
    layer = spec.build(E, H, N, **options)
    scatter_parameters(layer, std=0.5)
    layer.backend = backend
    return layer.double().eval()


def padded(sequences: list[Tensor], fill: float) -> tuple[Tensor, Tensor]:
    """Return a batch and its mask; padding is noise of size `fill`."""
    batch = fill * torch.randn(len(sequences), N, E, dtype=torch.float64)
    mask = torch.ones(len(sequences), N, dtype=torch.bool)
    for row, sequence in enumerate(sequences):
        batch[row, : len(sequence)] = sequence
        mask[row, : len(sequence)] = False
    return batch, mask


@BY_SPEC
@pytest.mark.parametrize(("backend", "fill"), [("folded", 1.0), ("folded", 1e30), ("reference", 1e30)])
def test_padding_at_the_end_never_changes_valid_outputs(spec, fill, backend) -> None:
    layer = make(spec, backend)
    sequences = [torch.randn(length, E, dtype=torch.float64) for length in LENGTHS]
    batch, mask = padded(sequences, fill)
    out, _ = layer(batch, batch, batch, key_padding_mask=mask)
    for row, sequence in enumerate(sequences):
        alone, _ = layer(*(sequence[None],) * 3)
        assert_near(out[row, : len(sequence)], alone[0], name=f"length {len(sequence)}")


@BY_SPEC
def test_gradients_ignore_garbage_in_padding(spec) -> None:
    layer = make(spec)
    sequences = [torch.randn(length, E, dtype=torch.float64) for length in LENGTHS]

    def gradients(fill: float) -> list[Tensor]:
        batch, mask = padded(sequences, fill)
        out, _ = layer(batch, batch, batch, key_padding_mask=mask)
        return list(torch.autograd.grad(out.masked_fill(mask.unsqueeze(-1), 0.0).sum(), list(layer.parameters())))

    for (name, _), got, expected in zip(layer.named_parameters(), gradients(1e3), gradients(0.0), strict=True):
        assert_near(got, expected, 1e-11, name=name)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["softmax", "toa-softmax", "toa-relu", "toa-gated"])
def test_garbage_at_any_padded_position_changes_nothing(name, causal) -> None:
    layer = make(AttentionSpec(name=name), causal=causal)
    mask = torch.tensor([[True, False, True, False, False, True, False], [False, True, True, True, True, True, True]])
    x = torch.randn(2, N, E, dtype=torch.float64)
    garbage = torch.where(mask.unsqueeze(-1), 1e20 * torch.randn_like(x), x)
    clean, _ = layer(x, x, x, key_padding_mask=mask)
    noisy, _ = layer(x, garbage, garbage, key_padding_mask=mask)
    assert_near(noisy, clean)


@BY_SPEC
@pytest.mark.parametrize("backend", ["folded", "reference"])
def test_mixing_operator_has_zero_columns_at_padding(spec, backend) -> None:
    layer = make(spec, backend)
    batch, mask = padded([torch.randn(length, E, dtype=torch.float64) for length in LENGTHS], 1.0)
    _, weights = layer(batch, batch, batch, key_padding_mask=mask, need_weights=True)
    assert weights is not None
    columns = weights.permute(0, 3, 1, 2)  # (B, N, H, M)
    assert (columns[mask] == 0).all()
    assert (columns[~mask] != 0).any()


@pytest.mark.parametrize("name", NAMES)
def test_mask_without_padding_changes_nothing(name) -> None:
    layer = make(AttentionSpec(name=name))
    x = torch.randn(2, N, E, dtype=torch.float64)
    none = torch.zeros(2, N, dtype=torch.bool)
    assert_near(layer(x, x, x, key_padding_mask=none)[0], layer(x, x, x)[0])


@pytest.mark.parametrize("name", NAMES)
def test_padding_of_cross_attention_is_ignored(name) -> None:
    layer = build_attention(name, E, H, N).double().eval()
    query = torch.randn(2, 3, E, dtype=torch.float64)
    key = torch.randn(2, N, E, dtype=torch.float64)
    mask = torch.arange(N).expand(2, N) >= 5
    out, _ = layer(query, key, key, key_padding_mask=mask)
    assert_near(out, layer(query, key[:, :5], key[:, :5])[0])
