"""What a file of a detector holds, and the fitted detector from it. See `toa.estimators.base` for the format."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from toa._checks import check_finite, check_positive
from toa._limits import check_unpacked
from toa.data.scaling import StandardScaler
from toa.estimators.combination import Combination
from toa.estimators.detector_inputs import DetectorInputs, check_window
from toa.estimators.detector_score import WINDOWED, DetectorScore
from toa.estimators.detector_settings import OLDER_LARGEST, DetectorSettings
from toa.estimators.files import tensors_under
from toa.estimators.fitted_detector import FittedDetector, flagged
from toa.estimators.reconstruction import FittedReconstruction, WindowShape, build_network
from toa.estimators.saved_types import check_columns, check_frequency, check_ids
from toa.estimators.scorers import SCORERS
from toa.estimators.shift import NormalLevels
from toa.estimators.thresholds import Thresholds
from toa.training.checkpoint import model_with
from toa.training.distributed import resolve_device

# rows per window in the trial of a file whose methods have no window of their own
_TRIED_WINDOW = 10


def detector_state(fitted: FittedDetector) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by name, without those of the network, and JSON values."""
    scalers = [scaler.state() for scaler in fitted.inputs.scalers.values()]
    tensors = {f"scaler.{name}": torch.stack([scaler[name] for scaler in scalers]) for name in ("mean", "std")}
    facts: dict[str, Any] = {
        "columns_": list(fitted.columns),
        "ids": list(fitted.inputs.scalers),
        "largest": fitted.largest,
        "scorers": list(fitted.score.baselines),
        "constant": list(fitted.constant),
        "day_first": fitted.day_first,
    }
    for name, baseline in fitted.score.baselines.items():
        tensors |= {f"scorer.{name}.{key}": value.contiguous() for key, value in baseline.state().items()}
    if fitted.score.combination is not None:
        parts, facts["choice"] = fitted.score.combination.state()
        tensors |= {f"choice.{name}": part for name, part in parts.items()}
    for name, levels in (("rows", fitted.thresholds.row_levels), ("stream", fitted.thresholds.stream_levels)):
        if levels is not None:
            tensors[f"levels.{name}"] = torch.from_numpy(levels.quantiles)
            facts.setdefault("levels", {})[name] = levels.facts()
    return tensors, facts


def restore_detector(
    tensors: Mapping[str, Tensor], facts: Mapping[str, Any], settings: DetectorSettings, where: str | Path
) -> FittedDetector:
    """The detector of a file; raises an error for parts that do not fit one another."""
    columns = check_columns("columns_", facts["columns_"])
    window = facts["window_"]
    check_window("window_", window)
    statistics = zip(check_ids(facts["ids"]), tensors["scaler.mean"], tensors["scaler.std"], strict=True)
    scalers = {name: StandardScaler.from_state({"mean": mean, "std": std}) for name, mean, std in statistics}
    inputs = DetectorInputs(columns=columns, window=window, scalers=scalers)
    check_unpacked("window_", inputs.context * len(columns), tensors)
    largest = None
    combination = None
    if "choice" in facts:
        combination = Combination.from_state(tensors_under(tensors, "choice."), facts["choice"])
        largest = facts.get("largest", OLDER_LARGEST)
        check_positive("largest", largest)
    baselines = {
        name: SCORERS[name].load(tensors_under(tensors, f"scorer.{name}."), len(columns), largest)
        for name in facts.get("scorers", ())
    }
    constant = tuple(facts.get("constant", ()))
    shape = WindowShape(rows=window, channels=len(columns), constant=constant, largest=largest)
    network = _restore_network(tensors, facts, settings, shape, where)
    check_frequency(facts["freq_"])
    return FittedDetector(
        freq=facts["freq_"],
        day_first=facts.get("day_first"),
        inputs=inputs,
        constant=constant,
        largest=largest,
        score=DetectorScore(
            model=settings.model, window=window, baselines=baselines, network=network, combination=combination
        ),
        thresholds=Thresholds(
            rows=facts["threshold_"],
            stream=facts["stream_threshold_"],
            row_levels=_restore_levels(tensors, facts, "rows"),
            stream_levels=_restore_levels(tensors, facts, "stream"),
        ),
        truncated=tuple(map(str, facts.get("truncated", ()))),
    )


def _restore_levels(tensors: Mapping[str, Tensor], facts: Mapping[str, Any], name: str) -> NormalLevels | None:
    """What lets a threshold rise; None for fixed ones, as in older files."""
    if "levels" not in facts:
        return None
    return NormalLevels.from_state(tensors[f"levels.{name}"].double().cpu().numpy(), facts["levels"][name])


def _restore_network(
    tensors: Mapping[str, Tensor],
    facts: Mapping[str, Any],
    settings: DetectorSettings,
    shape: WindowShape,
    where: str | Path,
) -> FittedReconstruction | None:
    architecture = facts["architecture_"]
    if architecture["backbone"] is None:
        return None
    spec = settings.network
    model = model_with(lambda: build_network(spec, shape, architecture), tensors, architecture["settings"], where)
    return FittedReconstruction(
        spec=spec,
        shape=shape,
        architecture=architecture,
        model=model.to(resolve_device(spec.device)),
        validation=facts["validation_"],
    )


def try_detector(fitted: FittedDetector, settings: DetectorSettings) -> None:
    """Score zeros: parts of a file that do not fit one another raise an error."""
    thresholds = fitted.thresholds
    check_finite("thresholds", torch.tensor((thresholds.rows, thresholds.stream)))
    score = fitted.score
    if not WINDOWED & score.scorers.keys():
        # no tensor has the size of the window, which may be much longer than the trial needs
        score = replace(score, window=min(score.window, _TRIED_WINDOW))
    context = replace(fitted.inputs, window=score.window).context
    zeros = np.zeros((context + 1, len(fitted.columns)))
    series = fitted.inputs.scale(next(iter(fitted.inputs.scalers)), zeros)
    if any(score.member(name, series).shape != series.shape for name in score.scorers):
        raise ValueError("a method has scores of other channels")
    flagged(fitted, score.of_rows(series), settings.threshold.alarms)
    score.of_rows(series, ends=True)
