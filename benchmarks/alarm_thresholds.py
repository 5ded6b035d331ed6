"""Flags of the default threshold beside those of a fixed one, and beside the best threshold of the same scores.

    python benchmarks/alarm_thresholds.py [--set SMD-machine-1-6 ...] [--data-dir FOLDER] [--out FILE]

`toa.AnomalyDetector` with its default settings is fitted to the train rows and flags the test rows. `adaptive` is the
default rule of the threshold, `quantile` the fixed threshold of fit. `best_f1` is the best F1 that any one threshold on
the same scores reaches; it is chosen with the labels, the two rules see none. F1, precision and recall count each row
once, without point adjustment; `share` is the share of flagged rows, and `warned` whether a warning named it.

    SMD-machine-1-6, SMD-machine-2-1    train and test rows of the catalogue
    the same with "shifted"             the test rows, 3 channels of which have a level that is 10 deviations higher
    MSL, SMAP                           train and test rows of the catalogue, all channels joined
    SKAB                                each of 34 files by itself: fitted to its first 400 rows, means over the files

The rule, and all its numbers, were chosen with the labels of SMD, also shifted in other ways, and of made series. MSL,
SMAP and SKAB had no part in that: they were the test, in results/anomaly/alarm_thresholds.json. More than half of the
tested rows of SKAB are anomalies, and in its short tables they raised the threshold. Since then, tables with fewer
rows than the memory are filled up with scores of fit. That was decided with the labels of SKAB, which is development
now. The other sets have more rows than the memory, and their results are the same. Change nothing because of MSL and
SMAP.
"""

import argparse
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from toa._checks import ArgumentError
from toa._console import make_table
from toa.data import load_anomaly
from toa.estimators import AnomalyDetector
from toa.training.detection import point_metrics
from toa_bench.script import command_line, exit_on_error, make_console, make_parser, save

DEVELOPMENT = ("SMD-machine-1-6", "SMD-machine-1-6 shifted", "SMD-machine-2-1", "SMD-machine-2-1 shifted", "SKAB")
TEST = ("MSL", "SMAP")
# ending of the name of a set whose level changes after the fit
SHIFTED = " shifted"
# channels of the shift
SHIFTED_CHANNELS = 3
# size of the shift in standard deviations of the train rows
SHIFT = 10.0
# smallest standard deviation of a channel that is shifted
LEAST_DEVIATION = 1e-6
# rows of a file of SKAB that a detector is fitted to, as its authors do
SKAB_TRAIN = 400
# columns of SKAB that are no sensors
SKAB_LABELS = ("datetime", "anomaly", "changepoint")
RULES = ("adaptive", "quantile")

Part = tuple[str, np.ndarray, np.ndarray, np.ndarray]


def parts_of(name: str, data_dir: Path | None) -> Iterator[Part]:
    """Name, train rows, test rows and labels of each part of a set."""
    if name == "SKAB":
        yield from skab_files(data_dir)
        return
    data = load_anomaly(name.removesuffix(SHIFTED), length=1, data_dir=data_dir, allow_constant=True)
    train = data.train.numpy().astype(np.float64)
    test = data.test.numpy().astype(np.float64)
    if name.endswith(SHIFTED):
        deviation = train.std(0)
        varying = np.flatnonzero(deviation > LEAST_DEVIATION)
        channels = np.random.default_rng(SHIFTED_CHANNELS).choice(varying, SHIFTED_CHANNELS, replace=False)
        test[:, channels] += SHIFT * deviation[channels]
    yield name, train, test, data.labels


def skab_files(data_dir: Path | None) -> Iterator[Part]:
    """The files of SKAB with labels."""
    folder = (data_dir or Path()) / "SKAB"
    paths = sorted(path for path in folder.glob("*.csv.gz") if not path.name.startswith("anomaly-free"))
    if not paths:
        raise ArgumentError("--data-dir", "hold a folder SKAB with its files *.csv.gz", f"none in {folder}")
    for path in paths:
        table = pd.read_csv(path, sep=";")
        labels = table["anomaly"].to_numpy().astype(bool)
        values = table.drop(columns=[column for column in SKAB_LABELS if column in table]).to_numpy(np.float64)
        name = path.name.removesuffix(".csv.gz")
        yield name, values[:SKAB_TRAIN], values[SKAB_TRAIN:], labels[SKAB_TRAIN:]


