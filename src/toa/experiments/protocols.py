"""Named protocols: complete settings for each backbone, dataset and horizon, kept as TOML in the folder `settings`.

A file has a table a backbone. In it, `default` holds for every dataset, a table named after a dataset goes over it, and
a table `horizon.N` in that over both; `like` names a protocol whose table lies under all of them. `[attention.NAME]`
holds where that attention departs from its defaults.
"""

import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from toa._checks import check_choice
from toa.data import DATASETS
from toa.experiments.config import ForecastRun, build
from toa.models import MODELS, check_attention
from toa.nn import ATTENTIONS, AttentionSpec
from toa.tasks.optimization import TrainingConfig

Settings = dict[str, Any]

# of a model that has an attention to choose, where none is chosen
DEFAULT_ATTENTION = "toa-gated"


def protocol_names() -> list[str]:
    """Names of all protocols."""
    folder = files("toa.experiments") / "settings"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


@cache
def _load(name: str) -> Settings:
    check_choice("protocol", name, protocol_names())
    return tomllib.loads((files("toa.experiments") / "settings" / f"{name}.toml").read_text(encoding="utf-8"))


def about(name: str) -> str:
    """What a protocol is, in a sentence."""
    return str(_load(name)["about"])


def resolve(
    protocol: str,
    *,
    dataset: str,
    horizon: int,
    backbone: str,
    attention: str | None = None,
    seed: int | None = None,
    changes: Iterable[str] = (),
) -> ForecastRun:
    """The run that a protocol describes.

    Args:
        protocol: A name of `protocol_names()`.
        dataset: A dataset of the catalogue that the protocol has, or the path of a CSV file, which gets the backbone's
            default settings.
        horizon: Steps to forecast; for a dataset of the catalogue one of the protocol's.
        backbone: A name of `toa.models.MODELS` that the protocol has.
        attention: A name of `toa.nn.ATTENTIONS`, "toa-gated" if None; a model that has none to choose takes only None.
        seed: The protocol's if None.
        changes: Settings to change, as "key=value" with dots for parts: "training.learning_rate=1e-3",
            "attention.sor=false", "model.dropout=0.2", "lookback=336".

    Raises:
        ValueError: If a name or key is unknown, or a value out of its bounds.
    """
    content = _load(protocol)
    check_choice("backbone", backbone, MODELS)
    if attention is None and MODELS[backbone].takes_attention:
        attention = DEFAULT_ATTENTION
    if attention is not None:
        check_choice("attention", attention, ATTENTIONS)
    check_attention(backbone, attention)
    check_choice(f"backbone of protocol {protocol!r}", backbone, [name for name in content if name in MODELS])
    settings = _settings(_table(protocol, backbone), protocol, dataset, horizon)
    settings["attention"] = {} if attention is None else {**content.get("attention", {}).get(attention, {})}
    settings |= {"protocol": protocol, "dataset": dataset, "horizon": horizon, "backbone": backbone}
    if seed is not None:
        settings["seed"] = seed
    for change in changes:
        _change(settings, change)
    where = f"protocol {protocol!r} for {backbone} on {dataset}"
    settings["training"] = build(TrainingConfig, settings.get("training", {}), f"training of {where}")
    settings["attention"] = _attention(attention, settings["attention"], where)
    return build(ForecastRun, settings, where)


def _attention(name: str | None, options: Settings, where: str) -> AttentionSpec | None:
    if name is not None:
        return build(AttentionSpec, {"name": name, **options}, f"attention of {where}").resolved()
    if options:
        raise ValueError(f"attention has no settings in {where}, got {', '.join(options)}; leave them out.")
    return None


def _table(protocol: str, backbone: str) -> Settings:
    """A backbone's table of a protocol, over the one it is like."""
    own = _merge({}, _load(protocol)[backbone])
    like = own.pop("like", None)
    return own if like is None else _merge(_table(like, backbone), own)


def _settings(table: Mapping[str, Any], protocol: str, dataset: str, horizon: int) -> Settings:
    settings = _merge({}, table["default"])
    horizons = settings.pop("horizons")
    if dataset not in DATASETS:
        if not Path(dataset).suffix:
            check_choice("dataset", dataset, DATASETS)
        return settings
    full = DATASETS[dataset].subset_of or dataset
    check_choice(f"dataset of protocol {protocol!r}", full, [name for name in table if name in DATASETS])
    own = _merge({}, table[full])
    horizons = own.pop("horizons", horizons)
    if horizon not in horizons:
        raise ValueError(
            f"horizon of {dataset} in protocol {protocol!r} must be one of {', '.join(map(str, horizons))}, got "
            f"{horizon}; for another, give the file's path instead of the dataset's name."
        )
    by_horizon = own.pop("horizon", {})
    return _merge(_merge(settings, own), by_horizon.get(str(horizon), {}))


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Settings:
    """One table over another, part by part."""
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merge(merged[key], value) if both else (dict(value) if isinstance(value, Mapping) else value)
    return merged


def _change(settings: Settings, change: str) -> None:
    key, equals, text = change.partition("=")
    if not equals or not key:
        raise ValueError(f"a change must read key=value, got {change!r}; for instance training.learning_rate=1e-3.")
    *path, last = key.split(".")
    place = settings
    for part in path:
        if not isinstance(place.get(part, {}), dict):
            raise ValueError(f"unknown key {key!r}; {part!r} has no parts.")
        place = place.setdefault(part, {})
    place[last] = _value(text)


def _value(text: str) -> Any:
    """A TOML value where it reads as one, else the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
