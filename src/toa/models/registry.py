"""The registry of backbones, and functions that build a model of a task from a backbone's name.

A new backbone is one file in this folder: its config and its network with the decorator `register_backbone`.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal, TypeVar

from torch import nn

from toa._checks import ArgumentError, check_choice
from toa._registry import Registry
from toa.models.base import Backbone, ForecastModel
from toa.models.heads import BackboneForecaster, ClassifyHeadConfig, ClassifyModel, ForecastHeadConfig, ReconstructModel
from toa.nn import ATTENTIONS, AttentionSpec

ModelKind = Literal["forecast", "reconstruct", "classify"]
Settings = Mapping[str, object]
Network = TypeVar("Network", bound=type[nn.Module])

# configs of the heads that turn a `Backbone` into a model of a task
_HEADS: Mapping[str, type[Any]] = {
    "forecast": ForecastHeadConfig,
    "reconstruct": ForecastHeadConfig,
    "classify": ClassifyHeadConfig,
}
# fields of configs that the data and the caller determine: they are not settings
_GIVEN = ("lookback", "horizon", "channels", "num_marks", "num_classes", "attention")


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskEntry:
    """How a backbone is built for one task.

    Attributes:
        network: A `Backbone`, which gets the head of the task, or a complete network for the task.
        settings: Published settings for this task that differ from the defaults of the config.
        head: Published settings of the head, from the config.
    """

    network: type[Any]
    config: type[Any]
    settings: Settings
    head: Callable[[Any], Settings]


@dataclass(frozen=True, kw_only=True, slots=True)
class BackboneEntry:
    """A named backbone, whether its attention can be chosen, and the tasks that it supports."""

    takes_attention: bool
    tasks: dict[str, TaskEntry] = field(default_factory=dict)

    def settings(self, task: ModelKind) -> tuple[str, ...]:
        """Names of all settings for a task: fields of the config and, for a `Backbone`, of the head's config."""
        entry = self.tasks[task]
        configs = (entry.config, _HEADS[task]) if issubclass(entry.network, Backbone) else (entry.config,)
        names = (name for config in configs for name in config.__dataclass_fields__)
        return tuple(dict.fromkeys(name for name in names if name not in _GIVEN))


BACKBONES: Registry[BackboneEntry] = Registry("backbone")


def backbone_names(task: ModelKind) -> tuple[str, ...]:
    """Names of the backbones that support a task, sorted."""
    return tuple(sorted(name for name in BACKBONES if task in BACKBONES[name].tasks))


def register_backbone(
    name: str,
    config: type[Any],
    *tasks: ModelKind,
    settings: Settings | None = None,
    head: Callable[[Any], Settings] = lambda config: {},
) -> Callable[[Network], Network]:
    """Class decorator that registers a network as the backbone `name` of some tasks.

    Args:
        name: Name in `BACKBONES`. Decorators may add tasks to a registered name.
        config: Config of the network. Its fields lookback, horizon, channels, num_marks and attention, if it has them,
            are filled from the data and the caller. All other fields are settings.
        tasks: Tasks that the network supports. A `Backbone` can support all of them. Without a head, a `ForecastModel`
            supports "forecast", and a `SeriesModel` from series to series supports "reconstruct".
        settings: Published settings for these tasks that differ from the defaults of the config.
        head: Published settings of the head, as a function of the config.
    """

    def register(network: Network) -> Network:
        if name not in BACKBONES:
            BACKBONES.register(name)(BackboneEntry(takes_attention="attention" in config.__dataclass_fields__))
        entries = BACKBONES[name].tasks
        for task in tasks:
            check_choice("task", task, _HEADS)
            if task in entries:
                raise ValueError(f"backbone {name!r} is already registered for task {task!r}; choose another name.")
            entries[task] = TaskEntry(network=network, config=config, settings=settings or {}, head=head)
        return network

    return register


def build_forecaster(
    name: str,
    *,
    lookback: int,
    horizon: int,
    channels: int,
    attention: str | AttentionSpec | None = None,
    num_marks: int = 0,
    settings: Settings | None = None,
) -> ForecastModel:
    """A forecasting model by the name of its backbone.

    Args:
        name: A name of `backbone_names("forecast")`.
        attention: A name of `toa.nn.ATTENTIONS`, or a spec; None for a backbone without a choice of attention.
        num_marks: Number of time features F per step; 0 for a backbone that uses none.
        settings: Names of `BACKBONES[name].settings("forecast")`, with values. Defaults are as published.
    """
    sizes = {"lookback": lookback, "horizon": horizon, "channels": channels, "num_marks": num_marks}
    network, head = _build(name, "forecast", attention, settings, sizes)
    if isinstance(network, ForecastModel):
        return network
    return BackboneForecaster(network, ForecastHeadConfig(horizon=horizon, channels=channels, **head))


