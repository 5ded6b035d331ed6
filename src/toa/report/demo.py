"""The demo's page: demixing, then classification and anomaly detection on real data, one section each."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from toa.experiments.demixing import DemixingResult
from toa.experiments.demo import DemoRun
from toa.report.anomaly import COLUMNS, write_detection
from toa.report.classification import write_confusion
from toa.report.demixing import demixing_section, system_title
from toa.report.page import Section, write_sections
from toa.tasks.anomaly import SCORES
from toa.tasks.checkpoint import load_checkpoint
from toa.tasks.detection import RULES

HEADING = "Operator attention on three tasks"
TITLES = {
    "demixing": "1. Harmonic demixing, the small size",
    "classification": "2. Classification of BasicMotions",
    "anomaly": "3. The anomaly of a UCR series",
}
# of the anomaly table: all of them are in the records
_SHOWN = ("f1", "pa_f1", "random_pa_f1", "vus_pr")
# steps that the archive's own rule lets the highest score be off the anomaly
_SLACK = 100


def classification_table(runs: Sequence[DemoRun]) -> list[tuple[str, ...]]:
    """A header and a row for each attention: TEST accuracy over seeds, mean and both ends, and mean macro F1."""
    rows: list[tuple[str, ...]] = [("system", "seeds", "accuracy", "lowest to highest", "macro F1")]
    for name, group in _by_attention(runs).items():
        accuracy = [run.record["metrics"]["accuracy"] for run in group]
        ends = f"{min(accuracy):.3f} to {max(accuracy):.3f}"
        macro = fmean(run.record["metrics"]["macro_f1"] for run in group)
        rows.append((system_title(name), str(len(group)), f"{fmean(accuracy):.3f}", ends, f"{macro:.3f}"))
    return rows


def detection_table(runs: Sequence[DemoRun]) -> list[tuple[str, ...]]:
    """A header and a row for each attention and each of the rules: means over seeds, "-" where one is undefined.

    The headline of the rules has a star. "peak" counts the runs whose highest score lies within 100 steps of a true
    range, and those in which it lies inside.
    """
    rows: list[tuple[str, ...]] = [("system", "rules", *(COLUMNS[name] for name in _SHOWN), "peak")]
    for name, group in _by_attention(runs).items():
        distances = [_peak_distance(run) for run in group]
        near, inside = sum(d <= _SLACK for d in distances), distances.count(0)
        peak = f"{near} of {len(group)}, {inside} inside"
        for rules in RULES:
            cells = [
                _mean(group, f"{rules.name}/{metric}") + ("*" if metric == rules.headline else "") for metric in _SHOWN
            ]
            rows.append((system_title(name), rules.name, *cells, peak))
    return rows


def part_section(part: str, runs: Sequence[DemoRun]) -> Section:
    """The section of a part on real data; its pictures are drawn beside the records."""
    return {"classification": _classification_section, "anomaly": _detection_section}[part](runs)


def write_demo(demixing: DemixingResult, figure: Path, parts: Sequence[Section], path: Path) -> Path:
    """Write the page of the whole demo, pictures inside."""
    first = demixing_section(demixing, figure, title=TITLES["demixing"])
    return write_sections(HEADING, [first, *parts], path)


def _classification_section(runs: Sequence[DemoRun]) -> Section:
    config, cases = runs[0].record["config"], runs[0].record["cases"]
    model = config["model"]
    pictures = [
        (
            write_confusion(run.record, run.folder / "confusion.png"),
            f"confusion matrix of {system_title(run.attention)}",
        )
        for run in _first_seed(runs)
    ]
    return Section(
        title=TITLES["classification"],
        lead="Which of four motions does a watch see, by three axes of acceleration and three of rotation? A "
        f"Transformer with a token for each of 100 steps, {model['num_layers']} layer of width {model['embed_dim']}, "
        f"{model['num_heads']} heads; only the attention differs. {cases['train']} cases to train on, {cases['val']} "
        f"held out of TRAIN to choose the epoch by, {cases['test']} in TEST.",
        table=classification_table(runs),
        pictures=pictures,
        reading=f"Guessing is right in a quarter of the cases, and one case is {1 / cases['test']:.3f} of accuracy: "
        "read no order of the attentions from differences of one or two. Nor is it an estimate: this small model and "
        "its rate were picked among seven trials whose TEST accuracy was seen. Rows of a matrix are true classes, "
        "columns what the model of the first seed took them for. PatchTST, which sees each channel alone, is no match "
        "for this set; toa run --task classify --dataset BasicMotions shows it.",
        runs=_runs(runs, "accuracy", "accuracy"),
    )


def _detection_section(runs: Sequence[DemoRun]) -> Section:
    config = runs[0].record["config"]
    model = config["model"]
    shown = _first_seed(runs)[0]
    return Section(
        title=TITLES["anomaly"],
        lead="A vital sign of the UCR anomaly archive (InternalBleeding16): 1,200 steps to train on, 7,501 to search, "
        f"one anomaly of 12 steps. PatchTST, {model['num_layers']} layers of width {model['embed_dim']}, learns to "
        f"reconstruct windows of {config['lookback']} steps; what it reconstructs badly is suspect. Each run is "
        "measured twice. tslib-pa is what most papers do: threshold from train and test scores together, a step "
        "counted in every window, and point adjustment, by which one hit counts as the whole range found. strict: "
        "threshold from train scores alone, each step once, no adjustment. Either threshold has "
        f"{config['anomaly_ratio']:g} % of the scores that it is made of above it.",
        table=detection_table(runs),
        pictures=[(write_detection(shown.folder), f"score and detected ranges of {system_title(shown.attention)}")],
        reading="A star marks the number that the rules were made to report; random PA-F1 is what chance gets at the "
        "same rate of flags. Chance seldom hits a range of 12 steps; where ranges have hundreds, point adjustment "
        "makes it a rival. peak: in how many runs the highest score of all lies within 100 steps of the anomaly, which "
        "is how the archive itself scores, and in how many of them on a labelled step. F1 is low since a threshold at "
        f"{config['anomaly_ratio']:g} % flags several times as many steps as there are to find. Model and window were "
        "picked among three trials whose scores on this series were seen. The picture is "
        f"{system_title(shown.attention)}, first seed: score and thresholds above, true and flagged ranges below.",
        runs=_runs(runs, "strict F1", "strict/f1"),
    )


def _by_attention(runs: Sequence[DemoRun]) -> dict[str, list[DemoRun]]:
    return {name: [run for run in runs if run.attention == name] for name in dict.fromkeys(r.attention for r in runs)}


def _first_seed(runs: Sequence[DemoRun]) -> list[DemoRun]:
    return [run for run in runs if run.record["seed"] == runs[0].record["seed"]]


def _mean(runs: Sequence[DemoRun], metric: str) -> str:
    values = [run.record["metrics"].get(metric) for run in runs]
    return "-" if None in values else f"{fmean(values):.3f}"


def _peak_distance(run: DemoRun) -> int:
    """Steps from the highest score to the nearest that is labelled."""
    saved = load_checkpoint(run.folder / SCORES).tensors
    return int((saved["labels"].nonzero() - saved["score"].argmax()).abs().min())


def _runs(runs: Sequence[DemoRun], column: str, metric: str) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("system", "seed", column, "time", "device", "command")]
    for run in runs:
        record = run.record
        value = _mean([run], metric)
        seconds = f"{record['wall_s']:.0f} s"
        rows.append(
            (system_title(run.attention), str(record["seed"]), value, seconds, record["device"], record["command"])
        )
    return rows
