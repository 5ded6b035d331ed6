"""The command `toa explain`: what the operators of a model have learned. Heavy imports wait until it runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toa._console import make_console
from toa.cli.tables import read_cases_file
from toa.cli.terminal import clear_errors

if TYPE_CHECKING:
    from torch import Tensor, nn

    from toa.experiments.saved import SavedRun
    from toa.report.page import Rows


def explain(
    model: Annotated[
        Path,
        typer.Argument(
            help="Folder of a finished run, as `toa run` and `toa demix` leave it, or what an estimator saved."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the page and the pictures; explain beside the model if not given.")
    ] = None,
    sample: Annotated[
        int, typer.Option(help="Window or case, from 0, that the mixing is shown for: of the run's test data, or DATA.")
    ] = 0,
    data: Annotated[
        Path | None, typer.Option(help="Table that the sample of a saved estimator is taken from: CSV, or .ts.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where the data of a run are looked for first.")] = None,
) -> None:
    """Draw what a model's operators have learned: a page and a PNG file for each layer and operator.

    Heat maps, row sums, distance from the simplex, frequency response and eigenvalues of each head, and the mixing of
    one sample. Examples:

    toa explain runs/ETTh1-96-patchtst-toa-gated-2024-1a2b3c4d

    toa explain MODEL --sample 100 --out pages/etth1

    toa explain sensors.toa --data sensors.csv
    """
    with clear_errors():
        from toa.report.explain import write_explanation
        from toa.report.operator_views import tokens_have_order, view_layers

        is_run = (model / "record.json").is_file()
        if is_run and data is not None:
            raise ValueError("--data goes with a saved estimator; a run has its own, got a run; leave it out.")
        seen = _of_run(model, sample, data_dir) if is_run else _of_estimator(model, sample, data)
        layers = view_layers(seen.model, seen.sample)
        files = write_explanation(
            layers,
            out or (model if model.is_dir() else model.parent) / "explain",
            heading=f"What the operators of {seen.name} have learned",
            lead=f"{seen.lead}; {len(layers)} layers with operators.",
            sample=seen.said,
            ordered=tokens_have_order(seen.model),
            facts=seen.facts,
        )
        console = make_console()
        for path in files[:-1]:
            console.print(f"figure: {path}", soft_wrap=True)
        console.print(f"{seen.said}\npage:   {files[-1]}", soft_wrap=True)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Seen:
    """A model to explain, a sample for it, and both in words."""

    model: "nn.Module"
    sample: Any
    name: str
    lead: str
    said: str
    facts: "Rows"


def _of_run(folder: Path, index: int, data_dir: Path | None) -> _Seen:
    from toa.experiments.saved import load_run

    run = load_run(folder)
    inputs, said = _sample(run, index, data_dir)
    record = run.record
    dataset = getattr(run.config, "dataset", "")
    where = f" on {Path(dataset).name}" if dataset else ""
    rows = [("metric", "value"), *((name, f"{value:.4f}") for name, value in sorted(record["metrics"].items()))]
    rows += [("command", record["command"]), ("commit", str(record["commit"])), ("device", record["device"])]
    return _Seen(
        model=run.model,
        sample=inputs,
        name=record["name"],
        lead=f"{record['name']}, task {run.task}{where}, seed {record['seed']}, {record['parameters']:,} parameters",
        said=said,
        facts=rows,
    )


def _of_estimator(path: Path, index: int, data: Path | None) -> _Seen:
    from toa.estimators.base import load_estimator

    if path.is_dir() and not (path / "config.json").is_file():
        raise ValueError(
            f"{path} must be the folder of a finished run, with record.json in it, or of a saved estimator, with "
            "config.json, got neither; finish the run, or name another."
        )
    estimator: Any = load_estimator(path, device="cpu")
    kind = type(estimator).__name__
    backbone = estimator.architecture_["backbone"]
    parameters = sum(parameter.numel() for parameter in estimator.model_.parameters())
    if data is None:
        sample, said = None, "No sample: name a table with --data."
    else:
        rows, _ = read_cases_file(data)
        sample, said = (lambda: estimator.run_sample(rows, index)), f"Sample: window or case {index} of {data.name}."
    chosen = [(name, str(value)) for name, value in estimator.get_params(deep=False).items() if value is not None]
    return _Seen(
        model=estimator.model_,
        sample=sample,
        name=f"{kind} {path.name}",
        lead=f"{kind} on {backbone}, columns {', '.join(estimator.columns_[:8])}, {parameters:,} parameters",
        said=said,
        facts=[("parameter", "value"), *chosen],
    )


def _sample(run: "SavedRun", index: int, data_dir: Path | None) -> "tuple[tuple[Tensor | None, ...] | None, str]":
    """The sample, and what it is in words; a run outlives its data."""
    try:
        inputs = run.sample(index, data_dir)
    except OSError as error:
        return None, f"No sample: {error}"
    kind = {"forecast": "window", "anomaly": "window", "classify": "case", "demixing": "signal"}[run.task]
    dataset = getattr(run.config, "dataset", "")
    return inputs, f"Sample: {kind} {index} of the test data{f' of {Path(dataset).name}' if dataset else ''}."
