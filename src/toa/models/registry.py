"""Models by name, with what their authors put around them."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Generic, TypeVar

from toa._registry import Registry
from toa.models.autoformer import Autoformer, AutoformerConfig
from toa.models.base import Backbone, ForecastModel
from toa.models.dlinear import DLinear, DLinearConfig
from toa.models.duet import DUET, DUETConfig
from toa.models.forecaster import Forecaster, ForecasterConfig
from toa.models.informer import Informer, InformerConfig
from toa.models.itransformer import ITransformer, ITransformerConfig
from toa.models.patchtst import PatchTST, PatchTSTConfig
from toa.models.transformer import Transformer, TransformerConfig
from toa.models.tsmixer import TSMixer, TSMixerConfig
from toa.nn import ATTENTIONS, AttentionSpec

ConfigT = TypeVar("ConfigT")

# told by the data and the caller, not by a model's settings
_GIVEN = ("lookback", "horizon", "channels", "num_marks", "attention")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelEntry(Generic[ConfigT]):
    """A named model.

    Attributes:
        config: Its config. Of the fields lookback, horizon, channels, num_marks and attention, which are not settings,
            it has those that the model needs.
        model: The whole model from its config, or the backbone of one.
        published: For a backbone, the settings of the `Forecaster` that it was published in; None for a whole model.
        uses_marks: Whether the model can make use of time marks.
        uses_future_marks: Whether it needs those of the steps to forecast as well.
    """

    config: type[ConfigT]
    model: Callable[[ConfigT], Backbone | ForecastModel]
    published: Callable[[ConfigT], dict[str, object]] | None = None
    uses_marks: bool = False
    uses_future_marks: bool = False

    @property
    def takes_attention(self) -> bool:
        """Whether its attention is chosen by name."""
        return "attention" in _names(self.config)

    def settings(self) -> tuple[str, ...]:
        """Names of what may be set: the model's fields, then those of the forecaster around a backbone."""
        names = _names(self.config) + (() if self.published is None else _names(ForecasterConfig))
        return tuple(name for name in names if name not in _GIVEN)

    def required(self) -> tuple[str, ...]:
        """Those of them that have no default."""
        known = self.settings()
        config: Any = self.config
        return tuple(f.name for f in fields(config) if f.name in known and f.default is MISSING)

    def build(self, given: Mapping[str, object], settings: Mapping[str, object]) -> ForecastModel:
        """The whole model; `given` has sizes of the data and the attention, `settings` what `settings()` names."""
        own = _names(self.config)
        config = self.config(**{key: value for key, value in {**given, **settings}.items() if key in own})
        model = self.model(config)
        if isinstance(model, ForecastModel):
            return model
        assert self.published is not None, "a backbone's entry says what it was published in"
        around = {key: given[key] for key in ("horizon", "channels")} | self.published(config)
        around |= {key: value for key, value in settings.items() if key not in own}
        return Forecaster(model, ForecasterConfig(**around))  # type: ignore[arg-type]


def _names(config: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(config))


def _around_patchtst(config: PatchTSTConfig) -> dict[str, object]:
    if config.style == "official":
        return {"detach_std": True, "head_dropout": 0.0}
    return {"detach_std": False, "head_dropout": config.dropout}


def _around_itransformer(config: ITransformerConfig) -> dict[str, object]:
    return {"detach_std": False, "head_dropout": 0.0}


MODELS: Registry[ModelEntry[Any]] = Registry("model")
MODELS.register("patchtst")(
    ModelEntry(config=PatchTSTConfig, model=PatchTST, published=_around_patchtst, uses_marks=PatchTST.uses_marks)
)
MODELS.register("itransformer")(
    ModelEntry(
        config=ITransformerConfig,
        model=ITransformer,
        published=_around_itransformer,
        uses_marks=ITransformer.uses_marks,
    )
)
MODELS.register("transformer")(
    ModelEntry(config=TransformerConfig, model=Transformer, uses_marks=True, uses_future_marks=True)
)
MODELS.register("dlinear")(ModelEntry(config=DLinearConfig, model=DLinear))
MODELS.register("tsmixer")(ModelEntry(config=TSMixerConfig, model=TSMixer))
MODELS.register("informer")(ModelEntry(config=InformerConfig, model=Informer, uses_marks=True, uses_future_marks=True))
MODELS.register("autoformer")(
    ModelEntry(config=AutoformerConfig, model=Autoformer, uses_marks=True, uses_future_marks=True)
)
MODELS.register("duet")(ModelEntry(config=DUETConfig, model=DUET))


def build_forecaster(
    name: str,
    *,
    lookback: int,
    horizon: int,
    channels: int,
    attention: str | AttentionSpec | None = None,
    num_marks: int = 0,
    settings: Mapping[str, object] | None = None,
) -> ForecastModel:
    """A forecasting model by name.

    Args:
        name: A name of `MODELS`.
        lookback: Length L of the past.
        horizon: Length P of the forecast.
        channels: Number of channels C.
        attention: A name of `toa.nn.ATTENTIONS`, or a spec; None for a model that has none to choose, and only there.
        num_marks: Time features F of each step; 0 for a model that uses none.
        settings: Fields of the model's config and, for a backbone, of `ForecasterConfig`, but for those above. What is
            left out is as the model's authors publish it.

    Raises:
        ValueError: If the model, the attention, a setting or its value is unknown, or sizes do not fit.
    """
    entry = MODELS[name]
    settings = {} if settings is None else settings
    known = entry.settings()
    for key in settings:
        if key not in known:
            raise ValueError(f"unknown setting {key!r} of model {name!r}; known: {', '.join(known)}.")
    for key in entry.required():
        if key not in settings:
            raise ValueError(f"{key} must be set for model {name!r}, which has no default for it, got nothing; set it.")
    if num_marks and not entry.uses_marks:
        raise ValueError(f"num_marks must be 0 for model {name!r}, which uses no marks, got {num_marks}; leave it out.")
    given = {
        "lookback": lookback,
        "horizon": horizon,
        "channels": channels,
        "num_marks": num_marks,
        "attention": AttentionSpec(name=attention) if isinstance(attention, str) else attention,
    }
    check_attention(name, attention)
    return entry.build(given, settings)


def check_attention(name: str, attention: str | AttentionSpec | None) -> None:
    """Refuse an attention for a model that has none to choose, and none for one that has."""
    if attention is not None and not MODELS[name].takes_attention:
        chosen = attention if isinstance(attention, str) else attention.name
        raise ValueError(
            f"attention must be None for model {name!r}, which has none to choose, got {chosen!r}; leave it out."
        )
    if attention is None and MODELS[name].takes_attention:
        raise ValueError(f"attention must be given for model {name!r}, got None; known: {', '.join(ATTENTIONS)}.")
