"""Settings kept as TOML, a folder `settings/TASK` a task and a file a protocol, and how a run is made of them.

A file has a table a backbone. In it, `default` holds for every dataset and a table named after a dataset goes over it;
`like` names a protocol of the same task whose table lies under both. `[attention.NAME]` holds where that attention
departs from its defaults.
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeVar

from toa._checks import check_choice
from toa.experiments.config import build
from toa.nn import ATTENTIONS, AttentionSpec
from toa.tasks.optimization import TrainingConfig

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

Settings = dict[str, Any]

# of a model that has an attention to choose, where none is chosen
DEFAULT_ATTENTION = "toa-gated"


def protocol_names(task: str = "forecast") -> list[str]:
    """Names of all protocols of a task."""
    folder = files("toa.experiments") / "settings" / task
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def about(name: str, task: str = "forecast") -> str:
    """What a protocol is, in a sentence."""
    return str(load(task, name)["about"])


@cache
def load(task: str, protocol: str) -> Settings:
    """The content of a protocol's file."""
    check_choice("protocol", protocol, protocol_names(task))
    path = files("toa.experiments") / "settings" / task / f"{protocol}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def table(task: str, protocol: str, backbone: str) -> Settings:
    """A backbone's table of a protocol, over the one it is like."""
    own = merge({}, load(task, protocol)[backbone])
    like = own.pop("like", None)
    return own if like is None else merge(table(task, like, backbone), own)


def resolve_run(
    kind: type[T],
    task: str,
    protocol: str,
    *,
    backbone: str,
    backbones: Mapping[str, bool],
    attention: str | None,
    names: Mapping[str, Any],
    settings_of: Callable[[Settings], Settings],
    seed: int | None = None,
    changes: Iterable[str] = (),
) -> T:
    """A run of a task, whole, from a protocol's tables and what the caller asks for.

    Args:
        kind: The run's config, with fields protocol, backbone, attention and training, and those of `names`.
        task: A folder of `settings`.
        protocol: A file of that folder.
        backbone: A name of `backbones`, which the protocol must have.
        backbones: Every backbone of the task, and whether its attention is chosen by name.
        attention: A name of `toa.nn.ATTENTIONS`; None is the default, or that there is none to choose.
        names: Fields that say what is run, such as the dataset; they go over the tables.
        settings_of: From the backbone's table to the settings of this dataset.
        seed: The protocol's if None.
        changes: Settings to change, as "key=value".

    Raises:
        ValueError: If a name or key is unknown, or a value out of its bounds.
    """
    content = load(task, protocol)
    check_choice("backbone", backbone, backbones)
    attention = _chosen_attention(backbone, attention, takes=backbones[backbone])
    check_choice(f"backbone of protocol {protocol!r}", backbone, [name for name in content if name in backbones])
    settings = settings_of(table(task, protocol, backbone))
    settings["attention"] = {} if attention is None else {**content.get("attention", {}).get(attention, {})}
    settings |= {"protocol": protocol, "backbone": backbone, **names}
    if seed is not None:
        settings["seed"] = seed
    for text in changes:
        change(settings, text)
    where = f"protocol {protocol!r} for {backbone} on {names['dataset']}"
    settings["training"] = build(TrainingConfig, settings.get("training", {}), f"training of {where}")
    settings["attention"] = _attention(attention, settings["attention"], where)
    return build(kind, settings, where)


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Settings:
    """One table over another, part by part."""
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else (dict(value) if isinstance(value, Mapping) else value)
    return merged


def change(settings: Settings, text: str) -> None:
    """Set what "key=value" names, dots for parts; the value is TOML where it reads as such, else the text itself."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ValueError(f"a change must read key=value, got {text!r}; for instance training.learning_rate=1e-3.")
    *path, last = key.split(".")
    place = settings
    for part in path:
        if not isinstance(place.get(part, {}), dict):
            raise ValueError(f"unknown key {key!r}; {part!r} has no parts.")
        place = place.setdefault(part, {})
    try:
        place[last] = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        place[last] = value


def _chosen_attention(backbone: str, attention: str | None, *, takes: bool) -> str | None:
    if attention is None:
        return DEFAULT_ATTENTION if takes else None
    check_choice("attention", attention, ATTENTIONS)
    if not takes:
        raise ValueError(
            f"attention must be None for model {backbone!r}, which has none to choose, got {attention!r}; leave it out."
        )
    return attention


def _attention(name: str | None, options: Settings, where: str) -> AttentionSpec | None:
    if name is not None:
        return build(AttentionSpec, {"name": name, **options}, f"attention of {where}").resolved()
    if options:
        raise ValueError(f"attention has no settings in {where}, got {', '.join(options)}; leave them out.")
    return None
