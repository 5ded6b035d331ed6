"""Experiments: how the runs of a task are resolved from protocols, named and described.

A `toa.training.Task` trains and tests one config. Its `Experiment` builds the config from a protocol, and puts the run
into words: the name of its folder, the title of its progress bar, its command line, and sentences about its record.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from toa._checks import ArgumentError, check_choice
from toa._registry import Registry
from toa.experiments.settings import Protocol, SettingTree, change, merge
from toa.models import BACKBONES, backbone_names
from toa.nn import ATTENTIONS
from toa.training import TASKS, Task
from toa.training.base import Record
from toa.training.diagnostics import describe_operators


class Experiment:
    """The runs of one task.

    Attributes:
        task: What trains and tests them.
        subcommand: Command of `toa` that runs it.
        names: Arguments of `resolve` that choose a run, beside the seed.
        options: Options of `toa run` for this task only, each with an example value if it is required, else None.
        unit: What one sample is: a window, a case, a signal.
        summary_metrics: Metrics of a record for a one-line summary, each with a short label.
    """

    subcommand: str = "run"
    names: tuple[str, ...] = ("dataset", "backbone", "attention")
    options: Mapping[str, str | None] = {}
    unit: str = "window"
    summary_metrics: Mapping[str, str] = {}

    def __init__(self, task: Task) -> None:
        self.task = task

    # configs

    def resolve(
        self,
        protocol: Protocol | None,
        *,
        dataset: str,
        backbone: str,
        attention: str | None = None,
        seed: int | None = None,
        changes: Iterable[str] = (),
        **names: Any,
    ) -> Any:
        """Build the config of one run from a protocol.

        Args:
            protocol: Settings of this task; None only for a task without protocols.
            dataset: A dataset that the protocol covers, or the path of a file, which gets the default settings.
            attention: A name of `toa.nn.ATTENTIONS`, the recipe's or else the protocol's if None; must be None for a
                model without a choice.
            changes: Settings to change, as "key=value" with dots for nested keys: "training.epochs=3".
        """
        assert protocol is not None
        # whether each model has a choice of attention
        backbones = {name: BACKBONES[name].takes_attention for name in backbone_names(self.task.model_kind)}
        check_choice("backbone", backbone, backbones)
        covered = [name for name in protocol.tables if name in backbones]
        check_choice(f"backbone of protocol {protocol.name!r}", backbone, covered)
        table = protocol.tables[backbone]
        settings = self.dataset_settings(protocol, table, dataset, **names)
        default = protocol.default_attention if backbones[backbone] else None
        recipe: SettingTree = {}
        if "recipe" in table:
            family = "toa" if (attention or default or "").startswith("toa-") else "softmax"
            small = self.training_windows(settings, dataset, **names) < protocol.small_below
            for size in ("all", "small" if small else "large"):
                recipe = merge(recipe, table["recipe"].get(family, {}).get(size, {}))
        named = recipe.get("attention", {}).pop("name", default)
        attention = named if attention is None else attention
        settings = merge(merge(settings, {"attention": protocol.attention.get(attention or "", {})}), recipe)
        settings |= {"protocol": protocol.name, "dataset": dataset, "backbone": backbone, **names}
        if seed is not None:
            settings["seed"] = seed
        for text in changes:
            change(settings, text)
        where = f"protocol {protocol.name!r} for {backbone} on {dataset}"
        settings = {"training": {}, **settings}
        options = settings.pop("attention")
        if backbones[backbone]:
            check_choice("attention", attention, ATTENTIONS)
            config = self.task.config_from({**settings, "attention": {"name": attention, **options}}, where)
            return replace(config, attention=config.attention.resolved())
        if attention is not None or options:
            raise ArgumentError(
                "attention",
                f"be left out for model {backbone!r}, which has no choice of attention",
                f"{attention or ', '.join(options)!r} in {where}",
            )
        return self.task.config_from({**settings, "attention": None}, where)

    def dataset_settings(self, protocol: Protocol, table: SettingTree, dataset: str, **names: Any) -> SettingTree:
        """Settings of a backbone for one dataset."""
        self.check_dataset(dataset)
        return merge(table["default"], table.get(dataset, {}))

    def training_windows(self, settings: SettingTree, dataset: str, **names: Any) -> int:
        """Number of training windows of a dataset, which decides the size in a protocol's recipe; 0 if unknown."""
        return 0

    def check_dataset(self, dataset: str) -> bool:
        """Whether a dataset is in the catalogue; a name that is neither in it nor a file's path raises ValueError."""
        catalogue = self.task.catalogue
        listed = catalogue is not None and dataset in catalogue
        if not listed and not Path(dataset).suffix:
            check_choice("dataset", dataset, catalogue or ())
        return listed

    # words

    def folder_name(self, config: Any) -> str:
        """Readable start of the run's folder name; the config's hash follows it."""
        return f"{Path(config.dataset).stem}-{config.name.replace('/', '-')}-{config.seed}"

    def title(self, config: Any) -> str:
        """Title of the progress bar."""
        return f"{config.name} on {Path(config.dataset).stem}"

    def command(self, protocol: str, names: Mapping[str, Any]) -> list[str]:
        """The command line that runs a config of a protocol."""
        words = ["toa", self.subcommand, "--task", self.task.config.task, "--protocol", protocol]
        return words + [word for name, value in names.items() for word in (f"--{name}", str(value))]

    def describe(self, record: Record) -> list[str]:
        """Sentences about a finished run."""
        epochs = f"(epoch {record['best_epoch']} of {len(record['history'])})"
        time = f"{record['wall_s']:.0f} s on {record['device']}"
        lines = [f"{self.describe_metrics(record['metrics'])} {epochs}; {time}"]
        if full := record.get("subset_of"):
            dataset = record["config"]["dataset"]
            lines.append(f"{dataset} is a part of {full}: do not compare it with published numbers.")
        return lines + describe_operators(record)

    def describe_metrics(self, metrics: Mapping[str, float]) -> str:
        """The most important metrics of a record as text."""
        return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())


EXPERIMENTS: Registry[Experiment] = Registry("experiment")


def experiment_of(task: str) -> Experiment:
    """The experiment of a task; that of another package has the defaults unless its module registers one."""
    # loads the package of the task, if it is another one
    trained = TASKS[task]
    return EXPERIMENTS[task] if task in EXPERIMENTS else Experiment(trained)
