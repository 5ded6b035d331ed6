"""The commands `toa demo`, four small tasks, and `toa demix`, the demixing experiment.

Heavy imports wait until a command needs them.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toa._console import make_console, make_table, show_epochs

if TYPE_CHECKING:
    from toa.report.html_page import Section


def demo(out: Path = Path("runs/demo"), device: str = "auto", steps: int | None = None) -> None:
    """Separate signals with operators and with softmax, forecast a small CSV, classify, and find an anomaly.

    All on small data, in a few minutes.
    """
    from toa.report.figures import save_figure
    from toa.report.html_page import write_sections
    from toa_paper.demixing import run_demixing
    from toa_paper.demixing.figure import draw_demixing
    from toa_paper.demo import PARTS, demo_share, run_part
    from toa_paper.known_operator import EPOCHS, FactorTable, compare
    from toa_paper.report.demo import (
        DEMIXING_NOTE,
        HEADING,
        SECTIONS,
        TITLES,
        demixing_section,
        demixing_table,
        operator_section,
    )

    console = make_console()
    options: dict[str, Any] = {"steps": steps, "device": device, "command": ["toa", *sys.argv[1:]]}
    with show_epochs() as observe:
        demixing = run_demixing("demo", out / "demixing", **options, observe=observe)
    console.print(make_table(demixing_table(demixing, published=False), title=TITLES["demixing"]))
    figure = save_figure(draw_demixing(demixing), out / "demixing.png")
    forecast = _forecast_part(out, steps, device)
    console.print(make_table(forecast.table, title=forecast.title))
    console.print(forecast.reading)
    sections = [demixing_section(demixing, figure, title=TITLES["demixing"], note=DEMIXING_NOTE), forecast]
    for part in PARTS:
        with show_epochs() as observe:
            runs = run_part(part, out / part, **options, observe=observe)
        sections.append(SECTIONS[part](runs))
        console.print(make_table(sections[-1].table, title=sections[-1].title))
    table = FactorTable()
    epochs = max(1, round(EPOCHS * demo_share(steps)))
    with show_epochs() as observe:
        compared = compare(
            table, out / "operator", epochs=epochs, device=device, command=options["command"], observe=observe
        )
    sections.append(operator_section(table, compared))
    console.print(make_table(sections[-1].table, title=sections[-1].title))
    page = write_sections(HEADING, sections, out / "index.html")
    console.print(f"figure: {figure}\nfigure: {out / 'forecast.png'}\npage:   {page}", soft_wrap=True)


def _forecast_part(out: Path, steps: int | None, device: str) -> "Section":
    """Write a CSV file, forecast its last rows from the rows before, and draw the forecast beside the baselines."""
    import pandas as pd

    from toa.data import read_frame
    from toa.estimators import Forecaster
    from toa.estimators.baselines import BASELINES
    from toa.report.figures import draw_forecast, save_figure
    from toa_paper.demo import HORIZON, TESTED, write_rentals
    from toa_paper.report.demo import forecast_section

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
    from toa.report.figures import save_figure
    from toa.report.html_page import write_sections
    from toa_paper.demixing import run_demixing
    from toa_paper.demixing.figure import draw_demixing
    from toa_paper.report.demo import demixing_section, demixing_table

    folder = Path(f"runs/demix-{preset}") if out is None else out
    chosen: dict[str, Any] = {"steps": steps, "learning_rate": learning_rate, "sor": sor, "tf32": tf32}
    chosen |= {"attentions": attention, "seeds": seed, "device": device, "command": ["toa", *sys.argv[1:]]}
    with show_epochs() as observe:
        result = run_demixing(preset, folder, **chosen, observe=observe)
    heading = f"Harmonic demixing, preset {preset!r}"
    published = preset == "paper"
    console = make_console()
    console.print(make_table(demixing_table(result, published=published), title=heading))
    figure = save_figure(draw_demixing(result), folder / "demixing.png")
    section = demixing_section(result, figure, published=published)
    page = write_sections(heading, [section], folder / "index.html")
    console.print(f"figure: {figure}\npage:   {page}", soft_wrap=True)