def best_f1(labels: np.ndarray, scores: np.ndarray) -> float:
    """The best F1 of rows above any threshold."""
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(labels[order])
    # rows with equal scores are flagged together
    ends = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))
    return float((2 * hits[ends] / (ends + 1 + labels.sum())).max())


def measure(train: np.ndarray, test: np.ndarray, labels: np.ndarray, **options: Any) -> dict[str, Any]:
    """Metrics of both rules on one part of a set; `options` are arguments of the detector."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        detector = AnomalyDetector(device="cpu", **options).fit(pd.DataFrame(train))
        table = detector.predict(pd.DataFrame(test))
    scores = table["score"].to_numpy()
    flags = {"adaptive": table["anomaly"].to_numpy() == 1, "quantile": scores > detector.threshold_}
    warned = any("of the rows are flagged" in str(entry.message) for entry in caught)
    result: dict[str, Any] = {
        "rows": len(labels),
        "anomalies": float(labels.mean()),
        "best_f1": best_f1(labels, scores),
        "warned": float(warned),
        "unwarned_share": 0.0 if warned else float(flags["adaptive"].mean()),
    }
    for rule in RULES:
        metrics = {name: value or 0.0 for name, value in point_metrics(labels, flags[rule]).items()}
        result[rule] = {**metrics, "share": float(flags[rule].mean())}
    return result


def summarise(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over the parts of a set; `of_best` is the ratio of the mean F1 to the mean best F1."""
    rounded: dict[str, Any] = {"parts": len(parts), "rows": sum(part["rows"] for part in parts)}
    best = np.mean([part["best_f1"] for part in parts])
    for name in ("anomalies", "best_f1", "warned"):
        rounded[name] = round(float(np.mean([part[name] for part in parts])), 4)
    rounded["largest_unwarned_share"] = round(max(part["unwarned_share"] for part in parts), 4)
    for rule in RULES:
        means = {name: float(np.mean([part[rule][name] for part in parts])) for name in parts[0][rule]}
        means["of_best"] = means["f1"] / best
        rounded[rule] = {name: round(value, 4) for name, value in means.items()}
    return rounded


def without_folder(command: list[str]) -> list[str]:
    """The command with DATA in place of the folder of the data sets, which is one of this machine."""
    before = ("", *command)
    return ["DATA" if option == "--data-dir" else word for option, word in zip(before, command, strict=False)]


def run(args: argparse.Namespace) -> None:
    console = make_console()
    sets: dict[str, Any] = {}
    head = ("set", "anomalies", "best F1", "rule", "F1", "of best", "precision", "recall", "flagged", "warned")
    rows: list[tuple[str, ...]] = [head]
    for name in args.set or (*DEVELOPMENT, *TEST):
        parts = [measure(train, test, labels) for _, train, test, labels in parts_of(name, args.data_dir)]
        summary = {"role": "development" if name in DEVELOPMENT else "test", **summarise(parts)}
        sets[name] = summary
        for rule in RULES:
            values = summary[rule]
            shown = [f"{values[key]:.3f}" for key in ("f1", "of_best", "precision", "recall", "share")]
            warned = f"{summary['warned']:.2f}" if rule == "adaptive" else ""
            rows.append((name, f"{summary['anomalies']:.3f}", f"{summary['best_f1']:.3f}", rule, *shown, warned))
        console.print(f"{name}: done", soft_wrap=True)
    console.print(make_table(rows, left=1))
    means = {
        rule: round(float(np.mean([entry[rule]["of_best"] for name, entry in sets.items() if SHIFTED not in name])), 4)
        for rule in RULES
    }
    shown_means = ", ".join(f"{rule} {value:.3f}" for rule, value in means.items())
    console.print(f"mean share of the best F1, without the shifted sets: {shown_means}", soft_wrap=True)
    record = {"benchmark": "alarm_thresholds", "sets": sets, "mean_of_best": means}
    save(record, args, without_folder(command_line("benchmarks/alarm_thresholds.py", None)), console)


def main() -> None:
    parser = make_parser(__doc__, "runs/alarm_thresholds.json")
    parser.add_argument("--set", action="append", choices=(*DEVELOPMENT, *TEST))
    parser.add_argument("--data-dir", type=Path, help="folder of the data sets")
    with exit_on_error():
        run(parser.parse_args())


if __name__ == "__main__":
    main()
