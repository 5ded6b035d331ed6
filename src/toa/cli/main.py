"""The command line: parse, call, print. Heavy imports wait until a command needs them."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import toa
from toa._console import make_console, make_table, show_epochs
from toa._threads import wait_passively
from toa.cli.bench import bench_app
from toa.cli.classify import classify
from toa.cli.data import data_app
from toa.cli.detect import detect
from toa.cli.doctor import doctor
from toa.cli.forecast import forecast
from toa.cli.report import compare, explain, report, watch
from toa.cli.run import reproduce, run
from toa.cli.terminal import Command, ResumableCommand

if TYPE_CHECKING:
    from toa.report.page import Section

# no import above imports torch
wait_passively()

app = typer.Typer(
    name="toa",
    help="Operator attention on time series.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.add_typer(data_app, name="data")
app.add_typer(bench_app, name="bench")
for _command in (run, reproduce, compare, report, watch, forecast, detect, classify, doctor, explain):
    app.command(cls=ResumableCommand if _command in (run, reproduce) else Command)(_command)


@app.callback(invoke_without_command=True)
def main(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """Operator attention on time series."""
    if version:
        typer.echo(f"toa {toa.__version__}")
        raise typer.Exit


@app.command(cls=ResumableCommand)
def demo(out: Path = Path("runs/demo"), device: str = "auto", steps: int | None = None) -> None:
    """Forecast a small CSV beside baselines, then train three small models for each of three tasks (a few minutes).

    The tasks are demixing, classification and anomaly detection.
    """
    from toa.experiments.demo import PARTS, run_demixing, run_part
    from toa.report.demo import HEADING, SECTIONS, TITLES, demixing_section, demixing_table
    from toa.report.figures import draw_demixing, save_figure
    from toa.report.page import write_sections

    console = make_console()
    options: dict[str, Any] = {"steps": steps, "device": device, "command": ["toa", *sys.argv[1:]]}
    forecast = _forecast_part(out, steps, device)
    console.print(make_table(forecast.table, title=forecast.title))
    console.print(forecast.reading)
    with show_epochs() as observe:
        demixing = run_demixing("demo", out / "demixing", **options, observe=observe)
    console.print(make_table(demixing_table(demixing, published=False), title=TITLES["demixing"]))
    figure = save_figure(draw_demixing(demixing), out / "demixing.png")
    sections = [forecast, demixing_section(demixing, figure, title=TITLES["demixing"])]
    for part in PARTS:
        with show_epochs() as observe:
            runs = run_part(part, out / part, **options, observe=observe)
        sections.append(SECTIONS[part](runs))
        console.print(make_table(sections[-1].table, title=sections[-1].title))
    page = write_sections(HEADING, sections, out / "index.html")
    console.print(f"figure: {out / 'forecast.png'}\nfigure: {figure}\npage:   {page}", soft_wrap=True)


def _forecast_part(out: Path, steps: int | None, device: str) -> "Section":
    """Write a CSV file, forecast its last rows from the rows before, and draw the forecast beside the baselines."""
    import pandas as pd

    from toa.data import read_frame
    from toa.estimators import Forecaster
    from toa.estimators.baselines import BASELINES
    from toa.experiments.demo import HORIZON, TESTED, write_rentals
    from toa.report.demo import forecast_section
    from toa.report.figures import draw_forecast, save_figure

    file = write_rentals(out / "rentals.csv")
    frame = read_frame(file)
    epochs = None if steps is None else 1
    model = Forecaster(horizon=HORIZON, interval=0.8, epochs=epochs, device=device, progress=True)
    model.fit(frame[:-TESTED])
    tested = model.backtest(frame, test_size=TESTED)
    times = frame.assign(hour=pd.to_datetime(frame["hour"]))
    figure, _ = draw_forecast(
        times[:-TESTED],
        model.predict(),
        model.columns_,
        time="hour",
        title=f"{file.name}: {HORIZON} hours ahead, from the hours before",
        baselines={name: model.predict_baseline(name) for name in BASELINES},
        actual=times[-TESTED:][:HORIZON],
        interval=model.interval,
    )
    rows = tested.rows(f"at {tested.compared} origins")
    return forecast_section(file, model.weights_, rows, tested.verdicts(), save_figure(figure, out / "forecast.png"))


@app.command(cls=ResumableCommand)
def demix(
    preset: str = "demo",
    attention: list[str] | None = None,
    seed: list[int] | None = None,
    steps: int | None = None,
    learning_rate: float | None = None,
    sor: bool | None = None,
    tf32: bool = True,
    out: Path | None = None,
    device: str = "auto",
) -> None:
    """Run the demixing experiment. Interrupted runs resume; finished ones are only loaded."""
    from toa.experiments.demo import run_demixing
    from toa.report.demo import demixing_section, demixing_table
    from toa.report.figures import draw_demixing, save_figure
    from toa.report.page import write_sections

    folder = Path(f"runs/demix-{preset}") if out is None else out
    chosen: dict[str, Any] = {"steps": steps, "learning_rate": learning_rate, "sor": sor, "tf32": tf32}
    chosen |= {"attentions": attention, "seeds": seed, "device": device, "command": ["toa", *sys.argv[1:]]}
    with show_epochs() as observe:
        result = run_demixing(preset, folder, **chosen, observe=observe)
    heading, published = f"Harmonic demixing, preset {preset!r}", preset == "paper"
    console = make_console()
    console.print(make_table(demixing_table(result, published=published), title=heading))
    figure = save_figure(draw_demixing(result), folder / "demixing.png")
    section = demixing_section(result, figure, published=published)
    page = write_sections(heading, [section], folder / "index.html")
    console.print(f"figure: {figure}\npage:   {page}", soft_wrap=True)


@app.command(cls=Command)
def theory(as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
    """Proposition 1 and its cases: optimal operators, their distance from softmax, and TOA layers that realise them."""
    from toa.theory import theory_table

    rows = theory_table()
    if as_json:
        typer.echo(json.dumps([asdict(row) | {"facts": dict(row.facts)} for row in rows], indent=2))
        return
    table = [("case", "operator", "size", "|sum|", "min", "neg.", "1 head", "heads", "TOA")]
    for row in rows:
        size = f"{row.shape[0]}x{row.shape[1]}" + (f"\nx {row.regimes}" if row.regimes > 1 else "")
        largest, least = f"{row.max_abs_row_sum:.2f}", f"{row.min_entry:.2f}"
        distances = f"{row.simplex_distance:.3f}", f"{row.multihead_distance:.3f}"
        error = max(row.relu_error, row.gated_error, row.softmax_error)
        shown = (size, largest, least, f"{row.negative_share:.0%}", *distances, f"{error:.0e}")
        table.append((row.name, row.title, *shown))
    console = make_console()
    console.print(make_table(table, left=2))
    console.print(
        "|sum|, min, neg.: largest |row sum|, smallest entry, share of negative entries; a softmax head has 1, 0, "
        "0%. 1 head, heads: Frobenius distance to the nearest operator that one softmax head (rows in the "
        "simplex), or any number of heads under a signed output projection, can make. TOA: error of complete "
        "TOA-ReLU, TOA-Gated and TOA-Softmax layers with explicit weights, the worst, in float32, relative to the "
        "largest output."
    )
    failed = [f"{row.name}: {claim}" for row in rows for claim, holds in row.facts.items() if not holds]
    console.print(f"claims of the lemmas that fail: {'; '.join(failed) or 'none'}")
