"""The command `toa classify`: classify time series."""

import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toa._checks import ArgumentError
from toa._console import make_console, make_table
from toa._limits import list_first
from toa.cli import terminal

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from rich.console import Console
    from rich.table import Table

    from toa.data.panel import Panel
    from toa.estimators import Classifier


def classify(
    data: Path,
    test: Path | None = None,
    model: Path | None = None,
    save: Path | None = None,
    out: Path = Path("predictions.csv"),
    picture: Path | None = None,
    page: Path | None = None,
    label: str | None = None,
    id: str | None = None,
    time: str | None = None,
    values: list[str] | None = None,
    missing: str | None = None,
    missing_values: Annotated[list[float] | None, typer.Option("--missing-values")] = None,
    day_first: Annotated[bool | None, typer.Option("--day-first/--month-first")] = None,
    time_zone: str | None = None,
    decimal: str | None = None,
    sheet: str | None = None,
    keep_formulas: Annotated[bool, typer.Option("--keep-formulas")] = False,
    effort: str | None = None,
    time_limit: float | None = None,
    network_only: Annotated[bool, typer.Option("--network-only")] = False,
    backbone: str | None = None,
    attention: str | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    device: str = "auto",
    progress: Annotated[bool | None, typer.Option("--progress/--no-progress")] = None,
) -> None:
    """Train a classifier on labelled time series, and classify others.

    Weights a small network, convolutional kernels and simple features by cross-validation, or loads a model from a
    file. Ctrl-C keeps the best model so far, with --save. Examples:

    toa classify Motions_TRAIN.ts --test Motions_TEST.ts

    toa classify rows.csv --label kind --test new.csv --save kinds.toa

    toa classify more.csv --model kinds.toa --out more-kinds.csv

    toa classify long.csv --id case --time step --label kind --save kinds.toa
    """
    # by name; `fitted` uses those that the estimator has
    options: dict[str, Any] = {
        "data": data,
        "test": test,
        "model": model,
        "save": save,
        "out": out,
        "picture": picture,
        "page": page,
        "label": label,
        "id": id,
        "time": time,
        "values": values,
        "missing": missing,
        "missing_values": missing_values,
        "day_first": day_first,
        "time_zone": time_zone,
        "decimal": decimal,
        "sheet": sheet,
        "keep_formulas": keep_formulas,
        "effort": effort,
        "time_limit": time_limit,
        "network_only": network_only,
        "backbone": backbone,
        "attention": attention,
        "epochs": epochs,
        "seed": seed,
        "device": device,
        "progress": progress,
    }
    _check_options(options)

    cases, labels = terminal.read_cases_file(data, options)
    if model is None:
        _check_label(cases, labels, options)
    tested, tested_labels = (cases, labels) if test is None else terminal.read_cases_file(test, options)
    console = make_console()
    if model is None:
        cases = _read_cases(console, cases, labels, tested, options)

    from toa.estimators import Classifier

    with terminal.shown_as("y", "the labels"):
        classifier = terminal.fitted(Classifier, options, cases, labels)
    if model is None:
        _print_validation(console, classifier)
    if test is not None or model is not None:
        name = (test or data).name
        table, figure = _evaluate(console, classifier, tested, tested_labels, name, loaded=model is not None)
        how: Any = {"y": tested_labels, "title": f"{name}: classes"}
        terminal.write_results(options, {"out": table}, lambda: (figure, ""), classifier, tested, **how)
    elif save is not None:
        terminal.raise_save_error(options)
        console.print(f"model:   {save}", soft_wrap=True)


