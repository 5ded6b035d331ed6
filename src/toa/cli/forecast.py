"""The command `toa forecast`: forecast the next rows of a table."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toa._console import make_console
from toa.cli import terminal
from toa.cli.terminal import DeviceOption, clear_errors

if TYPE_CHECKING:
    import pandas as pd

    from toa.estimators import Forecaster

_INTERVAL = 0.8
# number of columns whose error is printed
_LISTED = 12


def forecast(
    data: Annotated[Path, typer.Argument(help="Table to forecast: a CSV file with a header, one row per time step.")],
    horizon: Annotated[
        int | None, typer.Option(help="Number of steps to forecast; with --model at most those it was trained for.")
    ] = None,
    out: Annotated[Path, typer.Option(help="File of the forecast.")] = Path("forecast.csv"),
    picture: Annotated[Path | None, typer.Option(help="Figure of the forecast; default: beside the table.")] = None,
    model: terminal.ModelOption = None,
    save: terminal.SaveOption = None,
    id: Annotated[str | None, typer.Option(help="Column of series ids, if the table has several series.")] = None,
    time: terminal.TimeOption = None,
    values: Annotated[
        list[str] | None,
        typer.Option("--value", "--values", help="Column to forecast. Repeatable; default: all other columns."),
    ] = None,
    interval: Annotated[
        float | None, typer.Option(help=f"Probability of the interval; default: {_INTERVAL}; 0 for none.")
    ] = None,
    quantiles: Annotated[
        list[float] | None, typer.Option("--quantile", help="Quantile to forecast as well, such as 0.1. Repeatable.")
    ] = None,
    covariates: Annotated[
        list[str] | None,
        typer.Option("--covariate", help="Column whose future values are known; see --future. Repeatable."),
    ] = None,
    future: Annotated[Path | None, typer.Option(help="Table of the covariates at the forecast steps.")] = None,
    calendar: Annotated[bool, typer.Option("--calendar", help="Use hour, weekday and so on as covariates.")] = False,
    freq: Annotated[str | None, typer.Option(help="Frequency: h, 15min, D, MS, …; default: inferred.")] = None,
    missing: terminal.MissingOption = None,
    test: Annotated[
        float | None, typer.Option(help="Share of the rows, at the end, to keep from training and to evaluate on.")
    ] = None,
    lookback: Annotated[int | None, typer.Option(help="Number of past steps to use; default: by data size.")] = None,
    backbone: Annotated[str | None, typer.Option(help="{backbones}; default: patchtst.")] = None,
    attention: Annotated[str | None, typer.Option(help="{attentions}; default: toa-softmax.")] = None,
    epochs: terminal.EpochsOption = None,
    seed: terminal.SeedOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Forecast the next rows of a table, with intervals and a figure.

    Trains a small model on the table, or loads one from a file. Unset options default by data size. Examples:

    toa forecast load.csv --horizon 96

    toa forecast load.csv --horizon 96 --test 0.2 --save load.toa

    toa forecast today.csv --model load.toa --out tomorrow.csv

    toa forecast shops.csv --horizon 14 --id shop --time day --value sales --covariate promo --future plans.csv
    """
    # by name; `fitted` uses those that the estimator has
    options = dict(locals())
    with clear_errors(forecast):
        terminal.check_files(data, model, future)
        picture = terminal.check_picture(picture, out)
        terminal.check_destinations(out, picture, save)
        for option, share in (("--interval", interval or None), ("--test", test)):
            terminal.check_share(option, share)
        for level in quantiles or ():
            terminal.check_share("--quantile", level)
        if model is None and horizon is None:
            raise ValueError("--horizon must be given to train, got nothing; for example --horizon 96.")

        from toa.estimators import Forecaster
        from toa.estimators.backtest import without_last
        from toa.report.figures import PANELS, draw_forecast, save_figure

        frame = terminal.read_frame(data)
        if model is None:
            options["interval"] = _INTERVAL if interval is None else interval or None
        else:
            # it may also shorten the forecast of a trained model
            del options["horizon"]
        training = frame if test is None or model is not None else without_last(frame, test, id)
        forecaster = terminal.fitted(Forecaster, options, model=model, device=device, data=training)
        if save is not None:
            # first, because later steps may fail
            forecaster.save(save)
        if model is not None:
            frame = terminal.without_extra_columns(frame, forecaster, *(forecaster.covariates or ()))
        covariate_table = None if future is None else terminal.read_frame(future)
        # fit has just read this frame and kept its end
        again = None if model is None and training is frame else frame
        found = forecaster.predict(again, future=covariate_table, horizon=horizon)
        console = make_console()
        for line in _summary(forecaster, frame, found, trained=model is None):
            console.print(line, soft_wrap=True)
        if test is not None:
            console.print(_evaluation(forecaster, frame, test), soft_wrap=True)
        console.print(f"table:   {terminal.write_table(found, out)}", soft_wrap=True)
        figure, panels = draw_forecast(
            frame, found, forecaster.columns_, id=forecaster.id, time=forecaster.time_, title=f"{data.name}: forecast"
        )
        drawn = save_figure(figure, picture)
        more = f" ({PANELS} of {panels} series and columns)" if panels > PANELS else ""
        console.print(f"picture: {drawn}{more}", soft_wrap=True)
        if save is not None:
            console.print(f"model:   {save}", soft_wrap=True)


def _summary(forecaster: "Forecaster", frame: "pd.DataFrame", found: "pd.DataFrame", *, trained: bool) -> list[str]:
    """The data, the model and its validation error."""
    parts = forecaster.architecture_
    name = parts["backbone"] + (f"/{parts['attention']['name']}" if parts["attention"] else "")
    weights = sum(weight.numel() for weight in forecaster.model_.parameters())
    sizes = ", ".join(f"{key} {value}" for key, value in parts["settings"].items())
    series = "" if forecaster.id is None else f" of {found[forecaster.id].nunique()} series"
    freq = "" if forecaster.freq_ is None else f", every {forecaster.freq_}"
    lines = [
        f"{len(frame)} rows{series}{freq}; forecast: {', '.join(forecaster.columns_)}.",
        f"{name}, {weights} weights ({sizes}); {forecaster.horizon} steps from the last {forecaster.lookback_}.",
    ]
    if trained:
        schedule = forecaster.schedule_
        loss = "pinball loss" if forecaster.quantiles else forecaster.loss.upper()
        lines.append(
            f"trained for at most {schedule['epochs']} epochs of {schedule['steps']} batches of "
            f"{schedule['batch_size']}; {loss} on held-out rows, standardised: {forecaster.validation_:.4f}."
        )
    return lines


def _evaluation(forecaster: "Forecaster", frame: "pd.DataFrame", test: float) -> str:
    found = forecaster.backtest(frame, test_size=test)
    shown = f"MSE {found.metrics['mse']:.4f}, MAE {found.metrics['mae']:.4f}, standardised"
    if forecaster.interval is not None:
        shown += f"; {found.metrics['coverage']:.1%} of values within the {forecaster.interval:.0%} interval"
    errors = ", ".join(f"{name} {column['mae']:.4g}" for name, column in list(found.by_column.items())[:_LISTED])
    return f"last {test:.0%} of the rows, {len(found.forecast)} forecasts: {shown}; mean error {errors}."
