"""Reconstruction models by name: a series in, the same series out, as well as the model knows it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor, nn

from toa._registry import Registry
from toa.models.base import check_series
from toa.models.point_encoder import PointEncoder, PointEncoderConfig
from toa.models.registry import MODELS, build_forecaster
from toa.nn import AttentionSpec


class Reconstructor(nn.Module):
    """Series (B, L, C) to a series (B, L, C).

    With a backbone it is instance norm, tokens, a linear map from each channel's tokens to L values, and back; with a
    `PointEncoder` it is that alone, one output a token.

    Compared, softmax attention, outputs and gradients, with PatchTST, iTransformer and Transformer for anomaly
    detection in thuml/Time-Series-Library at 4e938a1767106324dd753b2a44832bf870a0252e.

    Args:
        body: From series to series.
        lookback: Length L.
        channels: The number of channels C, if the model is bound to one.
    """

    def __init__(self, body: nn.Module, *, lookback: int, channels: int | None = None) -> None:
        super().__init__()
        self.body = body
        self.lookback = lookback
        self.channels = channels

    def forward(self, series: Tensor) -> Tensor:
        """Reconstruct a series."""
        check_series(self, series)
        return self.body(series)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReconstructorEntry:
    """A named reconstruction model.

    Attributes:
        settings: Names of what may be set.
        published: What is not set, where it departs from the defaults of the model's config.
        build: The model from lookback, channels, attention and settings.
    """

    settings: Callable[[], tuple[str, ...]]
    published: Mapping[str, object]
    build: Callable[[int, int, AttentionSpec, Mapping[str, object]], Reconstructor]


def _of_backbone(name: str) -> ReconstructorEntry:
    """A backbone whose forecast has the length of the past, and is trained to be it."""

    def build(lookback: int, channels: int, attention: AttentionSpec, settings: Mapping[str, object]) -> Reconstructor:
        body = build_forecaster(
            name, lookback=lookback, horizon=lookback, channels=channels, attention=attention, settings=settings
        )
        return Reconstructor(body, lookback=lookback, channels=body.channels)

    published = {"style": "tslib"} if name == "patchtst" else {}
    return ReconstructorEntry(settings=MODELS[name].settings, published=published, build=build)


def _point_encoder() -> ReconstructorEntry:
    def settings() -> tuple[str, ...]:
        names = (field.name for field in fields(PointEncoderConfig))
        return tuple(name for name in names if name not in ("num_tokens", "channels", "attention"))

    def build(lookback: int, channels: int, attention: AttentionSpec, settings: Mapping[str, Any]) -> Reconstructor:
        config = PointEncoderConfig(num_tokens=lookback, channels=channels, attention=attention, **settings)
        return Reconstructor(PointEncoder(config), lookback=lookback, channels=channels)

    published = {"values": "conv", "positions": "sinusoidal", "norm_first": False}
    return ReconstructorEntry(settings=settings, published=published, build=build)


RECONSTRUCTORS: Registry[ReconstructorEntry] = Registry("reconstruction model")
RECONSTRUCTORS.register("patchtst")(_of_backbone("patchtst"))
RECONSTRUCTORS.register("itransformer")(_of_backbone("itransformer"))
RECONSTRUCTORS.register("transformer")(_point_encoder())


def build_reconstructor(
    name: str,
    *,
    lookback: int,
    channels: int,
    attention: str | AttentionSpec,
    settings: Mapping[str, object] | None = None,
) -> Reconstructor:
    """A reconstruction model by name.

    Args:
        name: A name of `RECONSTRUCTORS`.
        lookback: Length L of the series.
        channels: Number of channels C.
        attention: A name of `toa.nn.ATTENTIONS`, or a spec.
        settings: Sizes and parts. What is left out is as Time-Series-Library has it for this task, sizes apart.

    Raises:
        ValueError: If the model, the attention, a setting or its value is unknown, or sizes do not fit.
    """
    entry = RECONSTRUCTORS[name]
    settings = {} if settings is None else settings
    known = entry.settings()
    for key in settings:
        if key not in known:
            raise ValueError(f"unknown setting {key!r} of model {name!r}; known: {', '.join(known)}.")
    if isinstance(attention, str):
        attention = AttentionSpec(name=attention)
    return entry.build(lookback, channels, attention, {**entry.published, **settings})
