"""Flags of the default threshold beside those of a fixed one, and beside the best threshold of the same scores.

    python benchmarks/alarm_thresholds.py [--set SMD-machine-1-6 ...] [--data-dir FOLDER] [--out FILE]

`toa.AnomalyDetector` with its default settings is fitted to the train rows and flags the test rows. `adaptive` is the
default rule of the threshold, `quantile` the fixed threshold of fit. `best_f1` is the best F1 that any one threshold on
the same scores reaches; it is chosen with the labels, the two rules see none. F1, precision and recall count each row
once, without point adjustment; `share` is the share of flagged rows, and `warned` whether a warning named it.

    SMD-machine-1-6, SMD-machine-2-1    train and test rows of the catalogue
    the same with "shifted"             the test rows, 3 channels of which have a level that is 10 deviations higher
    joined MSL, joined SMAP             train and test rows of the catalogue, all channels joined
    SKAB                                each of 34 files by itself: fitted to its first 400 rows, means over the files

How the threshold rises, and all its numbers, were chosen with the labels of SMD, also shifted in other ways, and of
made series. MSL, SMAP and SKAB had no part in that: they were the test, in results/anomaly/alarm_thresholds.json. More
than half of the tested rows of SKAB are anomalies, and in its short tables they raised the threshold. Since then,
tables with fewer rows than the memory are filled up with scores of fit. That was decided with the labels of SKAB, which
is development now (results/anomaly/alarm_thresholds_skab.json).

Later the threshold of a combination was limited by what its scores mean (`ThresholdRule.limit`). That was decided with
SMD 1-6, SKAB, made series without anomalies, and second halves of train rows with injected anomalies and shifts.
`toa bench tables --part detection` measures that rule, channel by channel; MSL and SMAP had no part in it.
"""

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from toa._console import make_table
from toa.estimators import AnomalyDetector
from toa.training.detection import point_metrics
from toa_bench.detection_parts import JOINED, MACHINES, OF_CHANNELS, SHIFTED, SKAB, read_parts
from toa_bench.detection_tables import best_f1
from toa_bench.script import command_line, exit_on_error, make_console, make_parser, save

DEVELOPMENT = (*MACHINES, *(f"{name}{SHIFTED}" for name in MACHINES), SKAB)
TEST = tuple(f"{JOINED}{name}" for name in OF_CHANNELS)
RULES = ("adaptive", "quantile")


def measure(train: np.ndarray, test: np.ndarray, labels: np.ndarray, **options: Any) -> dict[str, Any]:
    """Metrics of both rules on one part of a set; `options` are arguments of the detector."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = AnomalyDetector(device="cpu", **options).fit(pd.DataFrame(train)).predict(pd.DataFrame(test))
    # the same scores: the seed is the same
    fixed = AnomalyDetector(device="cpu", threshold="quantile", **options).fit(pd.DataFrame(train))
    scores = table["score"].to_numpy()
    flags = {"adaptive": table["anomaly"].to_numpy() == 1, "quantile": scores > fixed.threshold_}
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
        parts = [measure(part.train, part.test, part.labels) for part in read_parts(name, args.data_dir)]
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
