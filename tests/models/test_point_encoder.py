from typing import Any

import pytest
import torch

from tests.support import message
from toa.models import PointEncoder, PointEncoderConfig
from toa.nn import ATTENTIONS, AttentionSpec


def build(name: str = "toa-gated", **sizes: Any) -> PointEncoder:
    return PointEncoder(PointEncoderConfig(lookback=12, attention=AttentionSpec(name=name), embed_dim=8, **sizes))


@pytest.mark.parametrize("name", ATTENTIONS)
def test_every_attention_has_outputs_gradients_and_a_state_dict(name):
    model = build(name)
    series = torch.randn(3, 12, 1)
    out = model(series)
    assert out.shape == series.shape
    out.square().mean().backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
    model.eval()
    assert torch.equal(model(series), model(series))
    other = build(name).eval()
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(series), model(series))


def test_shorter_series_are_accepted():
    assert build()(torch.randn(2, 7, 1)).shape == (2, 7, 1)


def test_mapping_is_blocks_between_embedding_and_head():
    model = build(values="conv", positions="sinusoidal", norm_first=False).eval()
    series = torch.randn(2, 12, 1)
    assert "embed.position" not in model.state_dict()
    assert torch.equal(model(series), model.head(model.norm(model.blocks(model.embed(series)))))


def test_wrong_channels_raise():
    with pytest.raises(ValueError, match=message("series", "(B, L, C)", "1", "(2, 12, 3)")):
        build()(torch.randn(2, 12, 3))


def test_longer_series_raise():
    with pytest.raises(ValueError, match=message("series", "num_tokens=12", "got 20", "cut it")):
        build()(torch.randn(2, 20, 1))
