"""A forecasting run: one config in, one record out; a run that was stopped goes on, one that is done is read."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from toa.data import DATASETS, ForecastData, load_forecast, locate, mark_names
from toa.experiments.carry_out import Measured, carry_out
from toa.experiments.config import ForecastRun
from toa.experiments.records import Record, config_hash
from toa.models import build_forecaster
from toa.nn import share_drop_rate
from toa.tasks.checkpoint import save_checkpoint
from toa.tasks.diagnostics import branch_sizes, contributions, operator_norms
from toa.tasks.forecasting import WindowBatches, evaluate_forecaster, forecast_loss, inputs_and_targets
from toa.tasks.training import Observer, TrainingState, train

if TYPE_CHECKING:
    from lightning.fabric import Fabric


def run_folder(config: ForecastRun, out: Path) -> Path:
    """Where a run keeps what it makes: a name to read and the config's hash."""
    dataset = Path(config.dataset).stem
    model = config.name.replace("/", "-")
    parts = (dataset, config.horizon, model, config.seed, config_hash(config)[:8])
    return out / "-".join(map(str, parts))


def run_forecast(
    config: ForecastRun,
    out: Path,
    *,
    data_dir: Path | None = None,
    device: str = "auto",
    devices: int = 1,
    num_nodes: int = 1,
    command: Sequence[str] = (),
    observe: Observer | None = None,
) -> Record:
    """Train, choose by validation, measure on test; the folder holds checkpoint, model and record.

    Args:
        config: The run.
        out: Folder of all runs.
        data_dir: Where datasets are looked for first.
        device: "auto", "cpu", "cuda" or "cuda:N".
        devices: How many devices of a machine train together.
        num_nodes: How many machines do.
        command: The command line that the record shall name.
        observe: Told of progress.
    """

    def measure(data: ForecastData, fabric: "Fabric", checkpoint: Path) -> Measured:
        model, state, start = _train(config, data, fabric, checkpoint, observe)
        test = evaluate_forecaster(model, data.test) if config.test else {}
        validation = evaluate_forecaster(model, data.val)
        return Measured(
            model=model,
            state=state,
            data_checksum=data.checksum,
            metrics=test | {f"val_{name}": value for name, value in validation.items()},
            facts={
                "windows": {"train": len(data.train), "val": len(data.val), "test": len(data.test)},
                "operators": {
                    "norms": operator_norms(model),
                    "branch_start": start,
                    "branch_end": _branch_sizes(model, data),
                    "contributions": contributions(model, lambda: evaluate_forecaster(model, data.val)[config.loss]),
                },
                "subset_of": None if data.spec is None else data.spec.subset_of,
            },
            save=lambda folder: _save(folder, config, model, data),
        )

    return carry_out(
        "forecast",
        config,
        run_folder(config, out),
        device=device,
        devices=devices,
        num_nodes=num_nodes,
        command=command,
        load=lambda where: load_data(config, where, data_dir),
        measure=measure,
    )


def load_data(config: ForecastRun, device: torch.device, data_dir: Path | None = None) -> ForecastData:
    """The windows of a run; runs of one process that are alike in them share one copy."""
    return _load_shared(
        config.dataset,
        _stamp(config.dataset, data_dir),
        data_dir,
        device,
        lookback=config.lookback,
        horizon=config.horizon,
        marks=config.marks,
        fill=config.fill,
        allow_constant=config.allow_constant,
        date_column=config.date_column or None,
    )


@lru_cache(maxsize=8)
def _load_shared(
    dataset: str, stamp: tuple[object, ...], data_dir: Path | None, device: torch.device, **how: Any
) -> ForecastData:
    return load_forecast(dataset, data_dir=data_dir, device=device, **how)


def _stamp(dataset: str, data_dir: Path | None) -> tuple[object, ...]:
    """What tells a file from another, and from itself written anew."""
    path = locate(DATASETS[dataset], data_dir) if dataset in DATASETS else Path(dataset).expanduser()
    if not path.is_file():
        # loading says what is wrong
        return (path,)
    found = path.stat()
    return path, found.st_mtime_ns, found.st_size


def build_model(config: ForecastRun, channels: int) -> nn.Module:
    """The model of a run as it starts; the seed is the run's."""
    torch.manual_seed(config.seed)
    model = build_forecaster(
        config.backbone,
        lookback=config.lookback,
        horizon=config.horizon,
        channels=channels,
        num_marks=len(mark_names()) if config.marks else 0,
        attention=config.attention,
        settings=config.model,
    )
    if config.share_drop_rate:
        share_drop_rate(model)
    return model


def make_batches(config: ForecastRun, data: ForecastData) -> WindowBatches:
    """What a run trains on."""
    return WindowBatches(data.train, config.batch_size, seed=config.seed, drop_last=config.drop_last)


def _save(folder: Path, config: ForecastRun, model: nn.Module, data: ForecastData) -> None:
    """Keep the model with the scaler that its inputs need."""
    save_checkpoint(
        folder / "model.safetensors",
        {f"model.{name}": value for name, value in model.state_dict().items()}
        | {f"scaler.{name}": value for name, value in data.scaler.state().items()},
        {"config": asdict(config), "columns": list(data.columns)},
    )


def _branch_sizes(model: nn.Module, data: ForecastData) -> dict[str, float]:
    """Sizes of the attention branches on a first batch of validation windows."""
    x, _, *marks = inputs_and_targets(data.val.batch(torch.arange(min(256, len(data.val)))))
    with torch.random.fork_rng(), torch.no_grad():
        was_training = model.training
        model.eval()
        sizes = branch_sizes(model, lambda: model(x, *marks))
        model.train(was_training)
    return sizes


def _train(
    config: ForecastRun, data: ForecastData, fabric: "Fabric", checkpoint: Path, observe: Observer | None
) -> tuple[nn.Module, TrainingState, dict[str, float]]:
    model = build_model(config, len(data.columns))
    model.to(fabric.device)
    start = _branch_sizes(model, data)
    state = train(
        model,
        make_batches(config, data),
        forecast_loss(config.loss, autocast=fabric.autocast),
        config.training,
        fabric=fabric,
        key=config_hash(config),
        validate=lambda trained: evaluate_forecaster(trained, data.val)[config.loss],
        checkpoint=checkpoint,
        observe=observe,
    )
    return model, state, start
