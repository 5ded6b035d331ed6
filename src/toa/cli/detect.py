"""The command `toa detect`: find unusual rows of a table."""

import re
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toa._checks import Argument, ArgumentError, Phrase, check_choice
from toa._console import make_console, make_table
from toa.cli import terminal

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from toa.estimators import AnomalyDetector

# number of events in the terminal
_LISTED = 8


def detect(
    data: Path,
    train: Path | None = None,
    model: Path | None = None,
    save: Path | None = None,
    out: Path = Path("detection.csv"),
    events: Path | None = None,
    picture: Path | None = None,
    page: Path | None = None,
    id: str | None = None,
    time: str | None = None,
    values: list[str] | None = None,
    label: str | None = None,
    method: str | None = None,
    threshold: str | None = None,
    contamination: float | None = None,
    alarms_per_day: float | None = None,
    min_length: int | None = None,
    cool_down: int | None = None,
    window: int | None = None,
    missing: str | None = None,
    missing_values: Annotated[list[float] | None, typer.Option("--missing-values")] = None,
    day_first: Annotated[bool | None, typer.Option("--day-first/--month-first")] = None,
    time_zone: str | None = None,
    decimal: str | None = None,
    sheet: str | None = None,
    keep_formulas: Annotated[bool, typer.Option("--keep-formulas")] = False,
    effort: str | None = None,
    time_limit: float | None = None,
    backbone: str | None = None,
    attention: str | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    device: str = "auto",
    progress: Annotated[bool | None, typer.Option("--progress/--no-progress")] = None,
) -> None:
    """Flag unusual rows of a table, and merge them into events with the channels that cause them.

    Combines a network that reconstructs windows with z-score, PCA and Mahalanobis distance. Examples:

    toa detect sensors.csv

    toa detect today.csv --train last-month.csv --save sensors.toa

    toa detect tomorrow.csv --model sensors.toa --out alarms.csv

    toa detect today.csv --train last-month.csv --threshold budget --alarms-per-day 2 --min-length 3 --cool-down 12
    """
    # by name; `fitted` uses those that the estimator has
    options: dict[str, Any] = {
        "data": data,
        "train": train,
        "model": model,
        "save": save,
        "out": out,
        "events": events,
        "picture": picture,
        "page": page,
        "id": id,
        "time": time,
        "values": values,
        "label": label,
        "method": method,
        "threshold": threshold,
        "contamination": contamination,
        "alarms_per_day": alarms_per_day,
        "min_length": min_length,
        "cool_down": cool_down,
        "window": window,
        "missing": missing,
        "missing_values": missing_values,
        "day_first": day_first,
        "time_zone": time_zone,
        "decimal": decimal,
        "sheet": sheet,
        "keep_formulas": keep_formulas,
        "effort": effort,
        "time_limit": time_limit,
        "backbone": backbone,
        "attention": attention,
        "epochs": epochs,
        "seed": seed,
        "device": device,
        "progress": progress,
    }
    _check_options(options)

    source = frame = terminal.read_data(data, options)
    labels = _take_labels(frame, label, data)
    normal = _normal_rows(frame, options) if model is None else None
    _check_names(frame, (id, time), data)

    from toa.estimators import AnomalyDetector
    from toa.estimators.detector import MODELS

    if method is not None:
        check_choice("--method", method, MODELS)
    with terminal.shown_as("data", "data" if train is None else "--train"):
        detector = terminal.fitted(AnomalyDetector, options, normal)
    if model is not None:
        frame = terminal.without_extra_columns(frame, detector)
    rows, merged = detector.alarms(frame)
    console = make_console()
    for line in _summary(rows, merged, detector, trained=model is None):
        console.print(line, soft_wrap=True)
    if normal is frame:
        console.print("fitted to the searched rows; --train gives normal rows, which is more exact.", soft_wrap=True)
    if len(merged):
        console.print(make_table(_event_rows(merged, _id_column(detector, rows)), left=9))
    if labels is not None:
        _print_evaluation(console, detector, frame, rows, labels)
    draw = partial(_draw, detector, frame, rows, merged, labels, data.name)
    tables = {"out": rows, "events": merged}
    title = f"{data.name}: events"
    terminal.write_results(options, tables, draw, detector, frame, source=source, y=labels, title=title)


def _id_column(detector: "AnomalyDetector", rows: "pd.DataFrame") -> str | None:
    """The column of ids in the rows of a result: the one of the detector, or one with the name of other libraries."""
    from toa.data.layouts import find_layout

    layout = find_layout(rows)
    return layout.id if detector.id is None and layout is not None else detector.id


