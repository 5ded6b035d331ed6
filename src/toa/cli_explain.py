"""The command `toa explain`: what the operators of a model have learned. Heavy imports wait until it runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toa._terminal import clear_errors, make_console

if TYPE_CHECKING:
    from torch import Tensor

    from toa.experiments.saved import SavedRun


def explain(
    model: Annotated[Path, typer.Argument(help="Folder of a finished run, as `toa run` and `toa demix` leave it.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the page and the pictures; MODEL/explain if not given.")
    ] = None,
    sample: Annotated[
        int, typer.Option(help="Window or case of the run's test data that the mixing is shown for, from 0.")
    ] = 0,
    data_dir: Annotated[Path | None, typer.Option(help="Where data are looked for first.")] = None,
) -> None:
    """Draw what a model's operators have learned: a page and a PNG file for each layer and operator.

    Heat maps, row sums, distance from the simplex, frequency response and eigenvalues of each head, and the mixing of
    one sample. Examples:

    toa explain runs/ETTh1-96-patchtst-toa-gated-2024-1a2b3c4d

    toa explain MODEL --sample 100 --out pages/etth1
    """
    with clear_errors():
        from toa.experiments.saved import load_run
        from toa.report.explain import write_explanation
        from toa.report.operator_views import tokens_have_order, view_layers

        run = load_run(model)
        inputs, said = _sample(run, sample, data_dir)
        layers = view_layers(run.model, inputs)
        files = write_explanation(
            layers,
            model / "explain" if out is None else out,
            heading=f"What the operators of {run.record['name']} have learned",
            lead=_lead(run, layers_seen=len(layers)),
            sample=said,
            ordered=tokens_have_order(run.model),
            facts=_facts(run),
        )
        console = make_console()
        for path in files[:-1]:
            console.print(f"figure: {path}", soft_wrap=True)
        console.print(f"{said}\npage:   {files[-1]}", soft_wrap=True)


def _sample(run: "SavedRun", index: int, data_dir: Path | None) -> "tuple[tuple[Tensor | None, ...] | None, str]":
    """The sample, and what it is in words; a run outlives its data."""
    try:
        inputs = run.sample(index, data_dir)
    except OSError as error:
        return None, f"No sample: {error}"
    kind = {"forecast": "window", "anomaly": "window", "classify": "case", "demixing": "signal"}[run.task]
    dataset = getattr(run.config, "dataset", "")
    return inputs, f"Sample: {kind} {index} of the test data{f' of {Path(dataset).name}' if dataset else ''}."


def _lead(run: "SavedRun", *, layers_seen: int) -> str:
    record = run.record
    dataset = getattr(run.config, "dataset", "")
    where = f" on {Path(dataset).name}" if dataset else ""
    return (
        f"{record['name']}, task {run.task}{where}, seed {record['seed']}, {record['parameters']:,} parameters; "
        f"{layers_seen} layers with operators."
    )


def _facts(run: "SavedRun") -> list[tuple[str, str]]:
    record = run.record
    rows = [("metric", "value"), *((name, f"{value:.4f}") for name, value in sorted(record["metrics"].items()))]
    return [*rows, ("command", record["command"]), ("commit", str(record["commit"])), ("device", record["device"])]
