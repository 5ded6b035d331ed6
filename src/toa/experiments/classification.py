"""A classification run: one config in, one record out; a run that was stopped goes on, one that is done is read."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from toa.data import ClassificationData, load_classification
from toa.experiments.carry_out import Measured, carry_out
from toa.experiments.classification_config import ClassifyRun
from toa.experiments.records import Record, config_hash
from toa.models import BACKBONES, build_classifier
from toa.nn import share_drop_rate
from toa.tasks.checkpoint import save_checkpoint
from toa.tasks.classification import CaseBatches, classification_loss, evaluate_classifier, validation_error
from toa.tasks.training import Observer, TrainingState, train

if TYPE_CHECKING:
    from lightning.fabric import Fabric


def classify_folder(config: ClassifyRun, out: Path) -> Path:
    """Where a run keeps what it makes: a name to read and the config's hash."""
    dataset = Path(config.dataset).name.split("_TRAIN.ts")[0]
    parts = (dataset, config.evaluation, config.name.replace("/", "-"), config.seed, config_hash(config)[:8])
    return out / "-".join(map(str, parts))


def run_classify(
    config: ClassifyRun,
    out: Path,
    *,
    data_dir: Path | None = None,
    device: str = "auto",
    devices: int = 1,
    num_nodes: int = 1,
    command: Sequence[str] = (),
    observe: Observer | None = None,
) -> Record:
    """Train, choose by validation accuracy, measure on TEST; the folder holds checkpoint, model and record.

    Under tslib-uea validation is TEST, so that the accuracy is the best of all epochs and no estimate of any other.

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

    def measure(data: ClassificationData, fabric: "Fabric", checkpoint: Path) -> Measured:
        model, state = _train(config, data, fabric, checkpoint, observe)
        test, validation = (evaluate_classifier(model, cases) for cases in (data.test, data.val))
        return Measured(
            model=model,
            state=state,
            data_checksum=data.checksum,
            metrics=test.metrics | {f"val_{name}": value for name, value in validation.metrics.items()},
            facts={
                "cases": {"train": len(data.train), "val": len(data.val), "test": len(data.test)},
                "classes": list(data.classes),
                "confusion": test.confusion.tolist(),
                "evaluation": dict(data.facts),
            },
            save=lambda folder: _save(folder, config, model, data),
        )

    return carry_out(
        "classify",
        config,
        classify_folder(config, out),
        device=device,
        devices=devices,
        num_nodes=num_nodes,
        command=command,
        load=lambda where: load_data(config, where, data_dir),
        measure=measure,
    )


def load_data(config: ClassifyRun, device: torch.device, data_dir: Path | None = None) -> ClassificationData:
    """The cases of a run."""
    entry = BACKBONES[config.backbone]
    # a series shorter than a patch is padded to one
    patch = config.model.get("patch_len", 16) if "patch_len" in entry.settings("classify") else 1
    return load_classification(
        config.dataset,
        evaluation=config.evaluation,
        seed=config.seed,
        min_length=patch,
        data_dir=data_dir,
        device=device,
    )


def _train(
    config: ClassifyRun, data: ClassificationData, fabric: "Fabric", checkpoint: Path, observe: Observer | None
) -> tuple[nn.Module, TrainingState]:
    torch.manual_seed(config.seed)
    model = build_classifier(
        config.backbone,
        lookback=data.length,
        channels=data.channels,
        num_classes=len(data.classes),
        attention=config.attention,
        settings=config.model,
    )
    if config.share_drop_rate:
        share_drop_rate(model)
    batches = CaseBatches(data.train, config.batch_size, seed=config.seed)
    state = train(
        model,
        batches,
        classification_loss,
        config.training,
        fabric=fabric,
        key=config_hash(config),
        validate=lambda trained: validation_error(trained, data.val),
        checkpoint=checkpoint,
        observe=observe,
    )
    return model, state


def _save(folder: Path, config: ClassifyRun, model: nn.Module, data: ClassificationData) -> None:
    """Keep the model with its classes and, where there is one, the scaler that its inputs need."""
    scaler = {} if data.scaler is None else data.scaler.state()
    save_checkpoint(
        folder / "model.safetensors",
        {f"model.{name}": value for name, value in model.state_dict().items()}
        | {f"scaler.{name}": value for name, value in scaler.items()},
        {"config": asdict(config), "classes": list(data.classes), "length": data.length},
    )
