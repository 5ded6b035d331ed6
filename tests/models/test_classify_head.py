from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.support import assert_near, message, scatter_parameters
from toa.models import (
    ClassifyHeadConfig,
    ClassifyModel,
    PatchTSTConfig,
    PointBackbone,
    PointEncoder,
    PointEncoderConfig,
    backbone_names,
    build_classifier,
)
from toa.nn import AttentionSpec, mixing_operators

SIZES = {"embed_dim": 8, "num_heads": 2, "num_layers": 1, "ff_dim": 8}


def build(name: str = "patchtst", **options: Any) -> ClassifyModel:
    given: dict[str, Any] = {"lookback": 32, "channels": 3, "num_classes": 4, "attention": "softmax", "settings": SIZES}
    return build_classifier(name, **given | options)


def test_default_settings_are_those_of_time_series_library():
    names = ("patchtst", "itransformer", "transformer")
    patched, inverted, point = (build(name, settings={**SIZES, "dropout": 0.3}) for name in names)
    assert (patched.config.instance_norm, patched.config.gelu, patched.config.head_dropout) == (True, False, 0.3)
    for other in (inverted, point):
        assert (other.config.instance_norm, other.config.gelu, other.config.head_dropout) == (False, True, 0.3)
    assert isinstance(patched.backbone.config, PatchTSTConfig)
    assert patched.backbone.config.style == "tslib"
    config = point.backbone.config
    assert isinstance(config, PointEncoderConfig)
    assert (config.values, config.positions, config.norm_first) == ("conv", "sinusoidal", False)
    assert build(settings={**SIZES, "head_dropout": 0.0, "gelu": True}).config.gelu


@pytest.mark.parametrize("name", backbone_names("classify"))
def test_logits_are_a_linear_map_of_all_tokens(name):
    model = scatter_parameters(build(name, attention="toa-relu").double().eval(), 0.3)
    assert isinstance(model, ClassifyModel)
    series = torch.randn(2, 32, 3, dtype=torch.float64) * 2.0 + 1.0
    if model.config.instance_norm:
        tokens = model.backbone(
            (series - series.mean(1, keepdim=True)) / (series.var(1, correction=0) + 1e-5).sqrt()[:, None]
        )
    else:
        tokens = F.gelu(model.backbone(series))
    groups = 1 if name == "transformer" else 3
    assert tokens.shape == (2, groups, model.backbone.num_tokens, 8)
    assert_near(model(series), tokens.reshape(2, -1) @ model.head.weight.T + model.head.bias)


@pytest.mark.parametrize("name", backbone_names("classify"))
def test_a_pooled_head_reads_the_mean_of_the_real_tokens(name):
    model = build(name, settings={**SIZES, "pooled": True, "instance_norm": False}).double().eval()
    groups = 1 if model.backbone.mixes_channels else 3
    assert model.head.weight.shape == (4, groups * 8)
    series = torch.randn(2, 32, 3, dtype=torch.float64)
    mask = torch.ones(2, 32, dtype=torch.bool)
    mask[1, 11:] = False
    tokens = model.backbone(series, mask=mask)
    tokens = F.gelu(tokens) if model.config.gelu else tokens
    valid = model.backbone.valid_tokens(mask)
    valid = torch.ones(2, tokens.shape[2], dtype=torch.bool) if valid is None else valid
    means = [one[:, real].mean(1) for one, real in zip(tokens, valid, strict=True)]
    assert_near(model(series, mask), torch.stack(means).flatten(1) @ model.head.weight.T + model.head.bias)


def test_a_patch_is_valid_if_a_real_step_is_in_it():
    backbone: Any = build(settings={**SIZES, "patch_len": 8, "stride": 4}).backbone
    mask = torch.arange(32) < torch.tensor([1, 4, 5, 31, 32])[:, None]
    valid = backbone.valid_tokens(mask)
    # patches start at 0, 4, ..., 28; the last holds steps 28 to 31 and four appended values
    assert valid.sum(1).tolist() == [1, 1, 2, 8, 8]
    assert backbone.num_tokens == 8


def test_a_patch_with_the_end_of_a_series_continues_with_its_last_value():
    model = scatter_parameters(build(settings={**SIZES, "patch_len": 8, "stride": 4}).double().eval())
    series = torch.randn(1, 32, 3, dtype=torch.float64)
    prolonged = series.clone()
    prolonged[:, 10:] = series[:, 9:10]
    mask = torch.arange(32)[None] < 10
    assert isinstance(model, ClassifyModel)
    backbone: Any = model.backbone
    got = backbone(series, mask=mask)
    # the three patches that start before step 10, without the others
    x = backbone.embed(prolonged)[:, :, :3].flatten(0, 1)
    expected = backbone.norm(backbone.blocks(x)).unflatten(0, (1, 3))
    assert_near(got[:, :, :3], expected)


def test_instance_norm_is_over_real_steps():
    model = scatter_parameters(build(settings={**SIZES, "patch_len": 8, "stride": 4}).double().eval())
    series = torch.randn(2, 32, 3, dtype=torch.float64)
    mask = torch.arange(32).expand(2, 32) < 11
    assert_near(model(4.0 * series + 7.0, mask), model(series, mask), 1e-4)


def test_operators_act_between_real_tokens_only():
    for name in ("patchtst", "transformer"):
        backbone: Any = scatter_parameters(build(name, attention="toa-gated").eval(), 0.3).backbone
        mask = torch.arange(32).expand(2, 32) < 9
        found = mixing_operators(backbone, partial(backbone, torch.randn(2, 32, 3), mask=mask))
        operators = list(found.values())
        padding = ~backbone.valid_tokens(mask)[0]
        assert padding.any()
        assert all((operator[..., padding] == 0).all() for operator in operators)
        assert all((operator[..., ~padding] != 0).any() for operator in operators)


def test_point_backbone_is_the_point_encoder_without_its_head():
    config = PointEncoderConfig(lookback=16, channels=3, attention=AttentionSpec(name="toa-relu"))
    torch.manual_seed(1)
    whole = PointEncoder(config).eval()
    torch.manual_seed(1)
    backbone = PointBackbone(config).eval()
    series = torch.randn(2, 16, 3)
    assert torch.equal(whole.head(backbone(series)[:, 0]), whole(series))


def test_a_backbone_for_another_number_of_channels_raises():
    with pytest.raises(ValueError, match=message("channels must be 3", "got 4")):
        ClassifyModel(build("itransformer").backbone, ClassifyHeadConfig(num_classes=2, channels=4))


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("dlinear", {}, "unknown backbone 'dlinear'; known: itransformer, patchtst, transformer, two-axis."),
    ("patchtst", {"attention": "toa"}, "unknown attention 'toa'; known: softmax, toa-softmax"),
    ("patchtst", {"num_classes": 1}, "num_classes must be at least 2, got 1."),
    ("patchtst", {"channels": 0}, "channels must be at least 1, got 0."),
    ("patchtst", {"settings": {"d_model": 8}}, "unknown setting 'd_model' of model 'patchtst'; known: patch_len"),
    ("transformer", {"settings": {"num_tokens": 8}}, "unknown setting 'num_tokens' of model 'transformer'; known:"),
    ("itransformer", {"settings": {"head_dropout": 1.0}}, "head_dropout must lie in [0, 1), got 1.0."),
]


@pytest.mark.parametrize(("name", "options", "text"), BAD, ids=str)
def test_bad_requests_raise(name, options, text):
    with pytest.raises(ValueError, match=message(text)):
        build(name, **options)
