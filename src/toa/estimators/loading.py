"""A saved estimator of any kind, and one sample of what it takes."""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from toa._checks import check_at_least, check_choice
from toa.estimators.base import Estimator
from toa.estimators.classifier import Classifier
from toa.estimators.detector import AnomalyDetector
from toa.estimators.forecaster import Forecaster
from toa.estimators.saving import CONFIG
from toa.tasks.checkpoint import load_checkpoint

KINDS: dict[str, type[Estimator]] = {kind._kind: kind for kind in (Forecaster, AnomalyDetector, Classifier)}


def load_estimator(path: str | Path, *, device: str | None = None) -> Estimator:
    """What `save` wrote into a file, or `save_pretrained` into a folder, whichever estimator it was.

    Raises:
        FileNotFoundError: If there is nothing.
        ValueError: If it is no estimator, or damaged.
    """
    place = Path(path)
    if place.is_dir():
        if not (place / CONFIG).is_file():
            raise FileNotFoundError(f"{place} must hold {CONFIG} of a saved estimator, got none.")
        kind = KINDS[_kind(json.loads((place / CONFIG).read_text(encoding="utf-8")), place)]
        return kind.from_pretrained(place, device=device)
    if not place.is_file():
        raise FileNotFoundError(f"{place} must be a saved estimator, got no such file.")
    return KINDS[_kind(load_checkpoint(place).facts, place)].load(place, device=device)


def run_sample(estimator: Estimator, data: Any, index: int = 0) -> None:
    """Have a fitted estimator answer about one window or case of data, for those who watch its model.

    Args:
        estimator: Fitted.
        data: A pandas frame as it was fitted on, or for a classifier a list of cases. Of several series the first.
        index: Which window, by its first row, or which case.

    Raises:
        ValueError: If data have no such window or case.
    """
    check_at_least("sample", index, 0)
    if isinstance(estimator, Classifier):
        estimator.predict(_one_case(estimator, data, index))
        return
    assert isinstance(estimator, Forecaster | AnomalyDetector)
    forecasts = isinstance(estimator, Forecaster)
    length = estimator.lookback_ + estimator.horizon if forecasts else estimator.window_
    rows = data if estimator.id is None else data[data[estimator.id] == data[estimator.id].iloc[0]]
    _check_index(index, len(rows) - length + 1, "windows")
    window = rows.iloc[index : index + length]
    if forecasts:
        # it knows the covariates of the steps to come
        estimator.backtest(window)
    else:
        estimator.scores(window)


def _one_case(estimator: Classifier, data: Any, index: int) -> Any:
    if not isinstance(data, pd.DataFrame) or estimator.id is None:
        _check_index(index, len(data), "cases")
        return data.iloc[[index]] if isinstance(data, pd.DataFrame) else [data[index]]
    ids = data[estimator.id].unique()
    _check_index(index, len(ids), "cases")
    return data[data[estimator.id] == ids[index]]


def _check_index(index: int, count: int, what: str) -> None:
    if index >= count:
        raise ValueError(f"sample must be below {max(0, count)}, the number of {what} in the data, got {index}.")


def _kind(header: Any, path: Path) -> str:
    kind = header.get("kind") if isinstance(header, dict) else None
    check_choice(f"kind of estimator in {path}", kind, KINDS)
    return str(kind)
