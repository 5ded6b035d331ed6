"""What a finished run left in its folder, taken up again: the trained model, and inputs that it knows."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from toa._checks import check_at_least, check_choice
from toa.data import CLASSIFICATION_SETS
from toa.experiments.anomaly import load_data as load_anomaly_data
from toa.experiments.classification import load_data as load_classification_data
from toa.experiments.forecasting import build_model, load_data
from toa.experiments.jobs import config_from
from toa.experiments.records import Record, read_record
from toa.models import PointEncoder, build_classifier, build_reconstructor
from toa.tasks.checkpoint import load_checkpoint
from toa.tasks.demixing import held_out_signals

# runs of other tasks leave no model
TASKS = ("forecast", "anomaly", "classify", "demixing")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SavedRun:
    """A finished run.

    Attributes:
        task: A name of `TASKS`.
        config: The run's.
        record: What came of it.
        model: As it was trained, on the CPU, in evaluation mode.
    """

    task: str
    config: Any
    record: Record
    model: nn.Module

    def sample(self, index: int = 0, data_dir: Path | None = None) -> tuple[Tensor | None, ...]:
        """What the model takes for one window or case of the run's own test data, as batches of one.

        Args:
            index: Which window (anomaly detection: at the run's stride) or case.
            data_dir: Where sets are looked for first.

        Raises:
            OSError: If the data are not here.
            ValueError: If there is no such window or case.
        """
        check_at_least("sample", index, 0)
        where = torch.device("cpu")
        if self.task == "demixing":
            noisy = held_out_signals(self.config).noisy
            return (_pick(noisy, index).unsqueeze(-1),)  # (1, L, 1)
        if self.task == "forecast":
            windows = load_data(self.config, where, data_dir).test
            x, _, marks, future = windows.batch(torch.tensor([_within(index, len(windows))]))
            return x, marks, future
        if self.task == "anomaly":
            series = load_anomaly_data(self.config, where, data_dir).test
            length, stride = self.config.lookback, self.config.window_stride
            start = stride * _within(index, (len(series) - length) // stride + 1)
            return (series[None, start : start + length],)
        cases = load_classification_data(self.config, where, data_dir).test
        batch = cases.batch(torch.tensor([_within(index, len(cases))]))
        return batch.series, batch.mask


def load_run(folder: Path) -> SavedRun:
    """The model and record of a finished run.

    Raises:
        ValueError: If the folder is not one of a finished run, or its files do not belong together.
    """
    path = folder / "record.json"
    if not path.is_file():
        raise ValueError(f"{folder} must be the folder of a finished run, with record.json in it, got none; finish it.")
    record = read_record(path)
    check_choice("task of a run with a model", record.get("task"), TASKS)
    task = str(record["task"])
    # a run of demixing keeps its last checkpoint, the others a model of their best epoch
    file = folder / ("checkpoint.safetensors" if task == "demixing" else "model.safetensors")
    if not file.is_file():
        raise ValueError(f"{folder} must hold {file.name} beside its record, got none; run it again elsewhere.")
    saved = load_checkpoint(file)
    config = config_from(task, record["config"])
    weights, scaler = (
        {name.removeprefix(start): value for name, value in saved.tensors.items() if name.startswith(start)}
        for start in ("model.", "scaler.")
    )
    # weights are drawn and then replaced: nobody's generator shall notice
    with torch.random.fork_rng(devices=[]):
        model = _build(task, config, saved.facts, scaler)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(
            f"{file} must hold the weights of {record['name']}, got others ({' '.join(str(error).split())}); was a "
            "file of another run put there?"
        ) from None
    return SavedRun(task=task, config=config, record=record, model=model.eval())


def _build(task: str, config: Any, facts: Mapping[str, Any], scaler: Mapping[str, Tensor]) -> nn.Module:
    if task == "demixing":
        return PointEncoder(config.model())
    if task == "forecast":
        return build_model(config, len(facts["columns"]))
    if task == "anomaly":
        return build_reconstructor(
            config.backbone,
            lookback=config.lookback,
            channels=len(scaler["mean"]),
            attention=config.attention,
            settings=config.model,
        )
    return build_classifier(
        config.backbone,
        lookback=facts["length"],
        channels=_channels(config, scaler),
        num_classes=len(facts["classes"]),
        attention=config.attention,
        settings=config.model,
    )


def _channels(config: Any, scaler: Mapping[str, Tensor]) -> int:
    """Channels of a classification run; under tslib-uea it has no scaler to tell them."""
    if scaler:
        return len(scaler["mean"])
    if config.dataset in CLASSIFICATION_SETS:
        return CLASSIFICATION_SETS[config.dataset].channels
    return load_classification_data(config, torch.device("cpu"), None).channels


def _within(index: int, count: int) -> int:
    if index >= count:
        raise ValueError(f"sample must be below {count}, the number of windows or cases, got {index}.")
    return index


def _pick(tensor: Tensor, index: int) -> Tensor:
    return tensor[_within(index, len(tensor)), None]
