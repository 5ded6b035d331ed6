"""Every registered model, in every style it has, as the contracts build it."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from toa.models import MODELS, Forecaster, build_forecaster
from toa.nn import ATTENTIONS, AttentionSpec

LOOKBACK, HORIZON, CHANNELS, MARKS = 32, 5, 3, 2
SIZES = {"embed_dim": 8, "num_heads": 2, "num_layers": 2, "ff_dim": 12}
# settings that make a model another one
STYLES: dict[str, tuple[dict[str, Any], ...]] = {"patchtst": ({}, {"style": "tslib"})}
OPTIONS = {"residual_scores": True, "individual": True, "affine": True}


class Case(NamedTuple):
    """A model, one of its styles, and an attention."""

    model: str
    attention: str
    style: dict[str, Any]

    def build(self, *, sor: bool = True, **settings: Any) -> Forecaster:
        takes_sor = self.attention.startswith("toa")
        return build_forecaster(
            self.model,
            lookback=LOOKBACK,
            horizon=HORIZON,
            channels=CHANNELS,
            num_marks=MARKS if MODELS[self.model].uses_marks else 0,
            attention=AttentionSpec(name=self.attention, sor=sor if takes_sor else None),
            settings={**SIZES, **self.style, **settings},
        )

    def inputs(self, batch: int = 4, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor | None]:
        marks = torch.rand(batch, LOOKBACK, MARKS, dtype=dtype) if MODELS[self.model].uses_marks else None
        return torch.randn(batch, LOOKBACK, CHANNELS, dtype=dtype), marks

    def __str__(self) -> str:
        style = ",".join(f"{key}={value}" for key, value in self.style.items())
        return f"{self.model}-{self.attention}" + (f"-{style}" if style else "")


CASES = [Case(model, name, style) for model in MODELS for style in STYLES.get(model, ({},)) for name in ATTENTIONS]
CASES.append(Case("patchtst", "toa-gated", OPTIONS))