def _check_options(options: dict[str, Any]) -> None:
    """Raise ValueError for options that contradict each other, and check the files that are read and written."""
    data, test, model = (options[name] for name in ("data", "test", "model"))
    if model is not None and test is not None:
        raise ValueError("--test cannot be combined with --model, which classifies DATA; leave one out.")
    if model is None and test is None and options["save"] is None:
        raise ArgumentError("--test or --save", "be given to train", "neither", "for example --test new.csv")
    if test is not None and str(test).rstrip("%").replace(".", "").isdigit() and not test.exists():
        remedy = "leave it out and give --save: the accuracy is then cross-validated on DATA"
        raise ArgumentError("--test", "be a file of other cases", test, remedy)
    terminal.check_files(data, model, test)
    terminal.check_fit_options(options)
    terminal.check_results(options, "out")
    if options["page"] is not None and model is None and test is None:
        raise ArgumentError("--page", "come with --test or --model, whose cases it shows", "neither")


def _check_label(cases: Any, labels: Any, options: dict[str, Any]) -> None:
    """Raise ValueError if the cases to train on have no labels."""
    label = options["label"]
    if labels is None and label not in cases:
        used = (options["id"], options["time"])
        text = [name for name in cases if name not in used and cases[name].dtype.kind not in "biufM"]
        raise ArgumentError(
            "--label",
            f"name the column of the classes in {options['data']}",
            label or "nothing",
            f"for example --label {text[0] if text else cases.columns[-1]}",
        )


def _read_cases(console: "Console", cases: Any, labels: Any, tested: Any, options: dict[str, Any]) -> "Panel":
    """The cases to train on; sets the option `length` to that of the longest case to train on or to classify."""
    from toa.data.frames import read_cases

    reading: Any = {name: options[name] for name in ("id", "time", "label", "day_first", "time_zone")}
    reading |= {"values": options["values"] or None, "missing": options["missing"] or "error"}
    reading["missing_values"] = options["missing_values"] or None
    # read alone first: the estimators take long to import
    panel = read_cases(cases, **reading)
    console.print(_describe(panel, options["data"].name), soft_wrap=True)
    _warn_of_single(panel.labels if labels is None else labels)
    if options["test"] is not None:
        from toa.estimators import Classifier

        reader = Classifier(**reading)
        # before training: the file is checked, and its longest case can be classified
        with terminal.shown_as("X", "--test"):
            options["length"] = max(max(panel.lengths), max(reader.read(tested, like=panel).lengths))
    return panel


def _describe(cases: "Panel", name: str) -> str:
    """Sizes of the cases of a file, and the columns that were read as steps, channels and ids."""
    from toa.data.contents import describe_columns

    least = min(cases.lengths)
    most = max(cases.lengths)
    channels = len(cases.columns)
    steps = f"{most}" if least == most else f"{least} to {most}"
    named = f" ({cases.steps[0]!r} to {cases.steps[-1]!r})" if cases.steps else ""
    listed = "" if cases.backend is None or cases.steps else f" ({describe_columns(cases.columns, 8)})"
    ids = "" if cases.id_column is None else f"; ids: {cases.id_column!r}"
    plural = f"{channels} channels" if channels > 1 else f"{channels} channel"
    return f"{name}: {len(cases)} cases of {steps} steps{named}, {plural}{listed}{ids}."


def _warn_of_single(labels: Any) -> None:
    """Warn of classes with one case."""
    if single := [str(kind) for kind, count in Counter(labels).items() if count == 1]:
        shown = list_first(list(map(repr, sorted(single))), 8)
        why = "in cross-validation no model has seen it, so it counts as an error; add cases, or leave the class out"
        warnings.warn(f"classes with only one case: {shown}; {why}.", stacklevel=2)


