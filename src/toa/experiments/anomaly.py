"""A run of anomaly detection: one config in, one record out, with what both rules of detection make of one model."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from toa.data import AnomalyData, SeriesWindows, load_anomaly
from toa.experiments.anomaly_config import AnomalyRun
from toa.experiments.carry_out import Measured, carry_out
from toa.experiments.records import Record, config_hash
from toa.models import build_reconstructor
from toa.nn import share_drop_rate
from toa.tasks.anomaly import (
    Detection,
    ReconstructionBatches,
    Scores,
    detect,
    evaluate_reconstruction,
    reconstruction_loss,
    score_series,
)
from toa.tasks.checkpoint import save_checkpoint
from toa.tasks.training import Observer, TrainingState, train

if TYPE_CHECKING:
    from lightning.fabric import Fabric

SCORES = "scores.safetensors"


def anomaly_folder(config: AnomalyRun, out: Path) -> Path:
    """Where a run keeps what it makes: a name to read and the config's hash."""
    parts = (Path(config.dataset).stem, config.name.replace("/", "-"), config.seed, config_hash(config)[:8])
    return out / "-".join(map(str, parts))


def run_anomaly(
    config: AnomalyRun,
    out: Path,
    *,
    data_dir: Path | None = None,
    device: str = "auto",
    devices: int = 1,
    num_nodes: int = 1,
    command: Sequence[str] = (),
    observe: Observer | None = None,
) -> Record:
    """Train a reconstruction, choose by validation, flag the test series under each of the rules, measure.

    The folder holds checkpoint, model, record, and the scores of test steps that pictures are made of. The record's
    metrics are named RULES/METRIC; what is undefined is not among them, but in `detections`, with the reason.

    Args:
        config: The run.
        out: Folder of all runs.
        data_dir: Where sets are looked for first.
        device: "auto", "cpu", "cuda" or "cuda:N".
        devices: How many devices of a machine train together.
        num_nodes: How many machines do.
        command: The command line that the record shall name.
        observe: Told of progress.
    """

    def load(where: torch.device) -> tuple[AnomalyData, dict[str, SeriesWindows]]:
        data = load_data(config, where, data_dir)
        return data, _windows(config, data)

    def measure(loaded: tuple[AnomalyData, dict[str, SeriesWindows]], fabric: "Fabric", checkpoint: Path) -> Measured:
        data, windows = loaded
        model, state = _train(config, data, windows, fabric, checkpoint, observe)
        validation = evaluate_reconstruction(model, windows["val"])
        train_scores, test_scores = (_scores(config, model, series) for series in (data.train, data.test))
        found = detect(
            train_scores,
            test_scores,
            data.labels,
            anomaly_ratio=config.anomaly_ratio,
            random_draws=config.random_draws,
        )
        return Measured(
            model=model,
            state=state,
            data_checksum=data.checksum,
            metrics={"val_mse": validation} | _defined(found),
            facts={
                "windows": {name: len(split) for name, split in windows.items()} | {"test": len(test_scores.starts)},
                "detections": {one.rules.name: _described(one, config) for one in found},
                "subset_of": None if data.spec is None else data.spec.subset_of,
            },
            save=lambda folder: _save(folder, config, model, data, test_scores, found),
        )

    return carry_out(
        "anomaly",
        config,
        anomaly_folder(config, out),
        device=device,
        devices=devices,
        num_nodes=num_nodes,
        command=command,
        load=load,
        measure=measure,
    )


def load_data(config: AnomalyRun, device: torch.device, data_dir: Path | None = None) -> AnomalyData:
    """The scaled series of a run."""
    return load_anomaly(
        config.dataset,
        length=config.lookback,
        test_file=config.test_file or None,
        label_file=config.label_file or None,
        data_dir=data_dir,
        device=device,
        fill=config.fill,
        index_column=config.index_column,
        label_column=config.label_column,
        allow_constant=config.allow_constant,
    )


def _windows(config: AnomalyRun, data: AnomalyData) -> dict[str, SeriesWindows]:
    """Windows to train on and to choose the epoch by."""
    border = int(len(data.train) * (1.0 - config.validation_share))
    parts = {
        "train": data.train if config.validation_in_train else data.train[:border],
        "val": data.train[border:],
    }
    for name, part in parts.items():
        if len(part) < config.lookback:
            raise ValueError(
                f"the {name} part of {data.name} must have at least one window of {config.lookback} rows, got "
                f"{len(part)} of {len(data.train)}; shorten the window, or change validation_share."
            )
    return {name: SeriesWindows(part, config.lookback, stride=config.window_stride) for name, part in parts.items()}


def _train(
    config: AnomalyRun,
    data: AnomalyData,
    windows: dict[str, SeriesWindows],
    fabric: "Fabric",
    checkpoint: Path,
    observe: Observer | None,
) -> tuple[nn.Module, TrainingState]:
    torch.manual_seed(config.seed)
    model = build_reconstructor(
        config.backbone,
        lookback=config.lookback,
        channels=data.train.shape[1],
        attention=config.attention,
        settings=config.model,
    )
    if config.share_drop_rate:
        share_drop_rate(model)
    batches = ReconstructionBatches(windows["train"], config.batch_size, seed=config.seed)
    state = train(
        model,
        batches,
        reconstruction_loss,
        config.training,
        fabric=fabric,
        key=config_hash(config),
        validate=lambda trained: evaluate_reconstruction(trained, windows["val"]),
        checkpoint=checkpoint,
        observe=observe,
    )
    return model, state


def _scores(config: AnomalyRun, model: nn.Module, series: Tensor) -> Scores:
    return score_series(model, SeriesWindows(series, config.lookback, stride=config.window_stride, whole=True))


def _defined(found: Sequence[Detection]) -> dict[str, float]:
    return {
        f"{one.rules.name}/{name}": value for one in found for name, value in one.metrics.items() if value is not None
    }


def _described(found: Detection, config: AnomalyRun) -> Record:
    """Every choice that made the numbers, by name."""
    return {
        "point_adjust": found.rules.point_adjust,
        "threshold_source": found.rules.threshold_source,
        "overlaps": found.rules.overlaps,
        "window_stride": config.window_stride,
        "anomaly_ratio": config.anomaly_ratio,
        "validation_in_train": config.validation_in_train,
        "headline": found.rules.headline,
        "threshold": found.threshold,
        "flag_rate": found.flag_rate,
        "random_draws": config.random_draws,
        "undefined": found.undefined,
    }


def _save(
    folder: Path, config: AnomalyRun, model: nn.Module, data: AnomalyData, test: Scores, found: Sequence[Detection]
) -> None:
    """Keep the model with the scaler that its inputs need, and what a picture shows."""
    save_checkpoint(
        folder / "model.safetensors",
        {f"model.{name}": value for name, value in model.state_dict().items()}
        | {f"scaler.{name}": value for name, value in data.scaler.state().items()},
        {"config": asdict(config)},
    )
    save_checkpoint(
        folder / SCORES,
        {"score": torch.from_numpy(test.steps).float(), "labels": torch.from_numpy(data.labels)}
        | {f"flags.{one.rules.name}": torch.from_numpy(one.flags) for one in found},
        {"thresholds": {one.rules.name: one.threshold for one in found}},
    )
