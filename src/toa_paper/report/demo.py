"""Pages of `toa demix` and `toa demo`: demixing, a forecast, then classification and anomaly detection on real data."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from toa.experiments.records import Record
from toa.report.figures import system_title, write_confusion, write_detection
from toa.report.html_page import Section
from toa.report.tables import ANOMALY_COLUMNS, Table, grouped, number
from toa.training.anomaly import SCORES
from toa.training.checkpoint import load_checkpoint
from toa.training.detection import RULES
from toa_paper.demixing import DemixingResult
from toa_paper.demo import HORIZON, HOURS, PARTS, TESTED, DemoRun
from toa_paper.known_operator import HORIZON as OPERATOR_HORIZON
from toa_paper.known_operator import LOOKBACK, Comparison, FactorTable
from toa_paper.published import published_numbers
from toa_paper.report.texts import TEXTS

HEADING = TEXTS["heading"]
TITLES = {part: TEXTS[part]["title"] for part in ("forecast", "demixing", *PARTS, "operator")}
# how far the first part of the demo goes
DEMIXING_NOTE = TEXTS["demixing"]["note"]
# metrics of the anomaly table; records have all
_SHOWN = ("f1", "pa_f1", "random_pa_f1", "vus_pr")
# distance to the anomaly that the archive's own score accepts, in steps
_SLACK = 100


def forecast_section(
    file: Path, weights: Mapping[str, float], table: Table, verdicts: Sequence[str], figure: Path
) -> Section:
    """Errors beside the baselines, the verdict and the picture of the forecast of a file."""
    mixed = ", ".join(f"{weight:.2f} {name}" for name, weight in sorted(weights.items(), key=lambda pair: -pair[1]))
    text = TEXTS["forecast"]
    return Section(
        title=TITLES["forecast"],
        lead=text["lead"].format(file=file.name, hours=HOURS, tested=TESTED, mixed=mixed),
        table=table,
        pictures=[(figure, "forecast of rented bicycles beside baselines and the actual values")],
        reading=text["reading"].format(file=file.name, horizon=HORIZON, verdicts="; ".join(verdicts)),
    )


def demixing_table(result: DemixingResult, *, published: bool) -> Table:
    """Per system: median MSE over seeds, ratio to the oracle, and the published MSE if requested."""
    oracle = result.reference["oracle"]
    paper = {row.variant: row.text for row in published_numbers() if row.table == "demixing"}
    rows: Table = [("system", "seeds", "MSE", "x oracle", "published")]
    for name, mse in result.medians().items():
        seeds = sum(record["name"] == name for record in result.records)
        shown = (str(seeds), f"{mse:.5f}", f"{mse / oracle:.2f}", paper.get(name, "-"))
        rows.append((system_title(name), *shown))
    names = {"oracle": "linear oracle that knows the warp", "filter": "best fixed linear filter"}
    rows += [(names[k], "-", f"{v:.5f}", f"{v / oracle:.2f}", "-") for k, v in result.reference.items()]
    return rows if published else [row[:-1] for row in rows]


def demixing_section(
    result: DemixingResult, figure: Path, *, title: str = "", note: str = "", published: bool = False
) -> Section:
    """Table, figure and runs of demixing; `note` follows the text below the figure."""
    periods = ", ".join(f"{p:g}" for p in result.signals.periods)
    return Section(
        title=title,
        lead=TEXTS["demixing"]["lead"].format(periods=periods, signals=result.signals),
        table=demixing_table(result, published=published),
        pictures=[(figure, "mixing operators, reconstructions and frequency responses of each model")],
        reading=f"{TEXTS['demixing']['reading']} {note}".strip(),
        details=_run_table([(record["name"], record) for record in result.records], "MSE", "mse", 5),
    )


def classification_table(runs: Sequence[DemoRun]) -> Table:
    """Per attention: TEST accuracy over seeds, as mean, minimum and maximum, and mean macro F1."""
    rows: Table = [("system", "seeds", "accuracy", "lowest to highest", "macro F1")]
    for name, group in grouped((run.attention, run) for run in runs).items():
        accuracy = [run.record["metrics"]["accuracy"] for run in group]
        ends = f"{min(accuracy):.3f} to {max(accuracy):.3f}"
        rows.append((system_title(name), str(len(group)), _mean(group, "accuracy"), ends, _mean(group, "macro_f1")))
    return rows


def detection_table(runs: Sequence[DemoRun]) -> Table:
    """Per attention and set of rules: means over seeds, "-" if one is undefined; a star marks the main metric.

    "peak" counts the runs whose highest score is at most 100 steps from a true range, and those with it inside.
    """
    rows: Table = [("system", "rules", *(ANOMALY_COLUMNS[name] for name in _SHOWN), "peak")]
    for name, group in grouped((run.attention, run) for run in runs).items():
        distances = [_peak_distance(run) for run in group]
        near = sum(d <= _SLACK for d in distances)
        inside = distances.count(0)
        for rules in RULES:
            stars = {rules.headline: "*"}
            cells = [_mean(group, f"{rules.name}/{metric}") + stars.get(metric, "") for metric in _SHOWN]
            rows.append((system_title(name), rules.name, *cells, f"{near} of {len(group)}, {inside} inside"))
    return rows


def _classification_section(runs: Sequence[DemoRun]) -> Section:
    config, cases = runs[0].record["config"], runs[0].record["cases"]
    matrices = [(run, write_confusion(run.record, run.folder / "confusion.png")) for run in _first_seed(runs)]
    return Section(
        title=TITLES["classification"],
        lead=TEXTS["classification"]["lead"].format(model=config["model"], cases=cases),
        table=classification_table(runs),
        pictures=[(drawn, f"confusion matrix of {system_title(run.attention)}") for run, drawn in matrices],
        reading=TEXTS["classification"]["reading"].format(step=1 / cases["test"]),
        details=_run_table([(run.attention, run.record) for run in runs], "accuracy", "accuracy"),
    )


def _detection_section(runs: Sequence[DemoRun]) -> Section:
    config = runs[0].record["config"]
    first, *_ = _first_seed(runs)
    shown = system_title(first.attention)
    return Section(
        title=TITLES["anomaly"],
        lead=TEXTS["anomaly"]["lead"].format(**config),
        table=detection_table(runs),
        pictures=[(write_detection(first.folder), f"score and detected ranges of {shown}")],
        reading=TEXTS["anomaly"]["reading"].format(**config, shown=shown),
        details=_run_table([(run.attention, run.record) for run in runs], "strict F1", "strict/f1"),
    )


def operator_table(compared: Comparison) -> Table:
    """Test MSE of each system, the best first, and the part of the way to the known operator."""
    rows: Table = [("system", "MSE", "gap closed")]
    for name in sorted(compared.errors, key=compared.errors.__getitem__):
        rows.append((system_title(name), f"{compared.errors[name]:.4f}", f"{compared.gap_closed(name):.2f}"))
    return rows


def operator_section(table: FactorTable, compared: Comparison) -> Section:
    """Networks beside linear models on a wide table whose operator is known."""
    text = TEXTS["operator"]
    sizes = {"table": table, "lookback": LOOKBACK, "horizon": OPERATOR_HORIZON}
    records = [(record["config"]["attention"]["name"], record) for record in compared.records]
    return Section(
        title=TITLES["operator"],
        lead=text["lead"].format(**sizes),
        table=operator_table(compared),
        pictures=[],
        reading=text["reading"],
        details=_run_table(records, "MSE", "mse", 4),
    )


# the section of each part on real data; its pictures are drawn beside the records
SECTIONS = {"classification": _classification_section, "anomaly": _detection_section}


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
        shown = number(record["metrics"].get(metric), f".{digits}f")
        cells = (shown, f"{record['wall_s']:.0f} s", record["device"], record["command"])
        rows.append((system_title(name), str(record["seed"]), *cells))
    return rows
