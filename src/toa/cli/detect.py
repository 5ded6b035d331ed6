"""The command `toa detect`: find unusual rows of a table."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toa._console import make_console
from toa.cli import terminal
from toa.cli.terminal import DeviceOption, clear_errors

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from toa.report.figures import ScoredSeries

# number of series in the figure, and of ranges in the terminal
_DRAWN = 4
_LISTED = 8


def detect(
    data: Annotated[Path, typer.Argument(help="Table to search: a CSV file with a header, one row per time step.")],
    train: Annotated[Path | None, typer.Option(help="Table of normal rows to train on; default: DATA.")] = None,
    model: terminal.ModelOption = None,
    save: terminal.SaveOption = None,
    out: Annotated[Path, typer.Option(help="File of scores and flags.")] = Path("detection.csv"),
    picture: Annotated[Path | None, typer.Option(help="Figure of the scores; default: beside the table.")] = None,
    id: Annotated[str | None, typer.Option(help="Column of series ids, if the table has several series.")] = None,
    time: terminal.TimeOption = None,
    values: terminal.ValuesOption = None,
    label: Annotated[
        str | None, typer.Option(help="Column of DATA with 1 for known anomalies, to evaluate the result.")
    ] = None,
    contamination: Annotated[
        float | None, typer.Option(help="Share of the training rows above the threshold; default: 0.01.")
    ] = None,
    window: Annotated[int | None, typer.Option(help="Number of rows per window; default: by data size.")] = None,
    missing: terminal.MissingOption = None,
    backbone: Annotated[str | None, typer.Option(help="{reconstructors}; default: by data size.")] = None,
    attention: Annotated[str | None, typer.Option(help="{attentions}; default: toa-softmax.")] = None,
    epochs: terminal.EpochsOption = None,
    seed: terminal.SeedOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Flag unusual rows of a table.

    A model learns to reconstruct the training rows; rows with a large reconstruction error are flagged. Examples:

    toa detect sensors.csv

    toa detect today.csv --train last-month.csv --save sensors.toa

    toa detect tomorrow.csv --model sensors.toa --out alarms.csv
    """
    # by name; `fitted` uses those that the estimator has
    options = dict(locals())
    with clear_errors(detect):
        if model is not None and train is not None:
            raise ValueError("--train cannot be combined with --model, which is trained already; leave one out.")
        terminal.check_files(data, model, train)
        picture = terminal.check_picture(picture, out)
        terminal.check_destinations(out, picture, save)
        terminal.check_share("--contamination", contamination)

        from toa.estimators import AnomalyDetector
        from toa.report.figures import draw_scores, save_figure

        frame = terminal.read_frame(data)
        labels = _take_labels(frame, label, data)
        normal = None if model is not None else frame if train is None else terminal.read_frame(train)
        if normal is not None and train is not None and label in normal.columns:
            normal = normal.drop(columns=label)
        detector = terminal.fitted(AnomalyDetector, options, model=model, device=device, data=normal)
        if save is not None:
            # first, because later steps may fail
            detector.save(save)
        if model is not None:
            frame = terminal.without_extra_columns(frame, detector)
        found = detector.predict(frame)
        console = make_console()
        for line in _summary(found, detector, labels):
            console.print(line, soft_wrap=True)
        console.print(f"table:   {terminal.write_table(found, out)}", soft_wrap=True)
        series = _series(found, detector.id, labels)
        title = f"{data.name}: score, threshold and flagged rows"
        figure = draw_scores(series[:_DRAWN], {"detector": detector.threshold_}, title)
        drawn = save_figure(figure, picture)
        more = f" ({_DRAWN} of {len(series)} series)" if len(series) > _DRAWN else ""
        console.print(f"picture: {drawn}{more}", soft_wrap=True)
        if save is not None:
            console.print(f"model:   {save}", soft_wrap=True)


def _take_labels(frame: "pd.DataFrame", label: str | None, path: Path) -> "np.ndarray | None":
    """Remove the column of known anomalies from a table and return it."""
    if label is None:
        return None
    if label not in frame.columns:
        raise ValueError(f"{path} must have a column {label!r}, got {', '.join(map(repr, frame.columns))}.")
    column = frame.pop(label)
    wrong = ~column.isin((0, 1))
    if wrong.any():
        row = int(wrong.to_numpy().argmax())
        raise ValueError(
            f"{path} must have 0 or 1 in column {label!r}, got {column.iloc[row]!r} at data row {row + 1}."
        )
    return column.to_numpy().astype(bool)


def _summary(found: "pd.DataFrame", detector: Any, labels: "np.ndarray | None") -> list[str]:
    """The number of flagged rows, the flagged ranges, and the scores against labels."""
    from toa.tasks.detection import Runs, point_metrics, undefined

    flags = found["anomaly"].to_numpy().astype(bool)
    lines = [
        f"{int(flags.sum())} of {len(flags)} rows flagged, with scores above {detector.threshold_:.4g}; windows of "
        f"{detector.window_} rows, {detector.architecture_['backbone']}."
    ]
    if detector.id is None:
        runs = Runs.of(flags)
        times = found.get(detector.time or next((c for c in found if c not in ("score", "anomaly")), ""), None)
        for start, stop in list(zip(runs.starts, runs.stops, strict=True))[:_LISTED]:
            when = f" ({times.iloc[start]} to {times.iloc[stop - 1]})" if times is not None else ""
            lines.append(f"  rows {start + 1} to {stop}{when}")
        if len(runs.starts) > _LISTED:
            lines.append(f"  and {len(runs.starts) - _LISTED} more ranges")
    if labels is not None:
        reason = undefined(labels)
        metrics = point_metrics(labels, flags)
        shown = ", ".join(f"{name} {value:.3f}" for name, value in metrics.items() if value is not None)
        lines.append(f"against the labels: {shown}" if reason is None else f"not evaluated: {reason}.")
    return lines


def _series(found: "pd.DataFrame", id: str | None, labels: "np.ndarray | None") -> "list[ScoredSeries]":
    import numpy as np

    from toa.report.figures import ScoredSeries

    score = found["score"].to_numpy()
    ranges = ({} if labels is None else {"true": labels}) | {"flagged": found["anomaly"].to_numpy().astype(bool)}
    places = {"": np.arange(len(found))} if id is None else found.groupby(id, sort=False).indices
    return [
        ScoredSeries(name=str(name), score=score[rows], ranges={key: flags[rows] for key, flags in ranges.items()})
        for name, rows in places.items()
    ]