def _check_options(options: dict[str, Any]) -> None:
    """Raise ValueError for options that contradict each other, and check the files that are read and written.

    The file of the events is by default beside that of the rows.
    """
    model, train, out = (options[name] for name in ("model", "train", "out"))
    if model is not None and train is not None:
        raise ValueError("--train cannot be combined with --model, which is trained already; leave one out.")
    terminal.check_files(options["data"], model, train)
    terminal.check_fit_options(options)
    terminal.check_share("--contamination", options["contamination"])
    if model is None:
        _check_numbers(options["threshold"] or "adaptive", options["contamination"], options["alarms_per_day"])
    beside = out.with_name(re.sub(r"((\.\w+)?(\.gz)?)$", r"-events\1", out.name, count=1))
    options["events"] = options["events"] or beside
    terminal.check_results(options, "out", "events")


def _normal_rows(frame: "pd.DataFrame", options: dict[str, Any]) -> "pd.DataFrame":
    """The rows to train on: those of --train, or else the searched ones."""
    if options["train"] is None:
        terminal.check_table(frame, options)
        return frame
    normal = terminal.read_data(options["train"], options)
    if options["label"] in normal.columns:
        normal = normal.drop(columns=options["label"])
    _check_rows(frame, normal, options)
    return normal


def _draw(
    detector: "AnomalyDetector",
    frame: "pd.DataFrame",
    rows: "pd.DataFrame",
    events: "pd.DataFrame",
    labels: Any,
    name: str,
) -> tuple[Any, str]:
    from toa.report.figures import draw_alarms

    id = _id_column(detector, rows)
    results = ("score", "anomaly", "event", "why", id)
    figure, series = draw_alarms(
        frame,
        rows,
        events,
        detector.columns_,
        thresholds=detector.fitted_.thresholds.of_rows,
        id=id,
        time=next((column for column in rows if column not in results), None),
        labels=labels,
        title=f"{name}: events in red" + ("" if labels is None else ", known anomalies in grey"),
    )
    return figure, f" (4 of {series} series)" if series > 4 else ""


def _check_numbers(rule: str, contamination: float | None, alarms_per_day: float | None) -> None:
    """Raise ValueError for a number that the rule does not use, before heavy imports."""
    if rule == "budget":
        unused, value, other_rule = "contamination", contamination, "adaptive"
    else:
        unused, value, other_rule = "alarms-per-day", alarms_per_day, "budget"
    if value is not None:
        raise ArgumentError(
            f"--{unused}",
            f"be left out with --threshold {rule}, which does not use it",
            f"{value:g}",
            f"leave it out, or give --threshold {other_rule}",
        )


def _take_labels(frame: "pd.DataFrame", label: str | None, path: Path) -> "np.ndarray | None":
    """Remove the column of known anomalies from a table and return it."""
    if label is None:
        return None
    if label not in frame.columns:
        raise ArgumentError(path, f"have a column {label!r}", ", ".join(map(repr, frame.columns)))
    column = frame.pop(label)
    wrong = ~column.isin((0, 1))
    if wrong.any():
        row = int(wrong.to_numpy().argmax())
        raise ArgumentError(
            path,
            f"have 0 or 1 in column {label!r}",
            f"{column.iloc[row]} at data row {row + 1}",
            "name the column of known anomalies with --label",
        )
    return column.to_numpy().astype(bool)


def _check_rows(frame: "pd.DataFrame", normal: "pd.DataFrame", options: dict[str, Any]) -> None:
    """Raise ValueError for a table that a detector of normal rows could not search, before it is trained."""
    import numpy as np

    from toa.data.frames import match_panel, read_panel

    reading: Any = {name: options[name] or None for name in ("id", "time", "values")}
    reading |= {"missing": options["missing"] or "error", "missing_values": options["missing_values"] or None}
    reading |= {name: options[name] for name in ("day_first", "time_zone")}
    trained = read_panel(normal, name="--train", **reading)

    from toa.estimators.sizes import choose_window

    window = choose_window(options["window"], max(trained.lengths))
    searched = read_panel(frame, usual_freq=trained.freq, **reading)
    columns = zip(searched.columns, np.concatenate(searched.values).T, strict=True)
    new = [name for name, values in columns if name not in trained.columns and np.isin(values, (0, 1)).all()]
    try:
        panel = match_panel(searched, trained.columns, trained.ids if options["id"] else None)
    except ArgumentError as error:
        give_label = [f"give --label {shlex.quote(column)}, if it marks known anomalies" for column in new[:1]]
        raise error.with_remedies(*error.remedies, *give_label) from None
    remedy = Phrase("fit with a smaller ", Argument("window"))
    panel.check_rows(window, f"one window of {window} rows", "pass more of its rows", remedy)


def _check_names(frame: "pd.DataFrame", used: tuple[str | None, ...], path: Path) -> None:
    """Raise ValueError for an id or time column with the name of a result, before training."""
    from pandas.api.types import is_numeric_dtype

    from toa.estimators.detector import RESULTS

    for name in frame:
        if name in RESULTS and (name in used or not is_numeric_dtype(frame[name])):
            rule = "have other names of its id and time columns than a result has"
            raise ArgumentError(path, rule, repr(name), "rename it")


