"""The command `toa explain`: pictures of the learned operators of a model. Heavy imports wait until it runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from toa._console import make_console
from toa.cli.terminal import clear_errors, read_cases_file

if TYPE_CHECKING:
    from torch import nn

    from toa.report.tables import Rows


# blocks of lags in the picture of their shares
_BLOCKS = 16


def explain(
    model: Annotated[
        Path,
        typer.Argument(help="Folder of a finished run of `toa run` or `toa demix`, or a saved estimator."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the page and the pictures; MODEL/explain if not given.")
    ] = None,
    sample: Annotated[
        int,
        typer.Option(
            help="Index, from 0, of the window or case whose mixing is drawn: in the test data of the run, or in DATA."
        ),
    ] = 0,
    data: Annotated[Path | None, typer.Option(help="Table with the sample for a saved estimator: CSV or .ts.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder that is searched first for the data of a run.")] = None,
) -> None:
    """Draw the learned operators of a model and what it looked at: one page, and one PNG file per layer and operator.

    Shows heat maps, row sums, distance from the simplex, frequency response and eigenvalues per head, and the mixing
    of one sample. For a saved estimator with --data also the shares of lags and columns in the result. Examples:

    toa explain runs/ETTh1-96-patchtst-toa-gated-2024-1a2b3c4d

    toa explain MODEL --sample 100 --out pages/etth1

    toa explain sensors.toa --data sensors.csv
    """
    with clear_errors():
        from toa.report.explain import write_explanation
        from toa.report.operators import tokens_have_order, view_layers

        is_run = (model / "record.json").is_file()
        if is_run and data is not None:
            raise ValueError(
                "--data must be left out for a run, which has its own data, got a run; use it with a saved estimator."
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
    from toa.experiments.run import load_run
    from toa.report.operators import describe_tokens
    from toa.tasks.diagnostics import describe_operators

    run = load_run(folder)
    record = run.record
    dataset = Path(getattr(run.config, "dataset", "")).name
    where = f"task {run.config.task}" + (f" on {dataset}" if dataset else "")
    inputs: Any = None
    try:
        inputs = run.task.sample(run.config, index, data_dir)
        caption = f"Sample: {run.task.unit} {index} of the test data{f' of {dataset}' if dataset else ''}."
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
        raise ValueError(
            f"{path} must be the folder of a finished run, with record.json in it, or of a saved estimator, with "
            "config.json, got neither; finish the run, or choose another folder."
        )
    estimator: Any = load_estimator(path, device="cpu")
    kind = type(estimator).__name__
    backbone = estimator.architecture_["backbone"]
    weights = getattr(estimator, "weights_", {})
    members = ", ".join(f"{weights[name]:.2f} {name}" for name in sorted(weights, key=lambda name: -weights[name]))
    if backbone is None:
        raise ValueError(
            f"{path} must have a network to explain, got a {kind} without, in which these decide: {members}; train it "
            "with --network-only, or see what they depend on with --page."
        )
    if weights and "toa" not in weights:
        typer.echo(f"warning: the network has no weight in this model; these decide: {members}.", err=True)
    # a classifier has one network per fold
    network, *others = getattr(estimator.model_, "models", [estimator.model_])
    first = f", the first of {len(others) + 1} networks" if others else ""
    parameters = sum(parameter.numel() for parameter in network.parameters())
    importance = None
    if data is None:
        sample, caption = None, "No sample: give a table with --data."
    else:
        rows, _ = read_cases_file(data)
        sample = lambda: estimator.run_sample(rows, index)  # noqa: E731
        caption = f"Sample: window or case {index} of {data.name}."
        found = estimator.explain(rows, index)
        importance = found.describe(), {"by lag": found.blocks(_BLOCKS), "by column": found.by_column()}
    chosen = [(name, str(value)) for name, value in estimator.get_params(deep=False).items() if value is not None]
    lead = f"{kind} on {backbone}, columns {', '.join(estimator.columns_[:8])}, {parameters:,} parameters{first}"
    facts = [("parameter", "value"), *chosen]
    tokens = describe_tokens(network, getattr(estimator, "freq_", None), getattr(estimator, "_patch", 1))
    return _Subject(network, sample, f"{kind} {path.name}", lead, caption, facts, tokens, importance)
