"""The parts of the demo on real data: runs small enough for two CPU cores, on datasets inside aeon's wheel.

The first part, harmonic demixing, is the protocol "demo" of demixing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from toa.experiments.demixing import Progress, observer
from toa.experiments.protocols import load_protocol, resolve
from toa.experiments.records import Record
from toa.experiments.run import run_folder, run_task
from toa.tasks import AnomalyRun, ClassifyRun

ATTENTIONS = ("toa-gated", "toa-relu", "softmax")
SEEDS = (2024, 2025, 2026)

# epochs, without early stopping
_CLASSIFY_EPOCHS = 30
_ANOMALY_EPOCHS = 10

# 32 training cases: small batches, and a rate that falls to zero
_CLASSIFY = (
    "batch_size=8",
    "model.num_layers=1",
    "model.embed_dim=32",
    "model.ff_dim=64",
    "model.num_heads=4",
    "training.optimizer=adam",
    "training.learning_rate=2e-3",
    "training.schedule=cosine",
    "training.patience=1000",
)
_ANOMALY = (
    "index_column=true",
    "label_column=true",
    "lookback=64",
    "window_stride=8",
    "batch_size=16",
    # a random score rarely hits the one short range, so few draws would give zero
    "random_draws=200",
    "model.num_layers=2",
    "model.embed_dim=32",
    "model.ff_dim=32",
    "model.num_heads=4",
    "training.learning_rate=2e-3",
    "training.schedule=cosine",
    "training.patience=1000",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoRun:
    """A finished run and its folder."""

    record: Record
    folder: Path

    @property
    def attention(self) -> str:
        """Name of its attention."""
        return str(self.record["config"]["attention"]["name"])


def classification_configs(steps: int | None = None) -> list[ClassifyRun]:
    """Runs of a point-token Transformer on BasicMotions, one per attention and seed.

    Args:
        steps: Steps of the demixing part; epochs change in proportion. None is the full length.
    """
    changes = (*_CLASSIFY, f"training.epochs={_epochs(_CLASSIFY_EPOCHS, steps)}")
    return _configs("classify", "strict", dataset="BasicMotions", backbone="transformer", changes=changes)


def anomaly_configs(steps: int | None = None) -> list[AnomalyRun]:
    """Runs of PatchTST on the UCR series; `steps` as for `classification_configs`."""
    stem = ucr_series()
    changes = (*_ANOMALY, f"training.epochs={_epochs(_ANOMALY_EPOCHS, steps)}")
    names = {"dataset": f"{stem}_TRAIN.csv", "test_file": f"{stem}_TEST.csv"}
    return _configs("anomaly", "toa-paper", backbone="patchtst", changes=changes, **names)


def ucr_series() -> Path:
    """Path of the UCR anomaly series inside aeon, without the ends _TRAIN.csv and _TEST.csv of its two files."""
    return Path(str(files("aeon"))) / "datasets" / "data" / "KDD-TSAD_135" / "135_UCR_Anomaly_InternalBleeding16"


# configs of the parts on real data by the name of their folder, in the order of the page
PARTS: dict[str, Callable[[int | None], list[Any]]] = {
    "classification": classification_configs,
    "anomaly": anomaly_configs,
}


def run_part(
    part: str,
    out: Path,
    *,
    steps: int | None = None,
    device: str = "auto",
    command: Sequence[str] = (),
    watch: Progress = lambda *progress: None,
) -> list[DemoRun]:
    """Run a part of `PARTS`. Finished runs are loaded, interrupted runs resume.

    The arguments are those of `classification_configs` and `run_task`; `watch` is called with the progress.
    """
    runs = []
    for config in PARTS[part](steps):
        observe = observer(config.attention.name, config.seed, watch)
        record = run_task(config, out, device=device, command=command, observe=observe)
        runs.append(DemoRun(record=record, folder=run_folder(config, out)))
    return runs


def _configs(task: str, protocol: str, **names: Any) -> list[Any]:
    return [resolve(task, protocol, attention=name, seed=seed, **names) for seed in SEEDS for name in ATTENTIONS]


def _epochs(full: int, steps: int | None) -> int:
    """The share of the epochs that `steps` is of the demixing part; at least one."""
    demixing = load_protocol("demixing", "demo").tables["default"]["steps"]
    return full if steps is None else max(1, round(full * steps / demixing))
