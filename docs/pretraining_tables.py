"""Tables of the pretrained forecaster, from the records of its training and of its validation."""

import functools
import json
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

from performance_tables import table
from stored_results import RESULTS, Record, stored_records

FOLDER = RESULTS / "pretraining"
# the weights that are part of the package, and softmax trained in the same way
SHIPPED = "small"
CONTROL = "small-softmax"
# steps at the end of the training whose mean loss is compared, as the plan states
LAST_STEPS = 4_000


@functools.cache
def training_record(name: str = SHIPPED) -> dict[str, Any]:
    """A stored training."""
    content: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return content


def validations(name: str) -> list[Record]:
    """Validations of a training, one for each choice of options."""
    return [record for record in stored_records("pretraining/validation.jsonl") if record["model"] == name]


def options_text(options: Mapping[str, Any]) -> str:
    """Options of inference in words."""
    parts = []
    if options["season_steps"] is not None:
        parts.append(f"seasons of {options['season_steps']} steps")
    if options["flip"]:
        parts.append("with the negative series")
    if options["contexts"]:
        parts.append(f"contexts of {' and '.join(map(str, options['contexts']))}")
    return ", ".join(parts) or "none"


def score_row(scores: Record) -> list[str]:
    """MASE over seasonal naive per set, then its mean and that of the quantiles over the real sets."""
    sets = [f"{each['mase_ratio']:.3f}" for each in scores["sets"].values()]
    mean = scores["geometric_mean"]
    return [*sets, f"{mean['mase_ratio']:.3f}", f"{mean['pinball_ratio']:.3f}"]


def option_table() -> str:
    """Validation of the shipped weights with each choice of options."""
    records = validations(SHIPPED)
    head = ("options", *records[0]["sets"], "mean, real sets", "mean of quantiles")
    return table(head, [(options_text(record["options"]), *score_row(record)) for record in records])


def stretch_table() -> str:
    """Validation of the shipped weights on short series, by the number of steps that replace one."""
    records = stored_records("pretraining/validation-short.jsonl")
    head = ("steps per step", *records[0]["sets"], "mean, real sets", "mean of quantiles")
    return table(head, [(str(record["options"]["stretch"]), *score_row(record)) for record in records])


def training_table() -> str:
    """What was trained, on what, and how fast."""
    record = training_record()
    training = record["training"]
    rows = (
        ("weights", f"{record['weights']:,}"),
        ("steps", f"{record['step']:,}"),
        ("series per step", f"{training['batch_size']}"),
        ("series", f"{record['series']:,}"),
        ("device", record["device"]),
        ("hours", f"{record['seconds'] / 3600:.2f}"),
        ("series per second", f"{record['steps_per_second'] * training['batch_size']:.0f}"),
        ("commit", record["commit"]),
    )
    return table(("of the training", "value"), rows)


def curve_table() -> str:
    """The loss curve, at about ten steps."""
    curve = training_record()["curve"]
    every = max(1, len(curve) // 10)
    entries = curve[every - 1 :: every]
    rows = [(f"{entry['step']:,}", f"{entry['loss']:.4f}", f"{entry['rate']:.2g}") for entry in entries]
    return table(("step", "mean loss since the last entry", "rate"), rows, left=0)


def last_loss(record: Mapping[str, Any]) -> float:
    """Mean loss of the last steps of a training."""
    return fmean(entry["loss"] for entry in record["curve"] if entry["step"] > record["step"] - LAST_STEPS)


def control_table() -> str:
    """The shipped weights beside softmax: weights, loss, and the validation with each choice of options."""
    shipped, control = training_record(), training_record(CONTROL)
    losses = last_loss(shipped), last_loss(control)
    rows = [
        (
            "weights",
            f"{shipped['weights']:,}",
            f"{control['weights']:,}",
            change(shipped["weights"], control["weights"]),
        ),
        (f"mean loss of the last {LAST_STEPS:,} steps", *(f"{loss:.4f}" for loss in losses), change(*losses)),
    ]
    for name, text in (("mase_ratio", "MASE"), ("pinball_ratio", "quantiles")):
        for record, other in zip(validations(SHIPPED), validations(CONTROL), strict=True):
            assert record["options"] == other["options"]
            means = record["geometric_mean"][name], other["geometric_mean"][name]
            options = f"{text}, options: {options_text(record['options'])}"
            rows.append((options, *(f"{mean:.3f}" for mean in means), change(*means)))
    return table(("", "TOA-Softmax", "softmax", "difference"), rows)


def change(value: float, other: float) -> str:
    """How much larger a value is than the other, in percent."""
    return f"{100.0 * (value / other - 1.0):+.1f} %"


TABLES: Mapping[str, Callable[[], str]] = {
    "pretraining": training_table,
    "pretraining-control": control_table,
    "pretraining-options": option_table,
    "pretraining-stretch": stretch_table,
    "pretraining-curve": curve_table,
}
