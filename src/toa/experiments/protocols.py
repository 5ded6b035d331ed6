"""Named protocols of forecasting: complete settings for each backbone, dataset and horizon.

Beside what `toa.experiments.settings` says of the files: `horizons` lists those of a dataset, and a table `horizon.N`
in a dataset's goes over it.
"""

from collections.abc import Iterable
from pathlib import Path

from toa._checks import check_choice
from toa.data import DATASETS
from toa.experiments.config import ForecastRun
from toa.experiments.settings import Settings, merge, resolve_run
from toa.models import BACKBONES, backbone_names


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
        backbone: A name of `toa.models.BACKBONES` that the protocol has.
        attention: A name of `toa.nn.ATTENTIONS`, "toa-gated" if None; a model that has none to choose takes only None.
        seed: The protocol's if None.
        changes: Settings to change, as "key=value" with dots for parts: "training.learning_rate=1e-3",
            "attention.sor=false", "model.dropout=0.2", "lookback=336".

    Raises:
        ValueError: If a name or key is unknown, or a value out of its bounds.
    """
    return resolve_run(
        ForecastRun,
        "forecast",
        protocol,
        backbone=backbone,
        backbones={name: BACKBONES[name].takes_attention for name in backbone_names("forecast")},
        attention=attention,
        names={"dataset": dataset, "horizon": horizon},
        settings_of=lambda table: _settings(table, protocol, dataset, horizon),
        seed=seed,
        changes=changes,
    )


def _settings(table: Settings, protocol: str, dataset: str, horizon: int) -> Settings:
    settings = merge({}, table["default"])
    horizons = settings.pop("horizons")
    if dataset not in DATASETS:
        if not Path(dataset).suffix:
            check_choice("dataset", dataset, DATASETS)
        return settings
    full = DATASETS[dataset].subset_of or dataset
    check_choice(f"dataset of protocol {protocol!r}", full, [name for name in table if name in DATASETS])
    own = merge({}, table[full])
    horizons = own.pop("horizons", horizons)
    if horizon not in horizons:
        raise ValueError(
            f"horizon of {dataset} in protocol {protocol!r} must be one of {', '.join(map(str, horizons))}, got "
            f"{horizon}; for another, give the file's path instead of the dataset's name."
        )
    by_horizon = own.pop("horizon", {})
    return merge(merge(settings, own), by_horizon.get(str(horizon), {}))
