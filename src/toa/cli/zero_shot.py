"""`toa forecast --zero-shot`: forecast a table by the pretrained model, without a fit."""

from functools import partial
from typing import Any

from toa._checks import ArgumentError
from toa._console import make_console
from toa.cli import terminal
from toa.cli.forecast import draw_table

# steps to forecast unless given
_HORIZON = 24
# probability of the interval unless given
_INTERVAL = 0.8
# options that have a part in a forecast without a fit
_USED = frozenset(
    (
        *("data", "horizon", "out", "picture", "model", "id", "time", "values", "interval", "quantiles", "freq"),
        *("season", "missing_values", "day_first", "time_zone", "decimal", "sheet", "keep_formulas", "device"),
        "zero_shot",
    )
)


def forecast_zero_shot(options: dict[str, Any]) -> None:
    """Forecast a table; `options` are those of `toa forecast`."""
    for name, value in options.items():
        if name not in _USED and value not in (None, False, []):
            raise ArgumentError(
                f"--{name.replace('_', '-')}", "be left out with --zero-shot", value, "or fit: leave out --zero-shot"
            )
    terminal.check_files(options["data"])
    interval = _INTERVAL if options["interval"] is None else options["interval"] or None
    terminal.check_share("--interval", interval)
    for level in options["quantiles"] or ():
        terminal.check_share("--quantile", level)
    terminal.check_results(options, "out")

    from toa.estimators.zero_shot_tables import forecast_table, load_pretrained

    # before the table is read
    model = load_pretrained(options["model"])
    frame = terminal.read_data(options["data"], options | {"model": None})
    reading = {name: options[name] for name in ("id", "time", "day_first", "time_zone", "freq")}
    # an option that may be repeated is an empty list unless given
    reading |= {name: options[name] or None for name in ("values", "missing_values")}
    forecast = forecast_table(
        frame,
        _HORIZON if options["horizon"] is None else options["horizon"],
        interval=interval,
        quantiles=options["quantiles"] or (),
        model=model,
        source=reading,
        season=options["season"],
        device=options["device"],
    )
    panel = forecast.panel
    weights = sum(weight.numel() for weight in forecast.model.parameters())
    freq = "" if panel.freq is None else f", every {panel.freq}"
    series = "" if panel.id_column is None else f" of {len(panel)} series"
    console = make_console()
    console.print(f"{len(frame)} rows{series}{freq}; forecast: {', '.join(forecast.columns)}.", soft_wrap=True)
    console.print(f"pretrained model of {weights} weights; nothing was fitted.", soft_wrap=True)
    draw = partial(
        draw_table,
        frame,
        panel,
        forecast.table,
        forecast.columns,
        interval=interval,
        baselines={},
        title=f"{options['data'].name}: zero-shot forecast",
    )
    terminal.write_results(options, {"out": forecast.table}, draw, None, frame)