def build_reconstructor(
    name: str,
    *,
    lookback: int,
    channels: int,
    attention: str | AttentionSpec | None = None,
    settings: Settings | None = None,
) -> ReconstructModel:
    """A reconstruction model by the name of its backbone; arguments and errors as in `build_forecaster`.

    Default settings, sizes apart, are those of Time-Series-Library for anomaly detection.
    """
    network, head = _build(name, "reconstruct", attention, settings, {"lookback": lookback, "channels": channels})
    if head.get("shortcut"):
        raise ArgumentError("shortcut", "be False in reconstruction", "True", "it would copy the series")
    if isinstance(network, Backbone):
        network = BackboneForecaster(network, ForecastHeadConfig(horizon=lookback, channels=channels, **head))
    return ReconstructModel(network)


def build_classifier(
    name: str,
    *,
    lookback: int,
    channels: int,
    num_classes: int,
    attention: str | AttentionSpec | None = None,
    settings: Settings | None = None,
) -> ClassifyModel:
    """A classification model by the name of its backbone; arguments and errors as in `build_forecaster`.

    Default settings, sizes apart, are those of Time-Series-Library for classification. `lookback` is the length of
    the longest series.
    """
    network, head = _build(name, "classify", attention, settings, {"lookback": lookback, "channels": channels})
    return ClassifyModel(network, ClassifyHeadConfig(num_classes=num_classes, channels=channels, **head))


def complete_settings(
    name: str, task: ModelKind, *, attention: str | AttentionSpec | None = None, settings: Settings | None = None
) -> dict[str, Any]:
    """All settings of a model of a task: those that are given, and the defaults of all others.

    None of them depends on the data; the sizes of the data here only complete the configs.
    """
    sizes = {"lookback": 512, "horizon": 96, "channels": 7, "num_marks": 0}
    network, config, head = _configure(name, task, attention, settings, sizes)
    complete = config.settings()
    if issubclass(network, Backbone):
        known = fields(_HEADS[task])
        complete |= {one.name: one.default for one in known if one.default is not MISSING} | head
    return {key: value for key, value in complete.items() if key not in _GIVEN}


def _build(
    name: str, task: ModelKind, attention: str | AttentionSpec | None, settings: Settings | None, sizes: dict[str, int]
) -> tuple[Any, dict[str, Any]]:
    """The network of a backbone, and the settings of its head."""
    network, config, head = _configure(name, task, attention, settings, sizes)
    return network(config), head


def _configure(
    name: str, task: ModelKind, attention: str | AttentionSpec | None, settings: Settings | None, sizes: dict[str, int]
) -> tuple[type[Any], Any, dict[str, Any]]:
    """The class of a network, its config, and the settings of its head."""
    check_choice("backbone", name, backbone_names(task))
    backbone = BACKBONES[name]
    entry = backbone.tasks[task]
    allowed = backbone.settings(task)
    settings = settings or {}
    for key in settings:
        if key not in allowed:
            raise ValueError(f"unknown setting {key!r} of model {name!r}; known: {', '.join(allowed)}.")
    for required in fields(entry.config):
        if required.name in allowed and required.default is MISSING and required.name not in settings:
            raise ArgumentError(required.name, f"be set for model {name!r}", "no value", "it has no default")
    if sizes.get("num_marks") and not entry.network.uses_marks:
        marks = sizes["num_marks"]
        raise ArgumentError("num_marks", f"be 0 for model {name!r}", marks, "it does not use time marks")
    if attention is None and backbone.takes_attention:
        raise ArgumentError("attention", f"be given for model {name!r}", "None", f"known: {', '.join(ATTENTIONS)}")
    if attention is not None and not backbone.takes_attention:
        chosen = attention if isinstance(attention, str) else attention.name
        raise ArgumentError("attention", f"be None for model {name!r}", repr(chosen), "leave it out")
    spec = AttentionSpec(name=attention) if isinstance(attention, str) else attention
    config_fields = entry.config.__dataclass_fields__
    values = {**sizes, "attention": spec, **entry.settings, **settings}
    config = entry.config(**{key: value for key, value in values.items() if key in config_fields})
    head = {**entry.head(config), **{key: value for key, value in settings.items() if key not in config_fields}}
    return entry.network, config, head
