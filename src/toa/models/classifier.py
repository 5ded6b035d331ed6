"""Classifiers by name: a series, padded where it is shorter than others, to the logits of its class."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from toa._checks import check_at_least, check_fraction
from toa._registry import Registry
from toa.models.base import Backbone, check_mask, check_sizes, check_types
from toa.models.itransformer import ITransformer, ITransformerConfig
from toa.models.patchtst import PatchTST, PatchTSTConfig
from toa.models.point_encoder import PointBackbone, PointEncoderConfig
from toa.nn import AttentionSpec, Dropout, Linear, ReversibleInstanceNorm

# told by the data and the caller, not by a model's settings
_GIVEN = ("lookback", "num_tokens", "channels", "num_marks", "attention", "num_classes")


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassifierConfig:
    """What a `Classifier` puts around its backbone.

    Attributes:
        num_classes: Number of classes K.
        channels: Number of channels C.
        instance_norm: Whether each series is normalised over its real steps before.
        gelu: Whether tokens pass a GELU before the head.
        head_dropout: Dropout on the tokens before the head.
    """

    num_classes: int
    channels: int
    instance_norm: bool = False
    gelu: bool = True
    head_dropout: float = 0.0

    def __post_init__(self) -> None:
        check_types(self)
        check_sizes(self, "channels")
        check_at_least("num_classes", self.num_classes, 2)
        check_fraction("head_dropout", self.head_dropout)


class Classifier(nn.Module):
    """Series (B, L, C) and a mask (B, L) to logits (B, K): backbone, dropout, all tokens flattened, linear.

    A shorter series is padded at its end to L steps, which the mask marks as not real. Padding is never read: instance
    norm is over real steps, tokens of padding alone are no keys and enter the head as zeros. A patch that the series
    ends in goes on with its last value; for the other backbones padding is zero, the level of standardised data. So
    neither what padding holds nor the rest of the batch changes a prediction.

    Compared, softmax attention, series without padding, outputs and gradients, with PatchTST, iTransformer and
    Transformer for classification in thuml/Time-Series-Library at 4e938a1767106324dd753b2a44832bf870a0252e. Its
    PatchTST flattens (C, E, N), ours (C, N, E); it ignores the mask but for Transformer's head.
    """

    def __init__(self, backbone: Backbone, config: ClassifierConfig) -> None:
        super().__init__()
        if backbone.channels not in (None, config.channels):
            raise ValueError(
                f"channels must be {backbone.channels}, the backbone's, got {config.channels}; build both alike."
            )
        self.config = config
        self.norm = ReversibleInstanceNorm(detach_std=False) if config.instance_norm else None
        self.backbone = backbone
        self.dropout = Dropout(config.head_dropout)
        groups = 1 if backbone.mixes_channels else config.channels
        self.head = Linear(groups * backbone.num_tokens * backbone.embed_dim, config.num_classes)

    @property
    def lookback(self) -> int:
        """Length L of the series."""
        return self.backbone.lookback

    def forward(self, series: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits of each class.

        Args:
            series: (B, L, C), finite where it is real.
            mask: (B, L), True where a step is real, with one in each row at least; None if all are.
        """
        self.check_inputs(series, mask)
        if self.norm is not None:
            series, _ = self.norm.normalise(series, mask)
        tokens = self.backbone(series, mask=mask)  # (B, C or 1, N, E)
        if self.config.gelu:
            tokens = F.gelu(tokens)
        tokens = self.dropout(tokens)
        valid = None if mask is None else self.backbone.valid_tokens(mask)  # (B, N)
        if valid is not None:
            tokens = tokens.masked_fill(~valid[:, None, :, None], 0.0)
        return self.head(tokens.flatten(1))  # (B, K)

    def check_inputs(self, series: Tensor, mask: Tensor | None) -> None:
        """Refuse a series or a mask that the model was not built for."""
        self.backbone.check_inputs(series, None)
        if series.shape[2] != self.config.channels:
            raise ValueError(
                f"series must have channels={self.config.channels}, got {series.shape[2]}: shape "
                f"{tuple(series.shape)}; build the model with channels={series.shape[2]}."
            )
        if mask is not None:
            check_mask(mask, series)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassifierEntry:
    """A named classifier.

    Attributes:
        config: Its backbone's config.
        backbone: The backbone from that.
        length: Which field of the config is the length L.
        around: Fields of `ClassifierConfig` as published; head_dropout is the backbone's dropout.
        published: What of the config is not its default.
    """

    config: type[Any]
    backbone: Callable[[Any], Backbone]
    length: str = "lookback"
    around: Mapping[str, object] = field(default_factory=dict)
    published: Mapping[str, object] = field(default_factory=dict)

    def settings(self) -> tuple[str, ...]:
        """Names of what may be set: the backbone's fields, then those of `ClassifierConfig`."""
        names = [f.name for kind in (self.config, ClassifierConfig) for f in fields(kind)]
        return tuple(dict.fromkeys(name for name in names if name not in _GIVEN))

    def build(
        self,
        *,
        lookback: int,
        channels: int,
        num_classes: int,
        attention: AttentionSpec,
        settings: Mapping[str, object],
    ) -> Classifier:
        """The whole model."""
        own = [f.name for f in fields(self.config)]
        given = {self.length: lookback, "channels": channels, "attention": attention, **self.published, **settings}
        config = self.config(**{key: value for key, value in given.items() if key in own})
        around = {"head_dropout": config.dropout, **self.around}
        around |= {key: value for key, value in settings.items() if key not in own}
        model = self.backbone(config)
        return Classifier(model, ClassifierConfig(num_classes=num_classes, channels=channels, **around))


CLASSIFIERS: Registry[ClassifierEntry] = Registry("classification model")
CLASSIFIERS.register("patchtst")(
    ClassifierEntry(
        config=PatchTSTConfig,
        backbone=PatchTST,
        around={"instance_norm": True, "gelu": False},
        published={"style": "tslib"},
    )
)
CLASSIFIERS.register("itransformer")(ClassifierEntry(config=ITransformerConfig, backbone=ITransformer))
CLASSIFIERS.register("transformer")(
    ClassifierEntry(
        config=PointEncoderConfig,
        backbone=PointBackbone,
        length="num_tokens",
        published={"values": "conv", "positions": "sinusoidal", "norm_first": False},
    )
)


def build_classifier(
    name: str,
    *,
    lookback: int,
    channels: int,
    num_classes: int,
    attention: str | AttentionSpec,
    settings: Mapping[str, object] | None = None,
) -> Classifier:
    """A classifier by name.

    Args:
        name: A name of `CLASSIFIERS`.
        lookback: Length L of the longest series.
        channels: Number of channels C.
        num_classes: Number of classes K.
        attention: A name of `toa.nn.ATTENTIONS`, or a spec.
        settings: Fields of the backbone's config and of `ClassifierConfig`, but for those above. What is left out is as
            Time-Series-Library has it for this task, sizes apart.

    Raises:
        ValueError: If the model, the attention, a setting or its value is unknown, or sizes do not fit.
    """
    entry = CLASSIFIERS[name]
    settings = {} if settings is None else settings
    known = entry.settings()
    for key in settings:
        if key not in known:
            raise ValueError(f"unknown setting {key!r} of model {name!r}; known: {', '.join(known)}.")
    return entry.build(
        lookback=lookback,
        channels=channels,
        num_classes=num_classes,
        attention=AttentionSpec(name=attention) if isinstance(attention, str) else attention,
        settings=settings,
    )
