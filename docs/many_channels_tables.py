"""Tables of many channels, from the stored facts of the data sets."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from performance_tables import table

SETS = Path(__file__).resolve().parents[1] / "results" / "many_channels" / "sets.json"


def read_sets() -> dict[str, Any]:
    """Facts of the data sets, made by `python benchmarks/wide.py sizes`."""
    facts: dict[str, Any] = json.loads(SETS.read_text(encoding="utf-8"))
    return facts


def sets_table() -> str:
    """Rows, channels, windows and treated values of each data set."""
    rows = []
    for name, facts in read_sets().items():
        windows = next(iter(facts["horizons"].values()))["windows"]
        rows.append(
            [
                name,
                str(facts["rows"]),
                str(facts["channels"]),
                str(facts["lookback"]),
                ", ".join(facts["horizons"]),
                " / ".join(map(str, windows.values())),
                f"{100 * facts['zeros']:.1f} %",
                str(facts["constant_columns"]),
                str(facts["clipped"]),
            ]
        )
    head = ["data set", "rows", "channels", "look-back", "horizons", "windows: train / validation / test"]
    return table([*head, "zeros", "constant columns", "clipped values"], rows)


def sizes_table() -> str:
    """Weights of the models, and operations of an epoch."""
    rows = []
    for name, facts in read_sets().items():
        weights = [f"{facts['weights'][system] / 1e6:.1f}" for system in ("softmax", "gated", "toa-gated")]
        operations = [
            f"{facts['teraflop_per_epoch'][system]:.1f}" for system in ("softmax", "toa-gated", "softmax-wide")
        ]
        widths = [str(facts["ff_dim"][system]) for system in ("softmax", "softmax-wide")]
        rows.append([name, str(facts["epoch_windows"]), *weights, *widths, *operations])
    head = ["data set", "windows per epoch", "softmax, M weights", "gated", "TOA-Gated and softmax-wide"]
    head += ["feed-forward width", "of softmax-wide", "softmax, TFLOP per epoch", "TOA-Gated", "softmax-wide"]
    return table(head, rows)


TABLES: Mapping[str, Callable[[], str]] = {"wide-sets": sets_table, "wide-sizes": sizes_table}
