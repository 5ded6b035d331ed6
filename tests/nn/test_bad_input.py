from typing import Any

import pytest
import torch

from tests.support import message
from toa.nn import ATTENTIONS, Attention, SoftmaxAttention, TemporalOperatorAttention, build_attention

NAMES = tuple(ATTENTIONS)


def toa(**options: Any) -> TemporalOperatorAttention:
    return TemporalOperatorAttention(8, 2, 5, **options)


@pytest.mark.parametrize("name", NAMES)
def test_width_not_divisible_by_heads_raises_with_a_divisible_one(name) -> None:
    with pytest.raises(ValueError, match=message("embed_dim must be a multiple of num_heads=3, got 8; use 6")):
        build_attention(name, 8, 3, 5)
    with pytest.raises(ValueError, match=message("embed_dim must be a multiple of num_heads=16, got 8; use 16")):
        build_attention(name, 8, 16, 5)


@pytest.mark.parametrize("name", NAMES)
def test_sizes_below_one_raise(name) -> None:
    with pytest.raises(ValueError, match=message("num_heads must be at least 1, got 0")):
        build_attention(name, 8, 0, 5)
    with pytest.raises(ValueError, match=message("embed_dim must be at least 1, got 0")):
        build_attention(name, 0, 2, 5)
    with pytest.raises(ValueError, match=message("num_tokens must be at least 1, got 0")):
        build_attention(name, 8, 2, 0)
    with pytest.raises(ValueError, match=message("dropout must lie in [0, 1), got 1.0")):
        build_attention(name, 8, 2, 5, dropout=1.0)


def test_query_width_below_one_raises() -> None:
    with pytest.raises(ValueError, match=message("qk_dim must be at least 1, got 0")):
        toa(qk_dim=0)


CHOICES = {
    "variant": "unknown variant 'x'; known: softmax, relu, gated.",
    "score_norm": "unknown score_norm 'x'; known: none, l2, mean, rms.",
    "gate_norm": "unknown gate_norm 'x'; known: none, l2, rms.",
    "structure": "unknown structure 'x'; known: dense, dplr, toeplitz, banded.",
    "sor_sharing": "unknown sharing 'x'; known: pass, operator.",
}


@pytest.mark.parametrize("name", CHOICES)
def test_unknown_choice_lists_the_choices(name) -> None:
    with pytest.raises(ValueError, match=message(CHOICES[name])):
        toa(**{name: "x"})


def test_unknown_backend_lists_the_choices() -> None:
    x = torch.zeros(1, 5, 8)
    with pytest.raises(ValueError, match=message("unknown backend 'x'; known: auto, triton, folded, reference.")):
        toa(backend="x")(x, x, x)


def test_options_of_other_variants_raise() -> None:
    with pytest.raises(ValueError, match=message("gate_norm", "variant='gated'", "got variant='relu'")):
        toa(variant="relu", gate_norm="l2")
    with pytest.raises(ValueError, match=message("rank", "dplr", "got structure='dense'", "rank=4")):
        toa(rank=4)
    with pytest.raises(ValueError, match=message("max_rate must lie in (0, 1], got 2.0")):
        toa(sor_max_rate=2.0)
    with pytest.raises(ValueError, match=message("init_std must be at least 0.0, got -1.0")):
        toa(operator_std=-1.0)


@pytest.mark.parametrize("name", NAMES)
def test_inputs_of_wrong_shape_raise(name) -> None:
    layer = build_attention(name, 8, 2, 5)
    x = torch.zeros(2, 5, 8)
    with pytest.raises(ValueError, match=message("query must have 3 axes (B, M, E), got 2: shape (5, 8)")):
        layer(x[0], x, x)
    with pytest.raises(ValueError, match=message("query must have shape (B, M, E)=(any, any, 8), got (2, 5, 7)")):
        layer(x[..., :7], x, x)
    with pytest.raises(ValueError, match=message("key must have shape (B, N, E)=(2, any, 8), got (1, 5, 8)")):
        layer(x, x[:1], x)
    with pytest.raises(ValueError, match=message("value must have shape (B, N, E)=(2, 5, 8), got (2, 4, 8)")):
        layer(x, x, x[:, :4])


@pytest.mark.parametrize("name", NAMES)
def test_longer_sequence_names_the_layer_and_resize(name) -> None:
    layer = build_attention(name, 8, 2, 5)
    x = torch.zeros(2, 6, 8)
    pattern = message(type(layer).__name__, "at most 5 tokens, got a sequence of 6", "resize(6)", "num_tokens=6")
    with pytest.raises(ValueError, match=pattern):
        layer(x, x, x)
    # queries have no operator: their number is not limited
    assert layer(x, x[:, :5], x[:, :5])[0].shape == (2, 6, 8)


@pytest.mark.parametrize("name", NAMES)
def test_bad_masks_raise(name) -> None:
    layer = build_attention(name, 8, 2, 5)
    x = torch.zeros(2, 5, 8)
    with pytest.raises(ValueError, match=message("key_padding_mask must have shape (B, N)=(2, 5), got (2, 4)")):
        layer(x, x, x, key_padding_mask=torch.zeros(2, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match=message("key_padding_mask must be bool", "torch.int64", ".bool()")):
        layer(x, x, x, key_padding_mask=torch.zeros(2, 5, dtype=torch.int64))
    full = torch.tensor([[True] * 5, [False] * 5])
    with pytest.raises(ValueError, match=message("at least one key, got row 0 of 2 fully padded", "drop empty")):
        layer(x, x, x, key_padding_mask=full)


def test_generator_on_another_device_raises_at_the_first_training_pass() -> None:
    layer = toa(generator=torch.Generator("cpu"))
    assert layer.sor is not None
    with pytest.raises(ValueError, match=message("generator must be on the tensors' device meta, got one on cpu")):
        layer.sor.rates(2, torch.device("meta"))


@pytest.mark.parametrize("layer", [SoftmaxAttention, TemporalOperatorAttention])
def test_attention_is_abstract_but_its_layers_are_not(layer) -> None:
    assert issubclass(layer, Attention)
    with pytest.raises(TypeError, match="abstract"):
        Attention(8, 2, 5)  # type: ignore[abstract]
