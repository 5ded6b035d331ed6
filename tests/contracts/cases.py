"""Every registered model in each of its styles, as the contract tests build it."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from toa.models import BACKBONES, Backbone, BackboneForecaster, ForecastModel, backbone_names, build_forecaster
from toa.nn import ATTENTIONS, AttentionSpec

# steps that a model reads
LOOKBACK = 32
# steps that it forecasts
HORIZON = 5
# number of channels
CHANNELS = 3
# number of time marks
MARKS = 2
# a model gets the sizes that its config has
SIZES = {"embed_dim": 8, "num_heads": 2, "num_layers": 2, "ff_dim": 12}
# settings that change what a model computes, or that it requires
STYLES: dict[str, tuple[dict[str, Any], ...]] = {
    "patchtst": ({}, {"style": "tslib"}),
    "transformer": ({"label_len": 16},),
    "dlinear": ({}, {"individual": True}),
    "informer": ({"label_len": 16},),
    "two-axis": ({"patch_len": 8, "stride": 4}, {"mix_channels": False, "time_attention": "same"}),
    "autoformer": ({"label_len": 16, "moving_average": 5},),
}
# settings that an attention requires: this one has no causal form
ASKED: dict[tuple[str, str | None], dict[str, Any]] = {("transformer", "hyperglu"): {"causal": False}}
# settings that switch off a model's own randomness in training, as `sor=False` does for the operators
QUIET: dict[str, dict[str, Any]] = {
    "duet": {"noisy_gating": False, "mask_sampling": "never", "head_dropout": 0.0},
    "two-axis": {"channel_dropout": 0.0},
}
OPTIONS = {"residual_scores": True, "individual": True, "affine": True}


def with_one_attention(cases: list[Any]) -> list[Any]:
    """All cases as parameters; those of a model with a second attention are slow, for claims about models alone."""
    return [
        pytest.param(case, marks=() if case.attention in (None, "toa-gated") else pytest.mark.slow, id=str(case))
        for case in cases
    ]


def with_two_attentions(cases: list[Any]) -> list[Any]:
    """All cases as parameters; quick ones are every model with two attentions, and one model with every attention."""
    quick = (None, "softmax", "toa-gated")
    return [
        pytest.param(
            case, marks=() if case.attention in quick or case.model == "patchtst" else pytest.mark.slow, id=str(case)
        )
        for case in cases
    ]


Inputs = tuple[Tensor, Tensor | None, Tensor | None]


class Case(NamedTuple):
    """A model, one of its styles, and an attention, or None if the model has no choice of attention."""

    model: str
    attention: str | None
    style: dict[str, Any]

    def build(self, *, sor: bool = True, **settings: Any) -> ForecastModel:
        known = BACKBONES[self.model].settings("forecast")
        common = {key: value for key, value in {**SIZES, **settings}.items() if key in known}
        model = build_forecaster(
            self.model,
            lookback=LOOKBACK,
            horizon=HORIZON,
            channels=CHANNELS,
            num_marks=MARKS if BACKBONES[self.model].tasks["forecast"].network.uses_marks else 0,
            attention=None
            if self.attention is None
            else AttentionSpec(name=self.attention, sor=sor if self.takes_sor else None),
            settings={**common, **({} if sor else QUIET.get(self.model, {})), **self.style},
        )
        if isinstance(model, BackboneForecaster) and model.shortcut is not None:
            # a head that starts at zero would hide the backbone
            model.head.reset_parameters()
        return model

    def backbone(self) -> Backbone:
        backbone: Any = self.build().eval().backbone
        return backbone

    def inputs(self, batch: int = 4, dtype: torch.dtype = torch.float32) -> Inputs:
        series = torch.randn(batch, LOOKBACK, CHANNELS, dtype=dtype)
        if not BACKBONES[self.model].tasks["forecast"].network.uses_marks:
            return series, None, None
        marks = torch.rand(batch, LOOKBACK + HORIZON, MARKS, dtype=dtype)
        return series, marks[:, :LOOKBACK], marks[:, LOOKBACK:]

    @property
    def takes_sor(self) -> bool:
        return self.attention is not None and self.attention.startswith("toa")

    @property
    def has_dropout(self) -> bool:
        return "dropout" in BACKBONES[self.model].settings("forecast")

    def __str__(self) -> str:
        style = ",".join(f"{key}={value}" for key, value in self.style.items())
        return "-".join(part for part in (self.model, self.attention, style) if part)


CASES = [
    Case(model, name, {**style, **ASKED.get((model, name), {})})
    for model, entry in ((model, BACKBONES[model]) for model in backbone_names("forecast"))
    for style in STYLES.get(model, ({},))
    for name in (ATTENTIONS if entry.takes_attention else (None,))
]
CASES.append(Case("patchtst", "toa-gated", OPTIONS))
# those that are a backbone and a head
BACKBONE_CASES = [case for case in CASES if issubclass(BACKBONES[case.model].tasks["forecast"].network, Backbone)]
