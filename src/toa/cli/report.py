"""What records and models show: `toa compare`, `toa explain`, and `toa watch` for runs in progress.

Heavy imports wait until a command needs them.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from toa._checks import ArgumentError, check_positive
from toa._console import duration, make_console, make_table, show_controls
from toa.cli.terminal import check_files, read_cases_file

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text
    from torch import nn

    from toa.report.progress import Progress
    from toa.report.tables import Rows

# number of runs listed per state
_SHOWN = 8
# blocks of lags in the picture of their shares
_BLOCKS = 16
# a network with less weight does not decide a forecast or a class
_MOST = 0.5


def compare(
    results: list[Path],
    metric: Annotated[str, typer.Option()],
    baseline: str = "softmax",
    out: Path | None = None,
) -> None:
    """Compare systems over data sets: mean, average rank, wins and losses, Wilcoxon tests, critical differences."""
    from toa.experiments.records import read_records
    from toa.report.statistics import collect, notes, system_table, write_comparison
    from toa.report.statistics import compare as compare_systems

    scores = collect(read_records(results), metric)
    rows = compare_systems(scores, baseline)
    console = make_console()
    # a terminal is too narrow for all columns
    table = system_table(scores, rows)
    console.print(make_table([(*row[:5], *row[-2:]) for row in table]))
    console.print(make_table([(row[0], *row[4:8]) for row in table]))
    for note in notes(scores, baseline):
        console.print(note)
    for path in [] if out is None else write_comparison(scores, rows, baseline, out):
        console.print(f"written: {path}", soft_wrap=True)


def watch(
    results: Annotated[Path, typer.Argument()] = Path("runs"),
    once: Annotated[bool, typer.Option("--once")] = False,
    every: float = 2.0,
) -> None:
    """Show the progress of a reproduction: finished, running and failed runs, and the time left. Ends with the runs."""
    check_positive("every", every)
    from rich.live import Live

    from toa.report.progress import read_progress

    console = make_console()
    progress = read_progress(results)
    if once:
        console.print(_render(progress))
        return
    with Live(_render(progress), console=console, auto_refresh=False) as live:
        while not progress.over:
            time.sleep(every)
            progress = read_progress(results)
            live.update(_render(progress), refresh=True)


def _text(words: str, style: str = "") -> "Text":
    from rich.text import Text

    return Text(show_controls(words), style=style)


def _render(progress: "Progress") -> "Group":
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    parts: list[Text | Table] = [Text(_headline(progress))]
    if progress.total:
        # a bar does not end its line, but a table does
        bar = Table.grid()
        ended = len(progress.done) + len(progress.failed)
        bar.add_row(ProgressBar(total=progress.total, completed=ended, width=60))
        parts.append(bar)
    if progress.running:
        table = Table("running", "for", "of about", "by", box=None, pad_edge=False)
        for run in progress.running[:_SHOWN]:
            estimate = "?" if run.estimate is None else duration(run.estimate)
            table.add_row(_text(run.label), duration(run.seconds), estimate, _text(run.holder))
        parts.append(table)
    parts += [_text(f"FAILED {label}: {error}", style="red") for label, error in progress.failed[-_SHOWN:]]
    parts += [_text(f"done   {line}") for line in progress.done[-_SHOWN:]]
    parts += [_text(line, style="yellow") for line in progress.unreadable]
    return Group(*parts)


def _headline(progress: "Progress") -> str:
    text = (
        f"{len(progress.done)} of {progress.total} done, {len(progress.running)} running, {len(progress.failed)} failed"
    )
    text += "" if progress.waiting is None else f", {progress.waiting} to do"
    if progress.over:
        return f"{text}."
    if progress.seconds_left is None:
        return f"{text}; no finished run to estimate the time from."
    scope = " for the running ones; there is no plan of the others" if progress.waiting is None else ""
    return f"{text}; about {duration(progress.seconds_left)} left{scope}."


def explain(
    model: Path,
    out: Path | None = None,
    sample: int = 0,
    data: Path | None = None,
    data_dir: Path | None = None,
) -> None:
    """Draw the learned operators of a model and what it looked at: one page, and one PNG file per layer and operator.

    Shows heat maps, row sums, distance from the simplex, frequency response and eigenvalues per head, and the mixing
    of one sample. For a saved estimator with --data also the shares of lags and columns in the result. Examples:

    toa explain runs/ETTh1-96-patchtst-toa-gated-2024-1a2b3c4d

    toa explain MODEL --sample 100 --out pages/etth1

    toa explain sensors.toa --data sensors.csv
    """
    check_files(None if model.is_dir() else model, data)

    from toa.report.explain import write_explanation
    from toa.report.operators import tokens_have_order, view_layers

    is_run = (model / "record.json").is_file()
    if is_run and data is not None:
        raise ArgumentError(
            "--data", "be left out for a run, which has its own data", "a run", "use it with a saved estimator"
        )
    subject = _of_run(model, sample, data_dir) if is_run else _of_estimator(model, sample, data)
    console = make_console()
    layers: Any = []
    try:
        layers = view_layers(subject.model, subject.sample)
    except ValueError:
        # without operators there is still what the network looked at
        if subject.importance is None:
            raise
    files = write_explanation(
        layers,
        out or (model if model.is_dir() else model.parent) / "explain",
        heading=f"What {subject.name} has learned",
        lead=f"{subject.lead}; {len(layers)} layers with operators. {subject.tokens}",
        sample=subject.caption,
        ordered=tokens_have_order(subject.model),
        facts=subject.facts,
        importance=subject.importance,
    )
    for line in (subject.tokens, *_most_important(subject.importance)):
        console.print(line, soft_wrap=True)
    for path in files[:-1]:
        console.print(f"figure: {path}", soft_wrap=True)
    console.print(f"{subject.caption}\npage:   {files[-1]}", soft_wrap=True)


def _most_important(importance: "Importance | None") -> list[str]:
    """What the network looked at, and the largest shares of each kind."""
    if importance is None:
        return []
    text, parts = importance
    lines = [f"{text[:1].upper()}{text[1:]}"]
    for name, rows in parts.items():
        largest = sorted(rows.items(), key=lambda pair: -pair[1])[:3]
        lines.append(f"{name}: {', '.join(f'{share:.0%} {one}' for one, share in largest)}")
    return lines


# a description, and shares by title and name
Importance = tuple[str, dict[str, dict[str, float]]]


class _Subject(NamedTuple):
    """A model to explain, a sample for it, and their descriptions."""

    model: "nn.Module"
    sample: Any
    name: str
    lead: str
    caption: str
    facts: "Rows"
    tokens: str
    importance: Importance | None = None


def _of_run(folder: Path, index: int, data_dir: Path | None) -> _Subject:
    from toa.experiments import experiment_of
    from toa.experiments.run import load_run
    from toa.report.operators import describe_tokens
    from toa.training.diagnostics import describe_operators

    run = load_run(folder)
    record = run.record
    dataset = Path(getattr(run.config, "dataset", "")).name
    where = f"task {run.config.task}" + (f" on {dataset}" if dataset else "")
    inputs: Any = None
    try:
        inputs = run.task.sample(run.config, index, data_dir)
        unit = experiment_of(run.config.task).unit
        caption = f"Sample: {unit} {index} of the test data{f' of {dataset}' if dataset else ''}."
    except OSError as error:
        # the data of the run are no longer there
        caption = f"No sample: {error}"
    rows = [("metric", "value"), *((name, f"{value:.4f}") for name, value in sorted(record["metrics"].items()))]
    rows += [("operators", line) for line in describe_operators(record)]
    rows += [("command", record["command"]), ("commit", str(record["commit"])), ("device", record["device"])]
    lead = f"{record['name']}, {where}, seed {record['seed']}, {record['parameters']:,} parameters"
    return _Subject(run.model, inputs, record["name"], lead, caption, rows, describe_tokens(run.model))


def _of_estimator(path: Path, index: int, data: Path | None) -> _Subject:
    from toa.estimators.base import load_estimator
    from toa.report.operators import describe_tokens

    if path.is_dir() and not (path / "config.json").is_file():
        raise ArgumentError(
            path,
            "be the folder of a finished run, with record.json in it, or of a saved estimator, with config.json",
            "neither",
            "finish the run, or choose another folder",
        )
    estimator = load_estimator(path, device="cpu")
    kind = type(estimator).__name__
    backbone = estimator.architecture_["backbone"]
    weights = getattr(estimator, "weights_", {})
    members = ", ".join(f"{weights[name]:.2f} {name}" for name in sorted(weights, key=lambda name: -weights[name]))
    if backbone is None:
        raise ArgumentError(
            path,
            "have a network to explain",
            f"a model without, in which these decide: {members}",
            f"train it with {'--method toa' if kind == 'AnomalyDetector' else '--network-only'}, or see what they "
            "depend on with --page",
        )
    if weights and (weight := weights.get("toa", 0.0)) < _MOST:
        share = f"a weight of {weight:.2f}" if weight else "no weight"
        typer.echo(f"warning: the network has {share} in this model; these decide: {members}.", err=True)
    # a classifier has one network per fold, a forecaster may have one per seed
    network, *others = getattr(estimator.model_, "models", [estimator.model_])
    first = f", the first of {len(others) + 1} networks" if others else ""
    parameters = sum(parameter.numel() for parameter in network.parameters())
    importance = None
    if data is None:
        sample = None
        caption = "No sample: give a table with --data."
    else:
        rows, _ = read_cases_file(data)
        sample = lambda: estimator.run_sample(rows, index)  # noqa: E731
        caption = f"Sample: window or case {index} of {data.name}."
        found = estimator.explain(rows, index)
        importance = found.describe(), {"by lag": found.blocks(_BLOCKS), "by column": found.by_column()}
    chosen = [(name, str(value)) for name, value in estimator.get_params(deep=False).items() if value is not None]
    lead = f"{kind} on {backbone}, columns {', '.join(estimator.columns_[:8])}, {parameters:,} parameters{first}"
    facts = [("parameter", "value"), *chosen]
    tokens = describe_tokens(network, getattr(estimator, "freq_", None), estimator.architecture_.get("patch", 1))
    return _Subject(network, sample, f"{kind} {path.name}", lead, caption, facts, tokens, importance)
