"""Pages of `toa demix` and `toa demo`: a forecast, demixing, then classification and anomaly detection on real data."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from toa.experiments.demo import HORIZON, HOURS, PUBLISHED, TESTED, DemixingResult, DemoRun
from toa.experiments.records import Record
from toa.report.figures import system_title, write_confusion, write_detection
from toa.report.page import Section
from toa.report.tables import ANOMALY_COLUMNS, Table
from toa.tasks.anomaly import SCORES
from toa.tasks.checkpoint import load_checkpoint
from toa.tasks.detection import RULES

HEADING = "A forecast of a table, and operator attention on three tasks"
TITLES = {
    "forecast": "1. Forecast of a CSV file",
    "demixing": "2. Harmonic demixing, the small size",
    "classification": "3. Classification of BasicMotions",
    "anomaly": "4. The anomaly of a UCR series",
}
# metrics of the anomaly table; records have all
_SHOWN = ("f1", "pa_f1", "random_pa_f1", "vus_pr")
# distance to the anomaly that the archive's own score accepts, in steps
_SLACK = 100


def forecast_section(
    file: Path, weights: Mapping[str, float], table: Table, verdicts: Sequence[str], figure: Path
) -> Section:
    """Errors beside the baselines, the verdict and the picture of the forecast of a file."""
    mixed = ", ".join(f"{weight:.2f} {name}" for name, weight in sorted(weights.items(), key=lambda pair: -pair[1]))
    return Section(
        title=TITLES["forecast"],
        lead=f"A made-up table, {file.name}: bicycles that are rented per hour, {HOURS} rows. The last {TESTED} rows "
        "are kept for a test. toa.Forecaster() weights a network (toa) and simple methods by their errors in the rows "
        f"before: {mixed}.",
        table=table,
        pictures=[(figure, "forecast of rented bicycles beside baselines and the actual values")],
        reading=f"The model {'; '.join(verdicts)}. Picture: the first {HORIZON} hours that were kept for the test, by "
        f"the model and by the baselines. For your own file: toa forecast {file.name} --horizon {HORIZON} --test 0.2.",
    )


def demixing_table(result: DemixingResult, *, published: bool) -> Table:
    """Per system: median MSE over seeds, ratio to the oracle, and the published MSE if requested."""
    oracle = result.reference["oracle"]
    rows: Table = [("system", "seeds", "MSE", "x oracle", "published")]
    for name, mse in result.medians().items():
        seeds = sum(record["name"] == name for record in result.records)
        paper = f"{PUBLISHED[name]:.4f}" if name in PUBLISHED else "-"
        rows.append((system_title(name), str(seeds), f"{mse:.5f}", f"{mse / oracle:.2f}", paper))
    names = {"oracle": "linear oracle that knows the warp", "filter": "best fixed linear filter"}
    rows += [(names[k], "-", f"{v:.5f}", f"{v / oracle:.2f}", "-") for k, v in result.reference.items()]
    return rows if published else [row[:-1] for row in rows]


def demixing_section(result: DemixingResult, figure: Path, *, title: str = "", published: bool = False) -> Section:
    """Table, figure and runs of demixing."""
    signals = result.signals
    periods = ", ".join(f"{p:g}" for p in signals.periods)
    return Section(
        title=title,
        lead=f"Recover a sum of harmonics (periods {periods}) of length {signals.length} from noise with standard "
        f"deviation {signals.noise:g} under an unknown time warp. Two layers, two heads; only the attention differs.",
        table=demixing_table(result, published=published),
        pictures=[(figure, "mixing operators, reconstructions and frequency responses of each model")],
        reading="Top: the mixing operator (layer.head) that subtracts most, for one signal; blue is negative. Softmax "
        "attention can only average, so its operators have no blue. Middle: the signal, noisy, clean and recovered. "
        "Bottom: gain per frequency.",
        details=_run_table([(record["name"], record) for record in result.records], "MSE", "mse", 5),
    )


def classification_table(runs: Sequence[DemoRun]) -> Table:
    """Per attention: TEST accuracy over seeds, as mean, minimum and maximum, and mean macro F1."""
    rows: Table = [("system", "seeds", "accuracy", "lowest to highest", "macro F1")]
    for name, group in _by_attention(runs).items():
        accuracy = [run.record["metrics"]["accuracy"] for run in group]
        ends = f"{min(accuracy):.3f} to {max(accuracy):.3f}"
        rows.append((system_title(name), str(len(group)), _mean(group, "accuracy"), ends, _mean(group, "macro_f1")))
    return rows


def detection_table(runs: Sequence[DemoRun]) -> Table:
    """Per attention and set of rules: means over seeds, "-" if one is undefined; a star marks the main metric.

    "peak" counts the runs whose highest score is at most 100 steps from a true range, and those with it inside.
    """
    rows: Table = [("system", "rules", *(ANOMALY_COLUMNS[name] for name in _SHOWN), "peak")]
    for name, group in _by_attention(runs).items():
        distances = [_peak_distance(run) for run in group]
        near, inside = sum(d <= _SLACK for d in distances), distances.count(0)
        for rules in RULES:
            stars = {rules.headline: "*"}
            cells = [_mean(group, f"{rules.name}/{metric}") + stars.get(metric, "") for metric in _SHOWN]
            rows.append((system_title(name), rules.name, *cells, f"{near} of {len(group)}, {inside} inside"))
    return rows


def _classification_section(runs: Sequence[DemoRun]) -> Section:
    config, cases = runs[0].record["config"], runs[0].record["cases"]
    model = config["model"]
    return Section(
        title=TITLES["classification"],
        lead="Which of four motions does a watch record, from three axes of acceleration and three of rotation? A "
        f"Transformer with one token per step (100 steps), {model['num_layers']} layer of width {model['embed_dim']}, "
        f"{model['num_heads']} heads; only the attention differs. {cases['train']} training cases, {cases['val']} "
        f"cases held out of TRAIN to choose the epoch, {cases['test']} cases in TEST.",
        table=classification_table(runs),
        pictures=[
            (
                write_confusion(run.record, run.folder / "confusion.png"),
                f"confusion matrix of {system_title(run.attention)}",
            )
            for run in _first_seed(runs)
        ],
        reading="Guessing is right in a quarter of the cases, and one case changes accuracy by "
        f"{1 / cases['test']:.3f}: differences of one or two cases do not rank the attentions. This is not an unbiased "
        "estimate: model and learning rate were chosen among seven trials by TEST accuracy. Matrices show the model of "
        "the first seed. PatchTST, which sees each channel alone, is weaker on this set; compare toa run --task "
        "classify --dataset BasicMotions.",
        details=_run_table([(run.attention, run.record) for run in runs], "accuracy", "accuracy"),
    )


def _detection_section(runs: Sequence[DemoRun]) -> Section:
    config = runs[0].record["config"]
    model, ratio = config["model"], f"{config['anomaly_ratio']:g} %"
    shown = _first_seed(runs)[0]
    return Section(
        title=TITLES["anomaly"],
        lead="A vital sign from the UCR anomaly archive (InternalBleeding16): 1,200 training steps, 7,501 test steps, "
        f"one anomaly of 12 steps. PatchTST, {model['num_layers']} layers of width {model['embed_dim']}, learns to "
        f"reconstruct windows of {config['lookback']} steps; a large error suggests an anomaly. Each run is evaluated "
        "twice. tslib-pa, as in most papers: threshold from train and test scores together, each step counted in every "
        "window, and point adjustment, where one hit counts as the complete range. strict: threshold from train scores "
        f"only, each step once, no adjustment. Each threshold has {ratio} of its scores above it.",
        table=detection_table(runs),
        pictures=[(write_detection(shown.folder), f"score and detected ranges of {system_title(shown.attention)}")],
        reading="A star marks the main metric of the rules; random PA-F1 is the score of random flags at the same "
        "rate. Random flags rarely hit a range of 12 steps; with ranges of hundreds of steps, point adjustment makes "
        "them competitive. peak: number of runs with the highest score at most 100 steps from the anomaly, which is "
        "the archive's own score, and number of those on a labelled step. F1 is low because a threshold at "
        f"{ratio} flags several times more steps than are anomalous. Model and window were chosen among three trials "
        f"by their scores on this series. Picture: {system_title(shown.attention)}, first seed; score and thresholds "
        "above, true and flagged ranges below.",
        details=_run_table([(run.attention, run.record) for run in runs], "strict F1", "strict/f1"),
    )


# the section of each part on real data; its pictures are drawn beside the records
SECTIONS = {"classification": _classification_section, "anomaly": _detection_section}


def _by_attention(runs: Sequence[DemoRun]) -> dict[str, list[DemoRun]]:
    return {name: [run for run in runs if run.attention == name] for name in dict.fromkeys(r.attention for r in runs)}


def _first_seed(runs: Sequence[DemoRun]) -> list[DemoRun]:
    return [run for run in runs if run.record["seed"] == runs[0].record["seed"]]


def _mean(runs: Sequence[DemoRun], metric: str) -> str:
    values = [run.record["metrics"].get(metric) for run in runs]
    return "-" if None in values else f"{fmean(values):.3f}"


def _peak_distance(run: DemoRun) -> int:
    """Steps from the highest score to the nearest labelled step."""
    saved = load_checkpoint(run.folder / SCORES).tensors
    return int((saved["labels"].nonzero() - saved["score"].argmax()).abs().min())


def _run_table(runs: Iterable[tuple[str, Record]], column: str, metric: str, digits: int = 3) -> Table:
    """One row per name of an attention and record."""
    rows: Table = [("system", "seed", column, "time", "device", "command")]
    for name, record in runs:
        value = record["metrics"].get(metric)
        shown = "-" if value is None else f"{value:.{digits}f}"
        cells = (shown, f"{record['wall_s']:.0f} s", record["device"], record["command"])
        rows.append((system_title(name), str(record["seed"]), *cells))
    return rows
