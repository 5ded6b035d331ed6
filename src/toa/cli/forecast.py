"""The command `toa forecast`: forecast the next rows of a table."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toa._checks import ArgumentError
from toa._console import make_console, make_table
from toa.cli import terminal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd
    from rich.console import Console

    from toa.data.panel import Panel
    from toa.estimators import Forecaster
    from toa.estimators.backtest import Backtest

_INTERVAL = 0.8
# number of columns whose error is printed
_LISTED = 12


def forecast(
    data: Path,
    horizon: int | None = None,
    out: Path = Path("forecast.csv"),
    picture: Path | None = None,
    page: Path | None = None,
    model: Path | None = None,
    save: Path | None = None,
    id: str | None = None,
    time: str | None = None,
    values: Annotated[list[str] | None, typer.Option("--value", "--values")] = None,
    interval: float | None = None,
    quantiles: Annotated[list[float] | None, typer.Option("--quantile")] = None,
    covariates: Annotated[list[str] | None, typer.Option("--covariate")] = None,
    past_covariates: Annotated[list[str] | None, typer.Option("--past-covariate")] = None,
    static: Annotated[list[str] | None, typer.Option("--static")] = None,
    holidays: str | None = None,
    future: Path | None = None,
    calendar: Annotated[bool, typer.Option("--calendar")] = False,
    freq: str | None = None,
    missing: str | None = None,
    missing_values: Annotated[list[float] | None, typer.Option("--missing-values")] = None,
    day_first: Annotated[bool | None, typer.Option("--day-first/--month-first")] = None,
    time_zone: str | None = None,
    decimal: str | None = None,
    sheet: str | None = None,
    keep_formulas: Annotated[bool, typer.Option("--keep-formulas")] = False,
    test: float | None = None,
    season: int | None = None,
    effort: str | None = None,
    time_limit: float | None = None,
    network_only: Annotated[bool, typer.Option("--network-only")] = False,
    lookback: int | None = None,
    backbone: str | None = None,
    attention: str | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    seeds: int | None = None,
    device: str = "auto",
    executor: str | None = None,
    workers: int | None = None,
    address: str | None = None,
    zero_shot: Annotated[bool, typer.Option("--zero-shot")] = False,
    progress: Annotated[bool | None, typer.Option("--progress/--no-progress")] = None,
) -> None:
    """Forecast the next rows of a table, with intervals and a figure.

    Weights a small network and baselines on the table, or loads a model from a file. Unset options default by data
    size. Examples:

    toa forecast load.csv --horizon 96

    toa forecast load.csv --horizon 96 --test 0.2 --save load.toa

    toa forecast today.csv --model load.toa --out tomorrow.csv

    toa forecast load.csv --horizon 96 --zero-shot

    toa forecast shops.csv --horizon 14 --id shop --time day --value sales --covariate promo --future plans.csv

    toa forecast sales/ --horizon 14 --id shop --time day --value sales --executor ray --out forecasts/
    """
    # by name; `fitted` uses those that the estimator has
    options: dict[str, Any] = {
        "data": data,
        "horizon": horizon,
        "out": out,
        "picture": picture,
        "page": page,
        "model": model,
        "save": save,
        "id": id,
        "time": time,
        "values": values,
        "interval": interval,
        "quantiles": quantiles,
        "covariates": covariates,
        "past_covariates": past_covariates,
        "static": static,
        "holidays": holidays,
        "future": future,
        "calendar": calendar,
        "freq": freq,
        "missing": missing,
        "missing_values": missing_values,
        "day_first": day_first,
        "time_zone": time_zone,
        "decimal": decimal,
        "sheet": sheet,
        "keep_formulas": keep_formulas,
        "test": test,
        "season": season,
        "effort": effort,
        "time_limit": time_limit,
        "network_only": network_only,
        "lookback": lookback,
        "backbone": backbone,
        "attention": attention,
        "epochs": epochs,
        "seed": seed,
        "seeds": seeds,
        "device": device,
        "executor": executor,
        "workers": workers,
        "address": address,
        "zero_shot": zero_shot,
        "progress": progress,
    }
    if zero_shot:
        from toa.cli.zero_shot import forecast_zero_shot

        forecast_zero_shot(options)
        return
    if model is None:
        options["interval"] = _INTERVAL if interval is None else interval or None
    if data.is_dir():
        _forecast_folder(options)
        return
    terminal.check_files(data, model, future)
    _check_options(options)
    terminal.check_results(options, "out")

    source = frame = terminal.read_data(data, options)
    covariate_table = None if future is None else terminal.read_data(future, options)
    if model is None:
        _check_table(frame, covariate_table, options)

    from toa.estimators import Forecaster

    check = None if covariate_table is None else partial(_check_future, frame, covariate_table)
    tested = trial = None
    if test is not None and model is None:
        trial = terminal.fitted(Forecaster, options | {"save": None}, frame, test=test, check=check)
        tested = trial.backtest(frame, test_size=test)
    if model is not None:
        # it may also shorten the forecast of a trained model
        del options["horizon"]
    forecaster = terminal.fitted(Forecaster, options, frame, check=check if trial is None else None)
    if model is not None:
        frame = terminal.without_extra_columns(frame, forecaster, *forecaster.inputs)
    # fit has just read this frame and kept its end
    again = None if model is None else frame
    forecasts = forecaster.predict(again, future=covariate_table, horizon=horizon)
    naive = forecaster.predict_baseline("seasonal naive", again, horizon=horizon)
    console = make_console()
    for line in _summary(forecaster, frame, forecasts, trained=model is None):
        console.print(line, soft_wrap=True)
    if test is not None:
        tested = _print_test(console, forecaster, frame, test, tested, trial)
    title = f"{data.name}: forecast"
    how: Any = {"future": covariate_table, "horizon": horizon, "tested": tested, "title": title}
    draw = partial(_draw, forecaster, frame, forecasts, naive, title)
    terminal.write_results(options, {"out": forecasts}, draw, forecaster, frame, source=source, **how)


def _check_table(frame: "pd.DataFrame", table: "pd.DataFrame | None", options: dict[str, Any]) -> None:
    """Raise ValueError for data that cannot be read, or if the table of --future lacks a covariate of them."""
    inputs = [name for kind in ("covariates", "static", "past_covariates") for name in options[kind] or ()]
    values = [*options["values"], *inputs] if options["values"] else None
    # as the forecaster reads it
    reading: Any = {"values": values, "late_columns": True, "categories": dict.fromkeys(inputs)}
    terminal.check_table(frame, options, beside_target=inputs, **reading)
    for name in options["covariates"] or ():
        if table is not None and name in frame and name not in table:
            rule = f"have the covariate {name!r} of the forecast steps"
            raise ArgumentError("--future", rule, f"no such column in {options['future']}", "add it")


def _check_future(frame: "pd.DataFrame", table: "pd.DataFrame", forecaster: "Forecaster") -> None:
    forecaster.check_future(frame, table)


def _print_test(
    console: "Console",
    forecaster: "Forecaster",
    frame: "pd.DataFrame",
    share: float,
    tested: "Backtest | None",
    trial: "Forecaster | None",
) -> "Backtest":
    """Print the errors on the last rows; `trial` is the forecaster that was fitted without them, if there is one."""
    if tested is None:
        tested = forecaster.backtest(frame, test_size=share)
        console.print("if the model was fitted to the tested rows, their errors are too low.", soft_wrap=True)
    if trial is not None and trial.weights_ != forecaster.weights_:
        console.print(f"weights in the test, fitted without its rows: {_weights(trial)}.", soft_wrap=True)
    _print_evaluation(console, forecaster, tested, share)
    return tested


def _check_folder(options: dict[str, Any]) -> None:
    """Raise ValueError for options that are wrong for a folder, before training."""
    from toa.integrations.ray import part_files

    data, out, model = (options[name] for name in ("data", "out", "model"))
    for name in ("picture", "page", "test", "future"):
        if options[name] is not None:
            raise ValueError(f"--{name} goes with a single table, got it for the folder {data}; leave it out.")
    part_files(data)
    terminal.check_fit_options(options)
    if model is None and options["covariates"]:
        raise ArgumentError(
            "--covariate",
            f"be left out for the folder {data}, whose forecasts have no --future",
            ", ".join(options["covariates"]),
            "name columns that are known only in the past with --past-covariate",
        )
    for name in ("horizon", "id"):
        if model is None and options[name] is None:
            raise ArgumentError(f"--{name}", f"be given to train on the folder {data}", "nothing")
    if out.suffix:
        raise ArgumentError("--out", f"be a folder for forecasts of the folder {data}", repr(str(out)))
    if model is None and out.is_dir() and any(out.iterdir()):
        raise ArgumentError(
            "--out",
            f"be a new or empty folder to train on {data}",
            f"{out} with files",
            "choose another, or give the --model that wrote them to forecast the rest",
        )


def _forecast_folder(options: dict[str, Any]) -> None:
    """Fit to a sample of the series of a folder, or load a model, and forecast all series file by file."""
    import tempfile

    _check_folder(options)
    data, out, model, save = (options[name] for name in ("data", "out", "model", "save"))

    from toa.estimators import Forecaster
    from toa.integrations.ray import forecast_parts, sample_series

    terminal.check_destinations(save)
    console = make_console()
    with tempfile.TemporaryDirectory() as folder:
        file = model or save or Path(folder) / "model.toa"
        if model is None:
            sample = sample_series(data, options["id"])
            forecaster = terminal.fitted(Forecaster, options, sample)
            terminal.raise_save_error(options)
            if save is None:
                forecaster.save(file)
            console.print(f"trained on {len(forecaster.ids_)} series, the first of each file.", soft_wrap=True)
        run = {name: options[name] for name in ("workers", "address")}
        horizon = None if model is None else options["horizon"]
        summary = forecast_parts(file, data, out, executor=options["executor"] or "process", horizon=horizon, **run)
    if summary.kept:
        console.print(f"{summary.kept} files were finished before and are kept.", soft_wrap=True)
    console.print(
        f"{summary.series} series, {summary.rows} rows in {summary.files} files: {summary.seconds:.0f} s, "
        f"{summary.series / summary.seconds:.0f} series per second, "
        f"at most {summary.peak_bytes / 2**20:.0f} MiB per process.",
        soft_wrap=True,
    )
    console.print(f"tables:  {out}", soft_wrap=True)


def _check_options(options: dict[str, Any]) -> None:
    """Raise ValueError for options that are wrong for any file."""
    for name in ("executor", "workers", "address"):
        if options[name] is not None:
            raise ValueError(f"--{name} goes with a folder of parquet files, got {options['data']}; leave it out.")
    terminal.check_fit_options(options)
    for option, share in (("--interval", options["interval"] or None), ("--test", options["test"])):
        terminal.check_share(option, share)
    for level in options["quantiles"] or ():
        terminal.check_share("--quantile", level)
    if options["model"] is None and options["horizon"] is None:
        raise ArgumentError("--horizon", "be given to train", "nothing", "for example --horizon 96")
    if options["model"] is None and options["covariates"] and options["future"] is None:
        rule = f"have the covariate {options['covariates'][0]!r} of the forecast steps"
        raise ArgumentError("--future", rule, "no table", "name a file with it, for example --future plans.csv")


def _summary(forecaster: "Forecaster", frame: "pd.DataFrame", forecasts: "pd.DataFrame", *, trained: bool) -> list[str]:
    """The data, the weights, the network and its validation error."""
    series = "" if forecaster.id_ is None else f" of {forecasts[forecaster.id_].nunique()} series"
    freq = "" if forecaster.freq_ is None else f", every {forecaster.freq_}"
    lines = [f"{len(frame)} rows{series}{freq}; forecast: {', '.join(forecaster.columns_)}."]
    if forecaster.id_ is not None and forecaster.time_ in forecasts:
        starts = forecasts.groupby(forecaster.id_)[forecaster.time_].min()
        if starts.nunique() > 1:
            lines.append(
                f"series end at different times: forecasts begin from {starts.min()} ({starts.idxmin()}) to "
                f"{starts.max()} ({starts.idxmax()})."
            )
    trained_ids = set(forecaster.ids_)
    ids = [] if forecaster.id_ is None else forecasts[forecaster.id_].unique().tolist()
    if new := [id for id in ids if id not in trained_ids]:
        lines.append(f"{len(new)} series were not in the training, such as {new[0]!r}: their rows give their scale.")
    if forecaster.choice_ is not None:
        errors, measure = forecaster.choice_.ensemble.errors, forecaster.choice_.ensemble.measure
        shown = ", ".join(
            f"{name} {errors[name]:.3f}" for name in ("ensemble", "toa", "seasonal naive") if name in errors
        )
        mixed = _weights(forecaster)
        lines.append(f"season {forecaster.season_}; weights: {mixed}; {measure} at rolling origins: {shown or 'none'}.")
    parts = forecaster.architecture_
    if parts["backbone"] is None:
        why = "too few rows, or too many columns for --effort quick" if trained else "the model has none"
        return [*lines, f"no network: {why}."]
    if "toa" not in forecaster.weights_:
        return [*lines, f"the network ({parts['backbone']}) has no weight in the forecast."]
    name = parts["backbone"] + (f"/{parts['attention']['name']}" if parts["attention"] else "")
    weights = sum(weight.numel() for weight in forecaster.model_.parameters())
    sizes = ", ".join(f"{key} {value}" for key, value in parts["settings"].items())
    label = f"mean of {len(forecaster.seeds_)} networks: {name}" if len(forecaster.seeds_) > 1 else name
    lines.append(
        f"{label}, {weights} weights ({sizes}); {forecaster.horizon} steps from the last {forecaster.lookback_}."
    )
    if trained:
        schedule = forecaster.schedule_
        loss = "pinball loss" if forecaster.quantiles else forecaster.loss.upper()
        lines.append(
            f"trained for at most {schedule['epochs']} epochs of {schedule['steps']} batches of "
            f"{schedule['batch_size']}; {loss} on held-out rows, standardised: {forecaster.validation_:.4f}."
        )
    return lines


def _weights(forecaster: "Forecaster") -> str:
    return ", ".join(f"{weight:.2f} {name}" for name, weight in forecaster.shown_weights().items())


def _draw(
    forecaster: "Forecaster", frame: "pd.DataFrame", forecasts: "pd.DataFrame", naive: "pd.DataFrame", title: str
) -> tuple[Any, str]:
    return draw_table(
        frame,
        forecaster.read_fitted(frame),
        forecasts,
        forecaster.columns_,
        interval=forecaster.interval,
        baselines={"seasonal naive": naive},
        title=title,
    )


def draw_table(
    frame: "pd.DataFrame",
    panel: "Panel",
    forecasts: "pd.DataFrame",
    columns: "Sequence[str]",
    *,
    interval: float | None,
    baselines: "Mapping[str, pd.DataFrame]",
    title: str,
) -> tuple[Any, str]:
    """The figure of a forecast, and what it leaves out; `panel` was read from the table `frame`."""
    from toa.data.frames import times_by_row
    from toa.report.figures import PANELS, draw_forecast

    id, time = panel.id_column, panel.time_column
    if time in frame.columns:
        # dates in place of their text
        frame = frame.assign(**{str(time): times_by_row(panel)})
    figure, panels = draw_forecast(
        frame, forecasts, columns, title=title, baselines=baselines, interval=interval, id=id, time=time
    )
    return figure, f" ({PANELS} of {panels} series and columns)" if panels > PANELS else ""


def _print_evaluation(console: "Console", forecaster: "Forecaster", tested: "Backtest", test: float) -> None:
    """The errors, the model beside the baselines in the units of the data, and where it loses to one."""
    shown = f"MSE {tested.metrics['mse']:.4f}, MAE {tested.metrics['mae']:.4f}, standardised"
    if "coverage" in tested.metrics:
        shown += f"; {tested.metrics['coverage']:.1%} of values within the {forecaster.interval:.0%} interval"
    errors = ", ".join(f"{name} {column['mae']:.4g}" for name, column in list(tested.by_column.items())[:_LISTED])
    summary = f"last {test:.0%} of the rows, {len(tested.forecast)} forecasts: {shown}; MAE {errors}."
    console.print(summary, soft_wrap=True)
    if tested.note:
        console.print(tested.note, soft_wrap=True)
    console.print(make_table(tested.rows(f"at {tested.compared} origins")))
    for line in tested.verdicts():
        console.print(line, soft_wrap=True)
