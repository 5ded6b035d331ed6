from typing import Any

import pytest
import torch

from tests.support import message
from toa.models import MODELS, Forecaster, ITransformerConfig, PatchTSTConfig, build_forecaster
from toa.nn import AttentionSpec

SIZES = {"embed_dim": 8, "num_heads": 2, "num_layers": 1, "ff_dim": 8}


def build(name: str = "patchtst", **options: Any) -> Forecaster:
    given: dict[str, Any] = {"lookback": 32, "horizon": 5, "channels": 3, "attention": "softmax", "settings": SIZES}
    model = build_forecaster(name, **given | options)
    assert isinstance(model, Forecaster)
    return model


def test_models_are_listed():
    assert {"patchtst", "itransformer", "transformer", "dlinear", "tsmixer", "duet"} <= set(MODELS)
    assert MODELS["itransformer"].uses_marks
    assert MODELS["transformer"].uses_marks
    assert MODELS["transformer"].uses_future_marks
    assert not MODELS["patchtst"].uses_marks
    assert [MODELS[name].takes_attention for name in ("transformer", "dlinear", "tsmixer")] == [True, False, False]


@pytest.mark.parametrize("name", MODELS)
def test_no_setting_has_two_meanings_and_sizes_of_the_data_are_none(name):
    settings = MODELS[name].settings()
    assert len(set(settings)) == len(settings)
    assert not {"lookback", "horizon", "channels", "num_marks", "attention"} & set(settings)
    if MODELS[name].published is not None:
        assert {"embed_dim", "dropout", "instance_norm", "head_dropout"} <= set(settings)


def test_settings_reach_the_backbone_and_the_forecaster():
    model = build(settings={**SIZES, "patch_len": 8, "stride": 4, "dropout": 0.3, "individual": True})
    assert isinstance(model.backbone.config, PatchTSTConfig)
    assert (model.backbone.config.patch_len, model.backbone.config.dropout) == (8, 0.3)
    assert model.config.individual
    inverted = build("itransformer", num_marks=4, settings={**SIZES, "instance_norm": False})
    assert isinstance(inverted.backbone.config, ITransformerConfig)
    assert (inverted.backbone.config.channels, inverted.backbone.config.num_marks) == (3, 4)
    assert not inverted.config.instance_norm


def test_what_is_left_out_is_as_published():
    official, tslib = (build(settings={**SIZES, "style": style}).config for style in ("official", "tslib"))
    assert (official.detach_std, official.head_dropout) == (True, 0.0)
    assert (tslib.detach_std, tslib.head_dropout) == (False, 0.2)
    assert build(settings={**SIZES, "style": "tslib", "head_dropout": 0.0}).config.head_dropout == 0.0
    inverted = build("itransformer").config
    assert (inverted.detach_std, inverted.head_dropout, inverted.instance_norm) == (False, 0.0, True)


def test_settings_may_be_left_out():
    assert build(settings=None)(torch.randn(1, 32, 3)).shape == (1, 5, 3)


def test_attention_may_be_a_spec():
    model: Any = build(attention=AttentionSpec(name="toa-gated", score_norm="mean", sor=False))
    assert model.backbone.blocks[0].attention.score_norm == "mean"
    assert model.backbone.blocks[0].attention.sor is None


BAD: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("patchtts", {}, ("unknown model 'patchtts'; known: patchtst, itransformer, transformer",)),
    ("patchtst", {"attention": None}, ("attention must be given for model 'patchtst', got None; known: softmax, toa",)),
    ("dlinear", {}, ("attention must be None for model 'dlinear', which has none to choose, got 'softmax'; leave",)),
    ("patchtst", {"attention": "toa"}, ("unknown attention 'toa'; known: softmax, toa-softmax",)),
    (
        "patchtst",
        {"settings": {"d_model": 8}},
        ("unknown setting 'd_model' of model 'patchtst'; known: patch_len, stride, embed_dim", "head_dropout."),
    ),
    ("itransformer", {"settings": {"patch_len": 8}}, ("unknown setting 'patch_len' of model 'itransformer'; known:",)),
    ("itransformer", {"settings": {"channels": 8}}, ("unknown setting 'channels' of model 'itransformer'; known:",)),
    ("patchtst", {"num_marks": 4}, ("num_marks must be 0 for model 'patchtst', which uses no marks, got 4; leave",)),
    ("patchtst", {"lookback": 15}, ("lookback must be at least patch_len=16, got 15; use shorter patches",)),
    ("patchtst", {"channels": 0}, ("channels must be at least 1, got 0.",)),
]


@pytest.mark.parametrize(("name", "options", "parts"), BAD, ids=str)
def test_bad_requests_are_refused(name, options, parts):
    settings = {} if name == "dlinear" else SIZES
    with pytest.raises(ValueError, match=message(*parts)):
        build(name, **{"settings": settings} | options)
