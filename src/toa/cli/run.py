"""The command `toa run`, one model on one dataset. Heavy imports wait until it runs."""

import json
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from toa._checks import ArgumentError, check_choice
from toa._console import is_first, make_console, make_table, show_epochs


def run(
    dataset: Annotated[str, typer.Option()],
    task: str = "forecast",
    horizon: int | None = None,
    test_file: Path | None = None,
    label_file: Path | None = None,
    backbone: str = "patchtst",
    attention: str | None = None,
    protocol: str = "toa-paper",
    seed: int | None = None,
    change: Annotated[list[str] | None, typer.Option("--set")] = None,
    data_dir: Path | None = None,
    out: Path | None = None,
    device: str = "auto",
    devices: int | None = None,
    num_nodes: int | None = None,
    dry_run: Annotated[bool, typer.Option("--dry-run")] = False,
) -> None:
    """Train and measure one model. An interrupted run resumes; a finished one is only loaded."""
    options: dict[str, Any] = {
        "dataset": dataset,
        "task": task,
        "horizon": horizon,
        "test_file": test_file,
        "label_file": label_file,
        "backbone": backbone,
        "attention": attention,
        "protocol": protocol,
        "seed": seed,
        "change": change,
        "data_dir": data_dir,
        "out": out,
        "device": device,
        "devices": devices,
        "num_nodes": num_nodes,
        "dry_run": dry_run,
    }
    from toa.experiments.base import experiment_of
    from toa.experiments.claims import claimed_alone
    from toa.experiments.records import RECORD
    from toa.experiments.run import run_folder, run_task
    from toa.training.distributed import resolve_devices

    config = config_of(options)
    if dry_run:
        typer.echo(json.dumps(asdict(config), indent=2))
        return
    runs = Path("runs") / task if out is None else out
    number, nodes = resolve_devices(devices, num_nodes)
    folder = run_folder(config, runs)
    experiment = experiment_of(task)
    with ExitStack() as held:
        # of a distributed run, the first process holds the folder
        if is_first() and not (folder / RECORD).exists():
            held.enter_context(claimed_alone(folder))
        with show_epochs(experiment.title(config)) as observe:
            record = run_task(
                config,
                runs,
                data_dir=data_dir,
                device=device,
                devices=number,
                num_nodes=nodes,
                command=["toa", *sys.argv[1:]],
                observe=observe,
            )
        _show(record, experiment.describe(record), folder)


def config_of(options: Mapping[str, Any]) -> Any:
    """The config of a run from the options of `toa run`, by their names."""
    from toa.experiments.base import experiment_of
    from toa.experiments.protocols import resolve
    from toa.training import TASKS

    task = options["task"]
    check_choice("task", task, [name for name in TASKS if experiment_of(name).subcommand == "run"])
    # options that only some tasks have, with an example of those that must be given
    task_options = experiment_of(task).options
    values: dict[str, Any] = {}
    for name in ("horizon", "test_file", "label_file"):
        value = options[name]
        example = task_options.get(name)
        option = f"--{name.replace('_', '-')}"
        if value is None and example is not None:
            raise ArgumentError(option, f"be given for task {task!r}", "nothing", f"for instance {option} {example}")
        if value is not None and name not in task_options:
            raise ArgumentError(option, f"be left out for task {task!r}, which has no such option", value)
        if value is not None:
            values[name] = str(value) if isinstance(value, Path) else value
    values |= {name: options[name] for name in ("dataset", "backbone", "attention", "seed")}
    return resolve(task, options["protocol"], changes=options["change"] or (), **values)


def _show(record: dict[str, Any], lines: list[str], folder: Path) -> None:
    """Print the results of a run, and draw the pictures that its record and files allow."""
    console = make_console()
    if "detections" in record:
        from toa.report.tables import anomaly_table, undefined_notes

        console.print(make_table(anomaly_table(record)))
        lines = [*undefined_notes(record), *lines]
    for line in lines:
        console.print(line)
    if not console.quiet and ("detections" in record or "confusion" in record):
        from toa.report.figures import write_confusion, write_detection

        detected = "detections" in record
        picture = write_detection(folder) if detected else write_confusion(record, folder / "confusion.png")
        console.print(f"picture: {picture}", soft_wrap=True)
    console.print(f"record: {folder / 'record.json'}", soft_wrap=True)
