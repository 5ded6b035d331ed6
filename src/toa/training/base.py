"""The Task interface: everything that differs between tasks is a method of its Task, and `TASKS` lists them all.

The command line, experiments and reports work on any entry of `TASKS`; none of them has a table keyed by task.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from toa._checks import ArgumentError, check_at_least
from toa._files import check_writable
from toa._plugins import PluginRegistry
from toa._registry import Registry
from toa.data import StandardScaler, current_checksum
from toa.models.registry import ModelKind
from toa.nn import AttentionSpec, share_drop_rate
from toa.ops.dropout import initial_weights
from toa.training.checkpoint import Checkpoint
from toa.training.config import RunOptions, build_config
from toa.training.diagnostics import branch_sizes, contributions, operator_norms
from toa.training.distributed import make_fabric, numerics, seeded
from toa.training.loop import TrainingState, time_steps, train
from toa.training.optimization import TrainingConfig
from toa.training.step import Batches, ShuffledBatches

if TYPE_CHECKING:
    from lightning.fabric import Fabric

Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Evaluation:
    """Test results of a trained model: metrics, further fields of the record, and files to write beside it.

    `Task.measure` adds the checksum of the data, the device, the seconds of training, the model (None for a task that
    trains none), and whether this process writes the files: the first one of a distributed run.
    """

    data_checksum: str = ""
    metrics: Mapping[str, float]
    facts: Record = field(default_factory=dict)
    artifacts: Mapping[str, Checkpoint] = field(default_factory=dict)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    seconds: float = 0.0
    model: nn.Module | None = None
    writes: bool = True


class Task:
    """One kind of run: its config, its data, and how a model is trained and evaluated.

    Methods get the config, and most the data that `load` returned; the types are the task's own.

    Attributes:
        config: Class of the configs, with the name of the task as class attribute `task`. It has `name`, and
            unless the task overrides `measure` also the fields of `RunConfig` from `training` on.
        parts: Fields of the config that are configs themselves.
        record_fields: Fields that every record of this task has, beside those of all records.
        catalogue: Datasets by name; None if the task has no dataset.
        model_file: File of the trained weights in a run's folder; "" if no model is kept.
        model_kind: The task in `toa.models.BACKBONES` whose backbones it uses.
    """

    config: type[Any]
    parts: Mapping[str, type[Any]] = {"attention": AttentionSpec, "training": TrainingConfig}
    record_fields: tuple[str, ...] = ("devices", "best_epoch", "history")
    catalogue: Registry[Any] | None = None
    model_file: str = "model.safetensors"
    model_kind: ModelKind = "forecast"

    def config_from(self, values: Mapping[str, Any], where: str | None = None) -> Any:
        """Build a config from plain values, such as those of a record; `where` names their source in errors."""
        plain = dict(values)
        where = where or f"a {self.config.task} config"
        for name, part in self.parts.items():
            if plain.get(name) is not None:
                plain[name] = build_config(part, plain[name], f"{name} of {where}")
        return build_config(self.config, plain, where)

    # data

    def locate(self, dataset: str, data_dir: Path | None) -> Sequence[Path]:
        """Find the files of a dataset of the catalogue."""
        return ()

    def files(self, dataset: str) -> tuple[str, ...]:
        """Files of a dataset, relative to the data folder."""
        return () if self.catalogue is None else self.catalogue[dataset].files()

    def own_files(self, config: Any) -> Sequence[Path]:
        """Files of a run whose dataset is not in the catalogue."""
        return (Path(config.dataset).expanduser(),)

    def current_checksum(self, config: Any, data_dir: Path | None) -> str | None:
        """Checksum of the files of a run as they are now; None if it has no files, or they are not here."""
        if self.catalogue is None:
            return None
        try:
            known = config.dataset in self.catalogue
            return current_checksum(self.locate(config.dataset, data_dir) if known else self.own_files(config))
        except FileNotFoundError:
            return None

    def load(self, config: Any, device: torch.device, data_dir: Path | None = None) -> Any:
        """Load the data of a run, with their `checksum`; errors in them are raised before anything is written."""
        raise NotImplementedError

    def sample(self, config: Any, index: int, data_dir: Path | None = None) -> tuple[Tensor | None, ...]:
        """The model's inputs for one window or case of the test data, as a batch of one."""
        raise ValueError(f"task {self.config.task!r} has no samples.")

    # training

    def build(self, config: Any, data: Any) -> nn.Module:
        """Build an untrained model."""
        raise NotImplementedError

    def rebuild(self, config: Any, saved: Checkpoint) -> nn.Module:
        """Build the model that `model_file` holds the weights of, without its data."""
        return self.build(config, None)

    def batches(self, config: Any, data: Any, device: torch.device) -> Batches:
        """Training batches on a device."""
        return ShuffledBatches(data.train, config.batch_size, seed=config.seed)

    def loss(self, config: Any, fabric: "Fabric") -> Callable[..., Tensor]:
        """The training loss of a model and the tensors of a batch."""
        raise NotImplementedError

    def validate(self, config: Any, data: Any) -> Callable[[nn.Module], float] | None:
        """The validation loss of a model, by which the best epoch is chosen; None keeps the last epoch."""
        return None

    def evaluate(self, config: Any, model: nn.Module, data: Any) -> Evaluation:
        """Test the trained model; the artifacts include `model_file`, unless it is the checkpoint of training."""
        raise NotImplementedError

    def fit(
        self, config: Any, data: Any, fabric: "Fabric", *, diagnose: bool = False, **options: Any
    ) -> tuple[nn.Module, TrainingState, Mapping[str, Mapping[str, float]]]:
        """Build a model from the config's seed and train it; `options` are those of `toa.training.train`.

        Returns:
            The model, with its best weights if the task validates; what training recorded; and, with `diagnose`, the
            relative sizes of the attention branches at the start and at the end, see `toa.training.diagnostics`.
        """
        with seeded(config.seed, fabric.device, compiled=config.training.compile):
            with initial_weights():
                model = self.build(config, data).to(fabric.device)
            if config.share_drop_rate:
                share_drop_rate(model)
            batches = self.batches(config, data, fabric.device)
            loss = self.loss(config, fabric)
            options["validate"] = self.validate(config, data)
            sizes = {}
            if diagnose:
                sizes["start"] = branch_sizes(model, lambda: loss(model, *batches.at(0, 0)))
            state = train(model, batches, loss, config.training, fabric=fabric, **options)
            if diagnose:
                sizes["end"] = branch_sizes(model, lambda: loss(model, *batches.at(0, 0)))
            return model, state, sizes

    def seconds_per_step(self, config: Any, data: Any, device: str) -> float:
        """Time of a training step, measured with a model that is thrown away."""
        fabric = make_fabric(device)
        with seeded(config.seed, fabric.device):
            with initial_weights():
                model = self.build(config, data).to(fabric.device)
            batches = self.batches(config, data, fabric.device)
            loss = self.loss(config, fabric)
            return min(time_steps(model, batches, loss, config.training, fabric=fabric, steps=3, warmup=1))

    def measure(self, config: Any, options: RunOptions) -> Evaluation:
        """Load the data, train and test one config. A task that trains no model overrides this method."""
        among: Any = {"devices": options.devices, "num_nodes": options.num_nodes}
        fabric = make_fabric(options.device, precision=config.precision, **among)
        data = self.load(config, fabric.device, options.data_dir)
        check_writable(options.folder)
        if fabric.device.type == "cuda":
            torch.cuda.init()  # data that lie in memory have not started CUDA, and the next line does not start it
            torch.cuda.reset_peak_memory_stats(fabric.device)
        with numerics(fabric.device, tf32=config.tf32, deterministic=config.deterministic):
            checkpoint = options.folder / "checkpoint.safetensors"
            model, state, sizes = self.fit(
                config,
                data,
                fabric,
                key=options.key,
                data_checksum=data.checksum,
                checkpoint=checkpoint,
                observe=options.observe,
                diagnose=True,
            )

            def repeatable(measure: Callable[..., Any], *arguments: Any) -> Any:
                # DUET may sample its channel mask in evaluation too: seeding makes a run repeatable
                with seeded(config.seed, fabric.device, compiled=config.training.compile):
                    return measure(*arguments)

            found = repeatable(self.evaluate, config, model, data)
            threads = torch.get_num_threads()
            validate = self.validate(config, data)
            operators = {
                "norms": operator_norms(model),
                "branch_sizes": sizes,
                "contributions": {} if validate is None else contributions(model, lambda: repeatable(validate, model)),
            }
        progress = {"devices": fabric.world_size, "best_epoch": state.best_epoch, "history": state.history}
        facts = {name: progress[name] for name in self.record_fields} | {"threads": threads, "operators": operators}
        return replace(
            found,
            data_checksum=data.checksum,
            facts=found.facts | facts,
            device=fabric.device,
            seconds=state.seconds,
            model=model,
            writes=fabric.is_global_zero,
        )


# other packages may register further tasks
TASKS: Registry[Task] = PluginRegistry("task", "toa.tasks", Task)


def model_checkpoint(config: Any, model: nn.Module, scaler: StandardScaler | None, **facts: Any) -> Checkpoint:
    """A trained model as a file, with its config, the scaler of its inputs, and facts that `Task.rebuild` needs."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    if scaler is not None:
        tensors |= {f"scaler.{name}": value for name, value in scaler.state().items()}
    return Checkpoint(tensors=tensors, facts={"config": asdict(config), **facts})


def check_sample(index: int, count: int) -> int:
    """Return the index of a sample; ValueError if it is out of range."""
    check_at_least("sample", index, 0)
    if index >= count:
        raise ArgumentError("sample", f"be below {count}, the number of windows or cases", index)
    return index
