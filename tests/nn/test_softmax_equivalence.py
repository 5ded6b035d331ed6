import pytest
import torch
from torch import nn

from tests.support import assert_near
from toa.nn import Attention, DiagonalLowRankOperator, SoftmaxAttention, TemporalOperatorAttention

# embedding width
E = 12
# number of heads
H = 3
# number of tokens, or of keys
N = 6


@torch.no_grad()
def copy_weights(source: nn.MultiheadAttention, target: Attention) -> None:
    target.load_state_dict(
        {
            **{
                f"{name}_proj.{part}": value
                for part, packed in (("weight", source.in_proj_weight), ("bias", source.in_proj_bias))
                for name, value in zip("qkv", packed.chunk(3), strict=True)
            },
            "out_proj.weight": source.out_proj.weight,
            "out_proj.bias": source.out_proj.bias,
        },
        strict=False,
    )


def pair(kind: str, structure: str = "dense") -> tuple[nn.MultiheadAttention, Attention]:
    theirs = nn.MultiheadAttention(E, H, batch_first=True, dtype=torch.float64)
    nn.init.normal_(theirs.in_proj_bias)
    nn.init.normal_(theirs.out_proj.bias)
    ours: Attention
    if kind == "softmax":
        ours = SoftmaxAttention(E, H, N)
    else:
        ours = TemporalOperatorAttention(E, H, N, "softmax", structure=structure, operator_std=0.0)  # type: ignore[arg-type]
    ours.double()
    copy_weights(theirs, ours)
    return theirs, ours


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    ("kind", "structure"), [("softmax", "dense"), ("toa", "dense"), ("toa", "dplr"), ("toa", "toeplitz")]
)
def test_layer_with_zero_offsets_is_multihead_attention(kind, structure, training, masked) -> None:
    theirs, ours = pair(kind, structure)
    if structure == "dplr":
        # zero d and L make the offset zero whatever R is
        assert isinstance(ours, TemporalOperatorAttention)
        assert isinstance(ours.s1, DiagonalLowRankOperator)
        assert ours.s1.right.abs().max() > 0
    theirs.train(training)
    ours.train(training)
    query, key, value = (torch.randn(2, n, E, dtype=torch.float64) for n in (4, N, N))
    mask = torch.tensor([[False] * 4 + [True] * 2, [True] + [False] * 5]) if masked else None
    expected, weights = theirs(query, key, value, key_padding_mask=mask, average_attn_weights=False)
    got, mixing = ours(query, key, value, key_padding_mask=mask, need_weights=True)
    assert_near(got, expected)
    assert mixing is not None
    assert_near(mixing, weights)


def test_toa_softmax_with_zero_offsets_is_softmax_attention() -> None:
    softmax = SoftmaxAttention(E, H, N)
    toa = TemporalOperatorAttention(E, H, N, "softmax", operator_std=0.0)
    missing = toa.load_state_dict(softmax.state_dict(), strict=False)
    assert missing.unexpected_keys == []
    assert missing.missing_keys == ["s1.offset", "s2.offset"]
    x = torch.randn(2, N, E)
    assert torch.equal(toa(x, x, x)[0], softmax(x, x, x)[0])


def test_causal_softmax_attention_is_causal_multihead_attention() -> None:
    theirs, _ = pair("softmax")
    ours = SoftmaxAttention(E, H, N, causal=True).double()
    copy_weights(theirs, ours)
    x = torch.randn(2, N, E, dtype=torch.float64)
    future = torch.ones(N, N, dtype=torch.bool).triu(1)
    assert_near(ours(x, x, x)[0], theirs(x, x, x, attn_mask=future)[0])


def test_keys_and_values_can_have_other_widths() -> None:
    theirs = nn.MultiheadAttention(E, H, kdim=5, vdim=7, batch_first=True, dtype=torch.float64)
    ours = SoftmaxAttention(E, H, N, kdim=5, vdim=7).double()
    with torch.no_grad():
        for name in "qkv":
            getattr(ours, f"{name}_proj").weight.copy_(getattr(theirs, f"{name}_proj_weight"))
            getattr(ours, f"{name}_proj").bias.zero_()
        ours.out_proj.load_state_dict(theirs.out_proj.state_dict())
    q, k, v = (torch.randn(2, N, width, dtype=torch.float64) for width in (E, 5, 7))
    assert_near(ours(q, k, v)[0], theirs(q, k, v)[0])
