"""The parts of the demo on real data: runs small enough for two CPU cores, on sets that aeon's wheel holds.

The first part, harmonic demixing, is the preset "demo" of `toa.experiments.demixing`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from toa.experiments.anomaly import anomaly_folder, run_anomaly
from toa.experiments.anomaly_config import AnomalyRun, resolve_anomaly
from toa.experiments.classification import classify_folder, run_classify
from toa.experiments.classification_config import ClassifyRun, resolve_classify
from toa.experiments.demixing import PRESETS, Watcher
from toa.experiments.records import Record
from toa.tasks.training import Observer

ATTENTIONS = ("toa-gated", "toa-relu", "softmax")
SEEDS = (2024, 2025, 2026)

# passes over the data, with nothing to cut them short
_CLASSIFY_EPOCHS = 30
_ANOMALY_EPOCHS = 10

# 32 cases to train on: few to a batch, and a rate that falls to zero
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
    # one short range is seldom hit by chance: a few draws would say never
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
    """A finished run and the folder of what it made."""

    record: Record
    folder: Path

    @property
    def attention(self) -> str:
        """Name of its attention."""
        return str(self.record["config"]["attention"]["name"])


def classification_configs(steps: int | None = None) -> list[ClassifyRun]:
    """Runs of a point-token Transformer on BasicMotions, each attention with each seed.

    Args:
        steps: Steps of the demixing part; the epochs are as many times fewer, or more. None is the full length.
    """
    changes = (*_CLASSIFY, f"training.epochs={_share(_CLASSIFY_EPOCHS, steps)}")
    return [
        resolve_classify(
            "strict", dataset="BasicMotions", backbone="transformer", attention=name, seed=seed, changes=changes
        )
        for seed in SEEDS
        for name in ATTENTIONS
    ]


def anomaly_configs(steps: int | None = None) -> list[AnomalyRun]:
    """Runs of PatchTST on the UCR series; `steps` as for `classification_configs`."""
    stem = ucr_series()
    changes = (*_ANOMALY, f"training.epochs={_share(_ANOMALY_EPOCHS, steps)}")
    return [
        resolve_anomaly(
            "toa-paper",
            dataset=f"{stem}_TRAIN.csv",
            test_file=f"{stem}_TEST.csv",
            backbone="patchtst",
            attention=name,
            seed=seed,
            changes=changes,
        )
        for seed in SEEDS
        for name in ATTENTIONS
    ]


def ucr_series() -> Path:
    """The UCR anomaly series inside aeon, without the ends of its two files: _TRAIN.csv and _TEST.csv."""
    return Path(str(files("aeon"))) / "datasets" / "data" / "KDD-TSAD_135" / "135_UCR_Anomaly_InternalBleeding16"


def classify_motions(
    out: Path,
    *,
    steps: int | None = None,
    device: str = "auto",
    command: Sequence[str] = (),
    watch: Watcher | None = None,
) -> list[DemoRun]:
    """Run the classification part into a folder; runs that are done are read, runs that were stopped go on.

    Args:
        out: Folder of the runs.
        steps: See `classification_configs`.
        device: "auto", "cpu", "cuda" or "cuda:N".
        command: The command line that the records shall name.
        watch: Told of progress.
    """
    return [
        DemoRun(
            record=run_classify(config, out, device=device, command=command, observe=_observer(config, watch)),
            folder=classify_folder(config, out),
        )
        for config in classification_configs(steps)
    ]


def detect_anomaly(
    out: Path,
    *,
    steps: int | None = None,
    device: str = "auto",
    command: Sequence[str] = (),
    watch: Watcher | None = None,
) -> list[DemoRun]:
    """Run the part on anomaly detection; arguments are those of `classify_motions`."""
    return [
        DemoRun(
            record=run_anomaly(config, out, device=device, command=command, observe=_observer(config, watch)),
            folder=anomaly_folder(config, out),
        )
        for config in anomaly_configs(steps)
    ]


# the parts on real data by the name of their folder, in the order of the page
PARTS: dict[str, Callable[..., list[DemoRun]]] = {"classification": classify_motions, "anomaly": detect_anomaly}


def _share(epochs: int, steps: int | None) -> int:
    """As large a share of the epochs as `steps` is of those of demixing; one at least."""
    return epochs if steps is None else max(1, round(epochs * steps / PRESETS["demo"].base.steps))


def _observer(config: ClassifyRun | AnomalyRun, watch: Watcher | None) -> Observer | None:
    if watch is None:
        return None

    def observe(done: int, total: int, loss: float, validation: float | None) -> None:
        watch(config.attention.name, config.seed, done, total, loss)

    return observe
