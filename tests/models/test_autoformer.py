from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import assert_near, message, scatter_parameters
from toa.models import Autoformer, AutoformerConfig
from toa.models.encoder_decoder import SeasonalNorm
from toa.nn import AutoCorrelation

SIZES: dict[str, Any] = {"lookback": 24, "horizon": 6, "channels": 3, "label_len": 10, "num_marks": 2}


def config(**settings: Any) -> AutoformerConfig:
    return AutoformerConfig(**{**SIZES, "embed_dim": 8, "ff_dim": 12, "moving_average": 5, **settings})


def build(**settings: Any) -> Autoformer:
    model = Autoformer(config(**settings)).double()
    scatter_parameters(model)
    return model


def inputs(batch: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    shapes = ((batch, 24, 3), (batch, 24, 2), (batch, 6, 2))
    series, marks, future_marks = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    return series, marks, future_marks


def circular(x: Tensor, taps: Tensor) -> Tensor:
    """A circular convolution over three steps."""
    around = torch.cat((x[:, -1:], x, x[:, :1]), 1)
    steps = [around[:, i : i + x.shape[1]] @ taps[:, :, i].mT for i in range(3)]
    return steps[0] + steps[1] + steps[2]


def split(x: Tensor) -> tuple[Tensor, Tensor]:
    """Seasonal part and trend, the mean over five steps."""
    place = torch.arange(x.shape[1])
    trend = torch.stack([x[:, (place + i).clamp(0, x.shape[1] - 1)] for i in range(-2, 3)]).mean(0)
    return x - trend, trend


def seasonal_norm(norm: torch.nn.LayerNorm, x: Tensor) -> Tensor:
    x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    x = x * norm.weight + norm.bias
    return x - x.mean(1, keepdim=True)


def as_printed(model: Autoformer, series: Tensor, marks: Tensor, future_marks: Tensor) -> Tensor:
    """The model as a formula, except auto-correlation, which has its own tests."""
    block: Any
    enter, enter_decoder = (e.projection.weight for e in (model.embed, model.decoder_embed))
    x = circular(series, enter) + model.embed.marks(marks)  # type: ignore[misc]
    for block in model.blocks:
        x, _ = split(x + block.own(x, x))
        x, _ = split(x + block.ff(x))
    encoded = seasonal_norm(model.encoder_norm, x)
    past = model.config.lookback - model.config.label_len
    seasonal, trend = split(series)
    seasonal = torch.cat((seasonal[:, past:], torch.zeros(len(series), 6, 3, dtype=series.dtype)), 1)
    trend = torch.cat((trend[:, past:], series.mean(1, keepdim=True).repeat(1, 6, 1)), 1)
    known = torch.cat((marks[:, past:], future_marks), 1)
    x = circular(seasonal, enter_decoder) + model.decoder_embed.marks(known)  # type: ignore[misc]
    for block in model.decoder_blocks:
        x, one = split(x + block.own(x, x))
        x, two = split(x + block.cross(x, encoded))
        x, three = split(x + block.ff(x))
        trend = trend + circular(one + two + three, block.trend.weight)
    return (trend + model.projection(seasonal_norm(model.decoder_norm, x)))[:, -6:]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("label_len", [0, 10, 24])
def test_model_equals_its_formula(label_len, training):
    model = build(dropout=0.0, decoder_layers=2, label_len=label_len).train(training)
    batch = inputs()
    assert_near(model(*batch), as_printed(model, *batch))


def test_without_the_encoder_the_forecast_follows_the_level_of_the_past():
    model = build().eval()
    series, marks, future_marks = inputs()
    with torch.no_grad():
        model.embed.projection.weight.zero_()
    # without the embedding, the level is in the trend only
    shifted = model(series + 5.0, marks, future_marks)
    assert_near(shifted, model(series, marks, future_marks) + 5.0)


def test_tokens_have_no_positions_and_the_feed_forward_no_biases():
    model: Any = build()
    assert model.embed.position is None
    assert model.decoder_embed.position is None
    for block in (*model.blocks, *model.decoder_blocks):
        assert block.ff[0].bias is None
        assert block.ff[3].bias is None


def test_seasonal_norm_leaves_no_mean_over_time():
    norm = SeasonalNorm(4).double()
    torch.nn.init.normal_(norm.bias)
    x = torch.randn(2, 7, 4, dtype=torch.float64) + 3.0
    assert_near(norm(x), seasonal_norm(norm, x))
    assert_near(norm(x).mean(1), torch.zeros(2, 4, dtype=torch.float64))


def test_delays_are_per_sample_in_evaluation_and_per_batch_in_training():
    model = build(dropout=0.0, factor=1)
    batch = inputs()
    alone = torch.cat([model.eval()(*(x[i : i + 1] for x in batch)) for i in range(3)])
    assert_near(model(*batch), alone)
    assert not torch.allclose(model.train()(*batch), alone)


def test_factor_and_dropout_reach_every_block():
    model = build(factor=2, dropout=0.3)
    assert [m.factor for m in model.modules() if isinstance(m, AutoCorrelation)] == [2] * 4
    assert {m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)} == {0.3}


def test_a_model_without_marks_needs_none():
    series, _, _ = inputs()
    assert build(num_marks=0)(series).shape == (3, 6, 3)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"moving_average": 4}, "moving_average must be odd, so that it has a middle, got 4; use 5, for instance."),
    ({"moving_average": 25}, "moving_average must be at most the length of the series, 16, got 25; use a shorter"),
]


@pytest.mark.parametrize(("settings", "text"), BAD, ids=str)
def test_bad_settings_raise(settings, text):
    with pytest.raises(ValueError, match=message(text)):
        config(**settings)


def test_missing_marks_raise():
    model = build()
    series, marks, _ = inputs()
    with pytest.raises(ValueError, match=message("marks must be given to a model with num_marks=2, got None")):
        model(series)
    with pytest.raises(ValueError, match=message("future_marks must be given to a model with num_marks=2, got None")):
        model(series, marks)
