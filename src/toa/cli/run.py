"""The command `toa run`: one model, one data set, one task.

A task is an entry of `_TASKS` and the two functions that it names. Heavy imports wait until a command needs them.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toa._checks import check_choice
from toa._console import is_first, make_console, show_epochs
from toa.cli.terminal import clear_errors

if TYPE_CHECKING:
    from toa.experiments import AnomalyRun, ClassifyRun, ForecastRun

# written out, so that --help need not import what registers them
_MODELS = "patchtst, itransformer, transformer, duet, informer, autoformer, dlinear or tsmixer"
_ATTENTIONS = "softmax, toa-softmax, toa-relu, toa-gated or hyperglu"
_PROTOCOLS = (
    "toa-paper; for forecast also patchtst-336, patchtst-512, itransformer-96, itransformer-pems, duet-search, "
    "duet-unified-96 or tslib-96; for anomaly also tslib; for classify also "
    "strict or tslib-uea"
)

DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What the command line asks for; None where it says nothing."""

    dataset: str
    horizon: int | None
    test_file: Path | None
    label_file: Path | None
    backbone: str
    attention: str | None
    protocol: str
    seed: int | None
    changes: tuple[str, ...]
    data_dir: Path | None
    out: Path
    device: str
    devices: int | None
    num_nodes: int | None

    def how(self) -> dict[str, Any]:
        """Where and on what to run, as every task takes it."""
        from toa.tasks.ranks import settle_devices

        devices, num_nodes = settle_devices(self.devices, self.num_nodes)
        return {
            "data_dir": self.data_dir,
            "device": self.device,
            "devices": devices,
            "num_nodes": num_nodes,
            "command": ["toa", *sys.argv[1:]],
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class _Task:
    """How a task is run.

    Attributes:
        resolve: From what is asked for to the run's config.
        carry_out: Runs it and says what came out.
        needs: Options that it cannot do without, each with a value to show.
        takes: Further options of its own. One that other tasks have alone is refused.
    """

    resolve: Callable[[Request], Any]
    carry_out: Callable[[Request, Any], None]
    needs: dict[str, str]
    takes: tuple[str, ...] = ()

    def check(self, task: str, own: dict[str, object]) -> None:
        """Refuse options of other tasks, and one that is missing."""
        for name, value in own.items():
            option = f"--{name.replace('_', '-')}"
            if value is None and name in self.needs:
                raise ValueError(
                    f"{option} must be given for task {task!r}, got nothing; add {option} {self.needs[name]}, for "
                    "instance."
                )
            if value is not None and name not in (*self.needs, *self.takes):
                raise ValueError(f"{option} must be left out for task {task!r}, which has none, got {value}.")


def run(
    dataset: Annotated[
        str,
        typer.Option(
            help="Dataset of the catalogue (`toa data list`), or the path of a CSV file; for anomaly, of a train file; "
            "for classify, of a file NAME_TRAIN.ts."
        ),
    ],
    task: Annotated[str, typer.Option(help="What to do: forecast, anomaly or classify.")] = "forecast",
    horizon: Annotated[int | None, typer.Option(help="Steps to forecast; for forecast alone.")] = None,
    test_file: Annotated[
        Path | None, typer.Option(help="Test series (npy, csv or txt) beside a train file; for anomaly alone.")
    ] = None,
    label_file: Annotated[Path | None, typer.Option(help="Its labels, 0 and 1; for anomaly alone.")] = None,
    backbone: Annotated[
        str, typer.Option(help=f"Model: {_MODELS}; for anomaly and classify the first three.")
    ] = "patchtst",
    attention: Annotated[
        str | None,
        typer.Option(
            help=f"Its attention: {_ATTENTIONS}; toa-gated if not given. dlinear, tsmixer, informer and autoformer "
            "have none to choose."
        ),
    ] = None,
    protocol: Annotated[str, typer.Option(help=f"Settings: {_PROTOCOLS}.")] = "toa-paper",
    seed: Annotated[int | None, typer.Option(help="The protocol's if not given.")] = None,
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Change a setting: training.epochs=3, model.dropout=0.1, attention.sor=false, fill=ffill, …"
        ),
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where data are looked for first.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of all runs; runs/TASK if not given.")] = None,
    device: DeviceOption = "auto",
    devices: Annotated[
        int | None,
        typer.Option(
            help="How many devices of a machine train one model together, sharing its batches; 1 if not given."
        ),
    ] = None,
    num_nodes: Annotated[
        int | None,
        typer.Option(help="How many machines do; torchrun, which starts them, says it and --devices itself."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the settings as JSON and leave.")] = False,
) -> None:
    """Train and measure one model; a stopped run goes on where it was, a finished one is read."""
    with clear_errors(resumes=True):
        request = Request(
            dataset=dataset,
            horizon=horizon,
            test_file=test_file,
            label_file=label_file,
            backbone=backbone,
            attention=attention,
            protocol=protocol,
            seed=seed,
            changes=tuple(change or ()),
            data_dir=data_dir,
            out=Path("runs") / task if out is None else out,
            device=device,
            devices=devices,
            num_nodes=num_nodes,
        )
        config = config_of(task, request)
        if dry_run:
            typer.echo(json.dumps(asdict(config), indent=2))
        else:
            with _claim(task, request.out, config):
                _TASKS[task].carry_out(request, config)


@contextmanager
def _claim(task: str, out: Path, config: Any) -> Iterator[None]:
    """Hold a run's folder while it is carried out; of processes that train together the first does."""
    from toa.experiments.claims import claimed, holder
    from toa.experiments.jobs import KINDS
    from toa.experiments.outcomes import RECORD

    folder = KINDS[task].folder(config, out)
    # one that is done is read, and ranks but the first are let in by it
    if (folder / RECORD).exists() or not is_first():
        yield
        return
    with claimed(folder) as mine:
        if not mine:
            found = holder(folder) or {}
            raise ValueError(
                f"{folder} must be free for this run, got one under way in it, of process {found.get('pid', '?')} on "
                f"{found.get('host', 'another machine')}; wait for it, or choose another --out."
            )
        yield


def config_of(task: str, request: Request) -> Any:
    """The config of a run that is asked for; options that its task does not have are refused."""
    check_choice("task", task, _TASKS)
    own = {name: getattr(request, name) for name in ("horizon", "test_file", "label_file")}
    _TASKS[task].check(task, own)
    return _TASKS[task].resolve(request)


def _resolve_forecast(request: Request) -> "ForecastRun":
    from toa.experiments import resolve

    assert request.horizon is not None
    return resolve(
        request.protocol,
        dataset=request.dataset,
        horizon=request.horizon,
        backbone=request.backbone,
        attention=request.attention,
        seed=request.seed,
        changes=request.changes,
    )


def _forecast(request: Request, config: "ForecastRun") -> None:
    from toa.experiments import run_folder, run_forecast

    console = make_console()
    with show_epochs(f"{config.name} on {Path(config.dataset).stem}, horizon {config.horizon}") as observe:
        record = run_forecast(config, request.out, **request.how(), observe=observe)
    metrics = record["metrics"]
    console.print(
        f"test MSE {metrics['mse']:.4f}, MAE {metrics['mae']:.4f}; validation MSE {metrics['val_mse']:.4f} "
        f"(epoch {record['best_epoch']} of {len(record['history'])}); {record['wall_s']:.0f} s on {record['device']}"
    )
    if record["subset_of"]:
        console.print(f"{config.dataset} is a part of {record['subset_of']}: not to be set beside published numbers.")
    console.print(f"record: {run_folder(config, request.out) / 'record.json'}", soft_wrap=True)


def _resolve_anomaly(request: Request) -> "AnomalyRun":
    from toa.experiments import resolve_anomaly

    return resolve_anomaly(
        request.protocol,
        dataset=request.dataset,
        backbone=request.backbone,
        attention=request.attention,
        test_file=None if request.test_file is None else str(request.test_file),
        label_file=None if request.label_file is None else str(request.label_file),
        seed=request.seed,
        changes=request.changes,
    )


def _anomaly(request: Request, config: "AnomalyRun") -> None:
    from rich import box
    from rich.table import Table

    from toa.experiments import anomaly_folder, run_anomaly
    from toa.report.figures import write_detection
    from toa.report.tables import anomaly_table, undefined_notes

    console = make_console()
    with show_epochs(f"{config.name} on {Path(config.dataset).stem}") as observe:
        record = run_anomaly(config, request.out, **request.how(), observe=observe)
    header, *rows = anomaly_table(record)
    table = Table(*header, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for note in undefined_notes(record):
        console.print(note)
    console.print(
        f"validation MSE {record['metrics']['val_mse']:.4f} (epoch {record['best_epoch']} of "
        f"{len(record['history'])}); {record['wall_s']:.0f} s on {record['device']}"
    )
    if record["subset_of"]:
        console.print(f"{config.dataset} is a part of {record['subset_of']}: not to be set beside published numbers.")
    folder = anomaly_folder(config, request.out)
    if not console.quiet:
        console.print(f"picture: {write_detection(folder)}", soft_wrap=True)
    console.print(f"record: {folder / 'record.json'}", soft_wrap=True)


def _resolve_classify(request: Request) -> "ClassifyRun":
    from toa.experiments import resolve_classify

    return resolve_classify(
        request.protocol,
        dataset=request.dataset,
        backbone=request.backbone,
        attention=request.attention,
        seed=request.seed,
        changes=request.changes,
    )


def _classify(request: Request, config: "ClassifyRun") -> None:
    from toa.experiments import classify_folder, run_classify
    from toa.report.figures import write_confusion

    console = make_console()
    with show_epochs(f"{config.name} on {Path(config.dataset).stem}, {config.evaluation}") as observe:
        record = run_classify(config, request.out, **request.how(), observe=observe)
    metrics = record["metrics"]
    console.print(
        f"test accuracy {metrics['accuracy']:.4f}, balanced {metrics['balanced_accuracy']:.4f}, macro F1 "
        f"{metrics['macro_f1']:.4f}; validation accuracy {metrics['val_accuracy']:.4f} (epoch "
        f"{record['best_epoch']} of {len(record['history'])}); {record['wall_s']:.0f} s on {record['device']}"
    )
    if config.evaluation == "tslib-uea":
        console.print("validation is TEST, as the peers report: the best accuracy of all epochs, not an estimate.")
    folder = classify_folder(config, request.out)
    if not console.quiet:
        console.print(f"picture: {write_confusion(record, folder / 'confusion.png')}", soft_wrap=True)
    console.print(f"record: {folder / 'record.json'}", soft_wrap=True)


_TASKS = {
    "forecast": _Task(resolve=_resolve_forecast, carry_out=_forecast, needs={"horizon": "96"}),
    "anomaly": _Task(resolve=_resolve_anomaly, carry_out=_anomaly, needs={}, takes=("test_file", "label_file")),
    "classify": _Task(resolve=_resolve_classify, carry_out=_classify, needs={}),
}
