from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support import message
from toa.models import (
    BACKBONES,
    Backbone,
    BackboneForecaster,
    ITransformerConfig,
    PatchTSTConfig,
    backbone_names,
    build_classifier,
    build_forecaster,
    build_reconstructor,
    register_backbone,
)
from toa.nn import AttentionSpec

SIZES = {"embed_dim": 8, "num_heads": 2, "num_layers": 1, "ff_dim": 8}
GIVEN = {"lookback", "horizon", "channels", "num_marks", "num_classes", "attention"}


def build(name: str = "patchtst", **options: Any) -> BackboneForecaster:
    given: dict[str, Any] = {"lookback": 32, "horizon": 5, "channels": 3, "attention": "softmax", "settings": SIZES}
    model = build_forecaster(name, **given | options)
    assert isinstance(model, BackboneForecaster)
    return model


def test_backbones_are_listed_by_task():
    every = {"autoformer", "dlinear", "duet", "informer", "itransformer", "patchtst", "transformer", "tsmixer"}
    every |= {"two-axis"}
    assert set(BACKBONES) == set(backbone_names("forecast")) == every
    for task in ("reconstruct", "classify"):
        assert set(backbone_names(task)) == {"patchtst", "itransformer", "transformer", "two-axis"}
    attention = {name for name in BACKBONES if BACKBONES[name].takes_attention}
    assert attention == {"patchtst", "itransformer", "transformer", "duet", "two-axis"}


@pytest.mark.parametrize(("name", "task"), [(name, task) for name in BACKBONES for task in BACKBONES[name].tasks])
def test_settings_are_unique_and_exclude_what_the_data_determine(name, task):
    settings = BACKBONES[name].settings(task)
    assert len(set(settings)) == len(settings)
    assert not GIVEN & set(settings)
    if issubclass(BACKBONES[name].tasks[task].network, Backbone):
        assert {"embed_dim", "dropout", "instance_norm", "head_dropout"} <= set(settings)


@dataclass(frozen=True, kw_only=True)
class MeanConfig:
    lookback: int
    embed_dim: int = 4


class Mean(Backbone):
    """One token per channel: a linear map of its mean."""

    def __init__(self, config: MeanConfig) -> None:
        super().__init__(lookback=config.lookback, embed_dim=config.embed_dim, num_tokens=1)
        self.embed = nn.Linear(1, config.embed_dim)

    def _encode(self, series: Tensor, marks: Tensor | None, padding: Tensor | None) -> Tensor:
        return self.embed(series.mean(1)[..., None, None])


def test_one_decorator_makes_a_backbone_serve_every_task(monkeypatch):
    # the entry is removed again after the test
    monkeypatch.setitem(BACKBONES, "mean", None)
    del BACKBONES["mean"]
    register_backbone("mean", MeanConfig, "forecast", "reconstruct", "classify")(Mean)
    series = torch.randn(2, 6, 3)
    settings = {"embed_dim": 2, "instance_norm": False}
    assert build_forecaster("mean", lookback=6, horizon=4, channels=3, settings=settings)(series).shape == (2, 4, 3)
    assert build_reconstructor("mean", lookback=6, channels=3, settings=settings)(series).shape == (2, 6, 3)
    logits = build_classifier("mean", lookback=6, channels=3, num_classes=5, settings=settings)(series)
    assert logits.shape == (2, 5)
    with pytest.raises(ValueError, match=message("'mean' is already registered for task 'classify'")):
        register_backbone("mean", MeanConfig, "classify")(Mean)
    with pytest.raises(ValueError, match=message("unknown task 'sort'; known: forecast, reconstruct, classify.")):
        register_backbone("mean", MeanConfig, "sort")(Mean)  # type: ignore[arg-type]


def test_settings_reach_the_backbone_and_the_head():
    model = build(settings={**SIZES, "patch_len": 8, "stride": 4, "dropout": 0.3, "individual": True})
    assert isinstance(model.backbone.config, PatchTSTConfig)
    assert (model.backbone.config.patch_len, model.backbone.config.dropout) == (8, 0.3)
    assert model.config.individual
    inverted = build("itransformer", num_marks=4, settings={**SIZES, "instance_norm": False})
    assert isinstance(inverted.backbone.config, ITransformerConfig)
    assert (inverted.backbone.config.channels, inverted.backbone.config.num_marks) == (3, 4)
    assert not inverted.config.instance_norm


def test_default_settings_are_the_published_ones():
    official, tslib = (build(settings={**SIZES, "style": style}).config for style in ("official", "tslib"))
    assert (official.detach_std, official.head_dropout) == (True, 0.0)
    assert (tslib.detach_std, tslib.head_dropout) == (False, 0.2)
    assert build(settings={**SIZES, "style": "tslib", "head_dropout": 0.0}).config.head_dropout == 0.0
    inverted = build("itransformer").config
    assert (inverted.detach_std, inverted.head_dropout, inverted.instance_norm) == (False, 0.0, True)
    assert build(settings=None)(torch.randn(1, 32, 3)).shape == (1, 5, 3)


def test_attention_may_be_a_spec():
    model: Any = build(attention=AttentionSpec(name="toa-gated", score_norm="mean", sor=False))
    assert model.backbone.blocks[0].attention.score_norm == "mean"
    assert model.backbone.blocks[0].attention.sor is None


BAD: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("patchtts", {}, ("backbone 'patchtts'", "patchtst")),
    ("patchtst", {"attention": None}, ("attention must be given", "'patchtst'", "None", "toa-gated")),
    ("dlinear", {}, ("attention must be None", "'dlinear'", "'softmax'")),
    ("patchtst", {"attention": "toa"}, ("attention 'toa'", "toa-softmax")),
    ("patchtst", {"settings": {"d_model": 8}}, ("setting 'd_model'", "'patchtst'", "patch_len", "head_dropout")),
    ("itransformer", {"settings": {"patch_len": 8}}, ("setting 'patch_len'", "'itransformer'")),
    ("itransformer", {"settings": {"channels": 8}}, ("setting 'channels'", "'itransformer'")),
    ("patchtst", {"num_marks": 4}, ("num_marks must be 0", "'patchtst'", "4")),
    ("patchtst", {"lookback": 15}, ("lookback must be at least patch_len=16", "15")),
    ("patchtst", {"channels": 0}, ("channels must be at least 1", "0")),
    ("transformer", {"settings": {}}, ("label_len must be set", "'transformer'")),
    ("informer", {"settings": {"label_len": 12}}, ("attention must be None", "'informer'", "'softmax'")),
    ("autoformer", {"attention": None, "settings": {}}, ("label_len must be set", "'autoformer'")),
]


@pytest.mark.parametrize(("name", "options", "parts"), BAD, ids=str)
def test_bad_requests_raise(name, options, parts):
    settings = {} if name == "dlinear" else SIZES
    with pytest.raises(ValueError, match=message(*parts)):
        build(name, **{"settings": settings} | options)
