from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import assert_near, message, scatter_parameters
from toa.models import ITransformer, ITransformerConfig
from toa.nn import ATTENTIONS, AttentionSpec, mixing_operators


def build(name: str = "softmax", **settings: Any) -> ITransformer:
    sizes: dict[str, Any] = {"embed_dim": 8, "num_heads": 2, "num_layers": 2, "ff_dim": 12, **settings}
    return ITransformer(
        ITransformerConfig(**({"lookback": 10, "channels": 3} | sizes), attention=AttentionSpec(name=name))
    )


def split(x: Tensor) -> Tensor:
    return x.unflatten(-1, (2, 4)).transpose(1, 2)


@pytest.mark.parametrize("num_marks", [0, 4])
def test_softmax_model_equals_its_formula(num_marks):
    model = build(num_marks=num_marks, dropout=0.0).double()
    scatter_parameters(model)
    series = torch.randn(2, 10, 3, dtype=torch.float64)
    marks = torch.randn(2, 10, num_marks, dtype=torch.float64) if num_marks else None
    x = model.embed.projection((series if marks is None else torch.cat((series, marks), 2)).mT)
    block: Any
    for block in model.blocks:
        attention = block.attention
        q, k, v = (split(p(x)) for p in (attention.q_proj, attention.k_proj, attention.v_proj))
        mixed = ((q @ k.mT / 2.0).softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = block.attention_norm(x + attention.out_proj(mixed))
        x = block.ff_norm(x + block.ff(x))
    assert_near(model(series, marks), model.norm(x)[:, :3, None])


@pytest.mark.parametrize("name", ATTENTIONS)
def test_marks_take_part_in_attention_but_are_not_returned(name):
    model = build(name, num_marks=4).eval()
    series, marks = torch.randn(2, 10, 3), torch.randn(2, 10, 4)
    tokens = model(series, marks)
    operators = mixing_operators(model, lambda: model(series, marks))
    assert tokens.shape == (2, 3, 1, 8)
    assert [tuple(o.shape) for o in operators.values()] == [(2, 2, 7, 7)] * 2
    assert not torch.allclose(tokens, model(series, marks + torch.randn(2, 10, 4)))


def test_every_dropout_is_the_same():
    model: Any = build(dropout=0.3)
    assert model.embed.dropout.p == 0.3
    assert [(b.attention.dropout, b.attention_dropout.p, b.ff[2].p, b.ff[4].p) for b in model.blocks] == [
        (0.3,) * 4
    ] * 2


def test_other_channels_raise():
    text = "series must have channels=3, got 5: shape (2, 10, 5); build the model with channels=5."
    with pytest.raises(ValueError, match=message(text)):
        build()(torch.zeros(2, 10, 5))


def test_missing_unexpected_and_misshapen_marks_raise():
    series, marks = torch.zeros(2, 10, 3), torch.zeros(2, 10, 4)
    with pytest.raises(
        ValueError,
        match=message("marks must be given to a model with num_marks=4, got None", "(B, L, 4)", "with num_marks=0."),
    ):
        build(num_marks=4)(series)
    with pytest.raises(
        ValueError,
        match=message("marks must be None", "num_marks=0, got shape (2, 10, 4); leave", "with num_marks=4."),
    ):
        build()(series, marks)
    with pytest.raises(ValueError, match=message("marks must have shape (B, L, F)=(2, 10, 5), got (2, 10, 4)")):
        build(num_marks=5)(series, marks)
