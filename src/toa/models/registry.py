"""Models by name, with what their authors put around them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

from toa._registry import Registry
from toa.models.base import Backbone
from toa.models.forecaster import Forecaster, ForecasterConfig
from toa.models.itransformer import ITransformer, ITransformerConfig
from toa.models.patchtst import PatchTST, PatchTSTConfig
from toa.nn import AttentionSpec

ConfigT = TypeVar("ConfigT")

# told by the data and the caller, not by a model's settings
_GIVEN = ("lookback", "horizon", "channels", "num_marks", "attention")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelEntry(Generic[ConfigT]):
    """A named model: its config, its backbone, and the settings of the `Forecaster` that it was published in."""

    config: type[ConfigT]
    backbone: Callable[[ConfigT], Backbone]
    published: Callable[[ConfigT], dict[str, object]]
    uses_marks: bool

    def settings(self) -> tuple[str, ...]:
        """Names of what may be set: the backbone's fields, then the forecaster's."""
        names = [f.name for kind in (self.config, ForecasterConfig) for f in fields(kind)]  # type: ignore[arg-type]
        return tuple(name for name in names if name not in _GIVEN)


def _around_patchtst(config: PatchTSTConfig) -> dict[str, object]:
    if config.style == "official":
        return {"detach_std": True, "head_dropout": 0.0}
    return {"detach_std": False, "head_dropout": config.dropout}


def _around_itransformer(config: ITransformerConfig) -> dict[str, object]:
    return {"detach_std": False, "head_dropout": 0.0}


MODELS: Registry[ModelEntry[Any]] = Registry("model")
MODELS.register("patchtst")(
    ModelEntry(config=PatchTSTConfig, backbone=PatchTST, published=_around_patchtst, uses_marks=PatchTST.uses_marks)
)
MODELS.register("itransformer")(
    ModelEntry(
        config=ITransformerConfig,
        backbone=ITransformer,
        published=_around_itransformer,
        uses_marks=ITransformer.uses_marks,
    )
)


def build_forecaster(
    name: str,
    *,
    lookback: int,
    horizon: int,
    channels: int,
    attention: str | AttentionSpec,
    num_marks: int = 0,
    settings: Mapping[str, object] | None = None,
) -> Forecaster:
    """A forecaster by the name of its model.

    Args:
        name: A name of `MODELS`.
        lookback: Length L of the past.
        horizon: Length P of the forecast.
        channels: Number of channels C.
        attention: A name of `toa.nn.ATTENTIONS`, or a spec.
        num_marks: Time features F that come with the past; 0 for a model that uses none.
        settings: Fields of the model's config and of `ForecasterConfig`, but for those above. What is left out is as
            the model's authors publish it.

    Raises:
        ValueError: If the model, the attention, a setting or its value is unknown, or sizes do not fit.
    """
    entry = MODELS[name]
    settings = {} if settings is None else settings
    known = entry.settings()
    for key in settings:
        if key not in known:
            raise ValueError(f"unknown setting {key!r} of model {name!r}; known: {', '.join(known)}.")
    if num_marks and not entry.uses_marks:
        raise ValueError(f"num_marks must be 0 for model {name!r}, which uses no marks, got {num_marks}; leave it out.")
    given = {
        "lookback": lookback,
        "channels": channels,
        "num_marks": num_marks,
        "attention": AttentionSpec(name=attention) if isinstance(attention, str) else attention,
    }
    own = {f.name for f in fields(entry.config)}
    inner = {key: value for key, value in (given | dict(settings)).items() if key in own}
    config = entry.config(**inner)
    outer = entry.published(config) | {key: value for key, value in settings.items() if key not in own}
    return Forecaster(
        entry.backbone(config),
        ForecasterConfig(horizon=horizon, channels=channels, **outer),  # type: ignore[arg-type]
    )
