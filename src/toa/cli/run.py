"""The command `toa run`: one model, one dataset, one task. Heavy imports wait until a command needs them."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from toa._checks import check_choice
from toa._console import is_first, make_console, make_table, show_epochs
from toa.cli.terminal import DeviceOption, clear_errors


def run(
    dataset: Annotated[
        str,
        typer.Option(
            help="Dataset of the catalogue (`toa data list`), or the path of a CSV file (anomaly: a train file; "
            "classify: a file NAME_TRAIN.ts)."
        ),
    ],
    task: Annotated[str, typer.Option(help="Task: forecast, anomaly or classify.")] = "forecast",
    horizon: Annotated[int | None, typer.Option(help="Steps to forecast; only for forecast.")] = None,
    test_file: Annotated[
        Path | None, typer.Option(help="Test series (npy, csv or txt) that belongs to a train file; only for anomaly.")
    ] = None,
    label_file: Annotated[Path | None, typer.Option(help="Its labels, 0 and 1; only for anomaly.")] = None,
    backbone: Annotated[
        str, typer.Option(help="Model: {backbones}; for anomaly and classify: {classifiers}.")
    ] = "patchtst",
    attention: Annotated[
        str | None,
        typer.Option(
            help="Its attention: {attentions}; the protocol's default if not given. dlinear, tsmixer, informer and "
            "autoformer have no choice of attention."
        ),
    ] = None,
    protocol: Annotated[
        str,
        typer.Option(
            help="Settings. For forecast: {forecast_protocols}; for anomaly: {anomaly_protocols}; for classify: "
            "{classify_protocols}."
        ),
    ] = "toa-paper",
    seed: Annotated[int | None, typer.Option(help="Random seed; the protocol's if not given.")] = None,
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Change a setting: training.epochs=3, model.dropout=0.1, attention.sor=false, fill=ffill, …"
        ),
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder that is searched first for datasets.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of all runs; runs/TASK if not given.")] = None,
    device: DeviceOption = "auto",
    devices: Annotated[
        int | None,
        typer.Option(help="Number of devices per node that share the batches of one model; 1 if not given."),
    ] = None,
    num_nodes: Annotated[
        int | None,
        typer.Option(help="Number of nodes (set automatically under torchrun, like --devices)."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the settings as JSON and exit.")] = False,
) -> None:
    """Train and measure one model. An interrupted run resumes; a finished one is only loaded."""
    with clear_errors(resumes=True):
        from toa.experiments.run import run_folder, run_task
        from toa.tasks import TASKS
        from toa.tasks.distributed import resolve_devices

        given: dict[str, Any] = {"horizon": horizon, "test_file": test_file, "label_file": label_file}
        given |= {"dataset": dataset, "backbone": backbone, "attention": attention, "seed": seed, "change": change}
        config = config_of({"task": task, "protocol": protocol, **given})
        if dry_run:
            typer.echo(json.dumps(asdict(config), indent=2))
            return
        runs = Path("runs") / task if out is None else out
        number, nodes = resolve_devices(devices, num_nodes)
        folder, kind = run_folder(config, runs), TASKS[task]
        with _claim(folder):
            with show_epochs(kind.title(config)) as observe:
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
            _show(record, kind.describe(record), folder)


def config_of(given: Mapping[str, Any]) -> Any:
    """The config of a run from the options of `toa run`, by their names."""
    from toa.experiments.protocols import load_protocol
    from toa.tasks import TASKS

    task = given["task"]
    check_choice("task", task, [name for name in TASKS if TASKS[name].subcommand == "run"])
    options, own = TASKS[task].options, dict[str, Any]()
    for name in ("horizon", "test_file", "label_file"):
        value, example, option = given[name], options.get(name), f"--{name.replace('_', '-')}"
        if value is None and example is not None:
            raise ValueError(f"{option} must be given for task {task!r}, got nothing; for instance {option} {example}.")
        if value is not None and name not in options:
            raise ValueError(f"{option} must be left out for task {task!r}, which has no such option, got {value}.")
        if value is not None:
            own[name] = str(value) if isinstance(value, Path) else value
    own |= {name: given[name] for name in ("dataset", "backbone", "attention", "seed")}
    return TASKS[task].resolve(load_protocol(task, given["protocol"]), changes=given["change"] or (), **own)


@contextmanager
def _claim(folder: Path) -> Iterator[None]:
    """Hold the folder of a run, so that no other process runs it; the first process of a distributed run does."""
    from toa.experiments.records import RECORD, claimed, holder

    if (folder / RECORD).exists() or not is_first():
        yield
        return
    with claimed(folder) as mine:
        if not mine:
            found = holder(folder) or {}
            raise ValueError(
                f"{folder} must be free for this run, got one under way in process {found.get('pid', '?')} on "
                f"{found.get('host', 'another machine')}; wait for it, or choose another --out."
            )
        yield


def _show(record: dict[str, Any], lines: list[str], folder: Path) -> None:
    """Print the results of a run, and draw the pictures that its record and files allow."""
    console = make_console()
    pictures = []
    if "detections" in record:
        from toa.report.figures import write_detection
        from toa.report.tables import anomaly_table, undefined_notes

        console.print(make_table(anomaly_table(record)))
        lines = [*undefined_notes(record), *lines]
        pictures.append(lambda: write_detection(folder))
    if "confusion" in record:
        from toa.report.figures import write_confusion

        pictures.append(lambda: write_confusion(record, folder / "confusion.png"))
    for line in lines:
        console.print(line)
    if not console.quiet:
        for draw in pictures:
            console.print(f"picture: {draw()}", soft_wrap=True)
    console.print(f"record: {folder / 'record.json'}", soft_wrap=True)