def _summary(rows: "pd.DataFrame", events: "pd.DataFrame", detector: "AnomalyDetector", *, trained: bool) -> list[str]:
    """The methods, and the numbers of flagged rows and events."""
    flagged = int(rows["anomaly"].sum())
    channels = detector.columns_
    more = f" and {len(channels) - _LISTED} more" if len(channels) > _LISTED else ""
    network = detector.architecture_["backbone"]
    by_windows = network is not None or detector.choice_ is not None
    reach = ": a strong event may also raise the scores of as many rows before and after it" if by_windows else ""
    # if the rows drift, the threshold, which held-out rows set, can lie above every score
    share = rows["score"].max() / (detector.threshold_ or 1.0)
    place = int(rows["score"].argmax()) + 1
    highest = "" if flagged else f" The highest score is {share:.2f} times the threshold, at data row {place}."
    lines = [
        f"channels: {', '.join(channels[:_LISTED])}{more}.",
        f"{flagged} of {len(rows)} rows flagged, with scores above {detector.threshold_:.4g}, in {len(events)} events; "
        f"windows of {detector.window_} rows{reach}.{highest}",
        f"expected in normal rows: {_expected(detector)}.",
    ]
    if detector.choice_ is None:
        return [*lines, f"method: {detector.model}{f', {network}' if network else ''}."]
    names = [f"{name} ({network})" if name == "toa" else name for name in detector.weights_]
    lines.append(f"mean of: {', '.join(names)}.")
    precision = detector.choice_.precision
    if precision:
        shown = ", ".join(f"{name} {value:.3f}" for name, value in sorted(precision.items(), key=lambda pair: -pair[1]))
        lines.append(f"average precision on anomalies injected into held-out rows: {shown}.")
    if network is None:
        if not trained:
            why = "the model has none"
        elif detector.truncated_:
            why = "it would end after --time-limit"
        else:
            why = "--effort is too low for this table"
        lines.append(f"no network: {why}.")
    return lines


def _expected(detector: "AnomalyDetector") -> str:
    """False alarms that the rule of the threshold allows."""
    if detector.threshold == "budget":
        return f"events, at most {detector.alarms_per_day or 1.0:g} per day, approximately"
    share = f"about {100.0 * detector.contamination:g} % of them above the threshold"
    return f"{share}; after a fit to few rows usually fewer, sometimes several times as many"


def _event_rows(events: "pd.DataFrame", id: str | None) -> list[tuple[str, ...]]:
    """The most severe events, for the terminal."""
    names = ["event", *([id] if id else []), "start", "end", "peak", "rows", "severity", "why"]
    table = events[names].head(_LISTED).assign(severity=[f"{value:.3g}" for value in events["severity"].head(_LISTED)])
    rows = [tuple(names), *(tuple(map(str, row)) for row in table.itertuples(index=False))]
    if len(events) > _LISTED:
        rows.append((f"{len(events) - _LISTED} more", *[""] * (len(names) - 1)))
    return rows


def _print_evaluation(
    console: Any, detector: "AnomalyDetector", frame: "pd.DataFrame", rows: "pd.DataFrame", labels: "np.ndarray"
) -> None:
    """Scores against labels: the flags, and each method beside the result."""
    import numpy as np
    from sklearn.metrics import average_precision_score

    from toa.training.detection import point_metrics, undefined, vus_metrics

    reason = undefined(labels)
    if reason is not None:
        console.print(f"not evaluated: {reason}.", soft_wrap=True)
        return
    metrics = point_metrics(labels, rows["anomaly"].to_numpy().astype(bool))
    shown = ", ".join(f"{name} {value:.3f}" for name, value in metrics.items() if value is not None)
    console.print(f"against the labels: {shown}", soft_wrap=True)
    members = detector.member_scores(frame)
    scores = {
        "result": rows["score"],
        **{name: members[name] for name in members if name in (*detector.scorers_, "toa")},
    }
    # buffers around anomalies must not reach into another series
    id = _id_column(detector, rows)
    series = [np.arange(len(rows))] if id is None else list(rows.groupby(id).indices.values())
    labelled = [places for places in series if undefined(labels[places]) is None]
    title = "VUS-PR" if id is None else f"VUS-PR, mean of {len(labelled)} series"
    table: list[tuple[str, ...]] = [("method", title, "average precision")]
    for name, score in scores.items():
        surfaces = [
            vus_metrics(labels[places], score.to_numpy()[places], max_buffer=detector.window_, rules="tsb-ad")["vus_pr"]
            for places in labelled
        ]
        defined = [value for value in surfaces if value is not None]
        precision = average_precision_score(labels, score)
        table.append((name, f"{np.mean(defined):.3f}" if defined else "-", f"{precision:.3f}"))
    console.print(make_table(table))