def _print_validation(console: "Console", classifier: "Classifier") -> None:
    """Cross-validated accuracies of the members and the baselines, with the weights."""
    from toa.estimators.fitted_classifier import interval_text

    accuracy = classifier.validation_
    network = classifier.architecture_["backbone"] or f"no network ({classifier.no_network_})"
    shown = "not cross-validated: too few cases"
    if accuracy is not None:
        shown = f"cross-validated accuracy {accuracy:.3f}"
    if interval := interval_text(classifier.fitted_):
        shown += f" ({interval})"
    console.print(f"{len(classifier.classes_)} classes, {network}, {shown}.")
    if classifier.stack_ is None:
        return
    if classifier.lengths_[0] < classifier.lengths_[1]:
        way = "padded, not stretched" if classifier.padded_ else "stretched, not padded"
        console.print(f"Shorter cases are {way}: the error of the kernels decides.")
    rows: list[tuple[str, ...]] = [("method", "weight", "accuracy")]
    for name, share in classifier.stack_.accuracies.items():
        weight = classifier.weights_.get(name)
        rows.append((name, "" if weight is None else f"{weight:.2f}", f"{share:.3f}"))
    console.print(make_table(rows))
    console.print(f"cross-validated on the training cases, the stack {'; '.join(classifier.stack_.verdicts())}.")
    lowest = sorted(zip(classifier.stack_.recalls, map(str, classifier.classes_), strict=True))
    shown = list_first([f"{name} {recall:.3f}" for recall, name in lowest], 8)
    console.print(f"recall of each class, lowest first: {shown}.", soft_wrap=True)


def _class_table(counts: "np.ndarray", names: list[str]) -> "Table":
    """Per class: its cases, the share that was recognised, and the share of its predictions that is right."""
    rows: list[tuple[str, ...]] = [("class", "cases", "recall", "precision")]
    for name, right, row, column in zip(names, counts.diagonal(), counts, counts.T, strict=True):
        shares = (f"{right / part.sum():.3f}" if part.sum() else "" for part in (row, column))
        rows.append((name, str(row.sum()), *shares))
    return make_table(rows)


def _evaluate(
    console: "Console", classifier: "Classifier", cases: Any, labels: Any, name: str, *, loaded: bool
) -> "tuple[pd.DataFrame, Any]":
    """Predictions as a table and a figure, evaluated if labels are known."""
    import numpy as np
    import pandas as pd

    from toa.estimators.labels import class_codes, unknown_labels
    from toa.report.figures import draw_confusion, draw_probabilities
    from toa.training.metrics import class_scores, confusion_matrix

    names = [str(kind) for kind in classifier.classes_]
    proba = classifier.predict_proba(cases)
    frame = proba if isinstance(proba, pd.DataFrame) else pd.DataFrame(np.asarray(proba), columns=names)
    chances = frame[names].to_numpy()
    predicted = classifier.classes_[chances.argmax(1)]
    table = frame.rename(columns={name: f"p({name})" for name in names})
    if classifier.id is None:
        table.insert(0, "case", np.arange(1, len(table) + 1))
    table.insert(1, "prediction", predicted)
    panel = classifier.read(cases)
    console.print(_describe(panel, name), soft_wrap=True)
    labels = panel.labels if labels is None else np.asarray(labels)
    codes = class_codes(labels, classifier.classes_, len(table))
    labelled = codes >= 0
    if labelled.any():
        import torch

        true = torch.from_numpy(codes[labelled])
        guess = torch.from_numpy(chances.argmax(1)[labelled])
        counts = confusion_matrix(true, guess, len(names))
        scores = class_scores(true, guess)
        shown = f"accuracy {scores['accuracy']:.3f}, balanced {scores['balanced_accuracy']:.3f}"
        console.print(f"{labelled.sum()} cases of {name}: {shown}, macro F1 {scores['macro_f1']:.3f}.", soft_wrap=True)
        console.print(_class_table(counts, names))
        if loaded:
            console.print("if the model was trained on these cases, this is too high.", soft_wrap=True)
        figure = draw_confusion(counts, names, f"{name}\n{shown}")
    else:
        console.print(f"{len(table)} cases of {name} classified.", soft_wrap=True)
        figure = draw_probabilities(chances, names, name)
    if labels is not None and not labelled.all():
        console.print(unknown_labels(labels[~labelled], len(table)), soft_wrap=True)
    return table, figure
