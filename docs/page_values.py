"""Single numbers of sentences, made from the stored records: `<!-- value: NAME -->...<!-- end -->` on a page."""

import statistics
from collections.abc import Callable, Mapping
from functools import cache, partial

import classification_tables
import demixing_tables
import forecasting_tables
import stored_results
from performance_tables import cost_records, read
from repeat_tables import DUET_RUNS, duet_gain, read_repeats, repeated_pairs
from stored_results import (
    RECIPE_SETS,
    RESULTS,
    gains_by_set,
    mean_errors,
    mean_of,
    recipe_records,
    stored_records,
)
from toa.report.tables import signed
from toa_paper.report.costs import attention_costs, step_ratio
from toa_paper.report.evidence import read_evidence
from toa_paper.report.regimes import operators_help, read_decision

# data sets with the fewest rows
SMALL = ("ETTh1", "ETTh2", "Exchange")
# data sets with the most rows
LARGE = ("ETTm1", "ETTm2", "Weather")


def wins(backbone: str, sets: tuple[str, ...]) -> str:
    """Cells of sets and horizons in which TOA has a lower test error than softmax under `toa`."""
    records_of = recipe_records(backbone)
    ours, plain = records_of["toa",], records_of["softmax",]
    cells = [cell for cell in ours if cell[0] in sets]
    better = sum(mean_of(ours[cell], "mse") < mean_of(plain[cell], "mse") for cell in cells)
    return f"{better} of {len(cells)}"


def better_sets() -> str:
    """Sets on which TOA-Softmax has a gain under iTransformer."""
    gains = forecasting_tables.recipe_gains("itransformer").values()
    return f"{sum(gain > 0 for gain in gains)} of {len(gains)}"


def sor_wins(backbone: str) -> str:
    """Pairs in which TOA is better with SOR than without."""
    records_of = recipe_records(backbone)
    kept = records_of["toa",]
    left = records_of["toa", "attention.sor=false"]
    better = sum(mean_of(kept[cell], "mse") < mean_of(runs, "mse") for cell, runs in left.items())
    return f"{better} of {len(left)}"


def demixing_gain() -> str:
    """Gain of TOA-Gated over softmax in demixing under `toa`, in percent of the error, mean over seeds."""
    errors = demixing_tables.tuned_demixing_errors()
    pairs = [(errors["softmax"][seed], error) for seed, error in errors["toa-gated-no-sor"].items()]
    return f"{statistics.fmean(100 * (1 - ours / plain) for plain, ours in pairs):.0f}"


def demixing_parameters() -> str:
    """How many times as many parameters TOA-Gated has as softmax in demixing."""
    sizes = {record["name"]: record["parameters"] for record in stored_records("demixing/toa.jsonl")}
    return f"{sizes['toa-gated-no-sor'] / sizes['softmax']:.0f}"


def uea_mean(name: str) -> str:
    """Mean accuracy over the sets of the leaderboard, in percent."""
    accuracies = [by_method[name] for by_method in classification_tables.uea_accuracies().values()]
    return f"{100 * statistics.fmean(accuracies):.1f}"


def uea_network() -> str:
    """Sets of the leaderboard on which the network has a weight in `toa.Classifier()`."""
    records = [record for record in stored_records("leaderboards/uea.jsonl") if record["method"] == "toa"]
    return f"{sum(record['weights'].get('toa', 0.0) > 0 for record in records)} of the {len(records)}"


@cache
def uea_differences() -> dict[str, float]:
    """Points by which the classifier is ahead of MultiRocketHydra, by set, the largest first."""
    accuracies = classification_tables.uea_accuracies()
    points = {name: 100 * (by_method["toa"] - by_method["multirocket-hydra"]) for name, by_method in accuracies.items()}
    return dict(sorted(points.items(), key=lambda pair: -pair[1]))


def uea_largest() -> str:
    """The two sets with the largest difference, with their test cases."""
    from toa.data import CLASSIFICATION_SETS

    first, second = list(uea_differences())[:2]
    sizes = [CLASSIFICATION_SETS[name].test for name in (first, second)]
    return f"{first} ({sizes[0]} test cases) and {second} ({sizes[1]})"


def uea_two_sets() -> str:
    """Their part of the mean difference, in points."""
    points = list(uea_differences().values())
    return f"{sum(points[:2]) / len(points):.1f} of these {statistics.fmean(points):.1f}"


def uea_count(sign: int) -> int:
    """Sets on which the classifier is better (1), or equal (0)."""
    # accuracies of the same cases are equal, or differ by at least one case
    small = 1e-6
    return sum((point > small) - (point < -small) == sign for point in uea_differences().values())


def uea_gain(line: str, variant: str, base_line: str) -> str:
    """Gain of a variant in one line of the accuracies over softmax in another line, in points."""
    lines = classification_tables.accuracy_lines()
    gain = (
        lines[line][classification_tables.VARIANTS.index(variant)]
        - lines[base_line][classification_tables.VARIANTS.index("softmax")]
    )
    return f"{gain:+.1f}"


def duet_value(other: str, runs: str, shown: str) -> str:
    """A part of what TOA-Softmax gains under DUET over another variant."""
    return shown.format(duet_gain(other, DUET_RUNS[runs]))


def searched_gain() -> str:
    """Mean gain of TOA under DUET with the look-backs of its authors, in percent."""
    cells_of = forecasting_tables.searched_duet()
    errors = (mean_errors(cells_of[name]) for name in ("toa-softmax", "softmax"))
    return signed(statistics.fmean(gains_by_set(*errors).values()))


def repeated_equal(task: str) -> str:
    """Repeated runs of a task with the test metric of the stored run."""
    changes = [pair["change"] for pair in repeated_pairs() if pair["task"] == task]
    return f"{changes.count(0.0)} of {len(changes)}"


def repeated_largest(*backbones: str) -> str:
    """The largest change of a repeated run of forecasting with these backbones, in percent."""
    pairs = [p for p in repeated_pairs() if p["task"] == "forecast" and p["backbone"] in backbones]
    return f"{max(abs(pair['change']) for pair in pairs):.2f}"


def uea_softmax(extreme: Callable[..., float]) -> str:
    """Our softmax against the published one under `toa-paper`, in points: of all sets, one difference."""
    theirs = {key[0]: value for key, value in stored_results.published("classification").items() if key[3] == "softmax"}
    ours = classification_tables.accuracies("toa-paper")["softmax"]
    return f"{100 * extreme(statistics.mean(values) - theirs[name] for name, values in ours.items()):+.1f}"


def trials(backbone: str, task: str = "forecast") -> str:
    """Trials of the search for each of softmax and TOA."""
    # a family without a trial is an error here, not a zero
    counts = dict(read_evidence([RESULTS / "search"]).trials[task, backbone])
    return " and ".join(dict.fromkeys(str(counts[name]) for name in ("softmax", "TOA")))


@cache
def whole_counts() -> dict[str, int]:
    """Sets on which a published accuracy is a whole number of test cases, within its four digits, by variant."""
    from toa.data import CLASSIFICATION_SETS

    counts = dict.fromkeys(classification_tables.VARIANTS, 0)
    for (dataset, _, _, variant, _), value in stored_results.published("classification").items():
        size = CLASSIFICATION_SETS[dataset].test
        counts[variant] += abs(value * size - round(value * size)) <= 0.51e-4 * size
    return counts


def whole_cases() -> str:
    """That count in three columns, and in the others."""
    whole = max(whole_counts().values())
    others = [n for n in whole_counts().values() if n < max(whole_counts().values())]
    return f"{whole} sets; in the other four columns, in {min(others)} to {max(others)} of {whole}"


def latest_epoch() -> str:
    """The latest best epoch of PatchTST in the first search."""
    records = stored_records("forecasting/search.jsonl")
    return str(max(record["best_epoch"] for record in records if record["config"]["backbone"] == "patchtst"))


def cpu_step(name: str, other: str, case: str) -> str:
    """Time of a training step on a CPU over that of another system."""
    (systems,) = (row["systems"] for row in read("training_step_cpu.json")["rows"] if row["name"].startswith(case))
    return f"{step_ratio(systems[name], systems[other]).ratio:.2f}"


def attention_cost(attention: str) -> str:
    """Time of a step with an attention over one with softmax: the least and the greatest of all cases."""
    ratios = [cost.ratio for (_, name), cost in attention_costs(cost_records()).items() if name == attention]
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def two_axis_step() -> str:
    """Time of a step of two-axis over one of iTransformer with the same attention and channels: least and greatest."""
    rows = {row["name"]: row["systems"] for row in read("training_step.json")["rows"]}
    ours, theirs = rows["two-axis-862"], rows["itransformer-512"]
    ratios = sorted(cost["milliseconds"] / theirs[name]["milliseconds"] for name, cost in ours.items())
    return f"{ratios[0]:.2f} to {ratios[-1]:.2f}"


def primitive_sizes() -> str:
    """Batch, heads and width of the primitive's table."""
    return "B={batch}, H={heads}, D={width}".format(**read("operator_attention.json")["settings"])


def steps_measured() -> str:
    """Number of timed steps of each system."""
    settings = read("training_step.json")["settings"]
    return str(settings["steps"] * settings["rounds"])


def many_channels() -> str:
    """The state of the decision on many channels, in a few words."""
    decision = read_decision([RESULTS / "many_channels"])
    assert decision is not None
    if not decision["complete"]:
        return f"not complete, {len(decision['finished'])} of {len(decision['units'])} sets"
    return "yes, by the rule" if operators_help(decision) else "the rule for a gain is missed"


def run_seconds(name: str) -> str:
    """Seconds of a complete run."""
    return f"{read('training_run.json')['runs'][name]['run_s']:.1f}"


# values with a name per backbone, protocol or statistic
BACKBONE_VALUES = {
    f"{name}-{backbone}": partial(make, backbone)
    for backbone in ("itransformer", "duet", "patchtst")
    for name, make in (("toa-better", partial(wins, sets=RECIPE_SETS)), ("sor-better", sor_wins), ("trials", trials))
}
UEA_VALUES = {
    **{f"uea-{name.lower()}": partial(uea_mean, name) for name in ("toa", "ROCKET", "HC2")},
    **{
        f"uea-relu-{name}": partial(uea_gain, f"`{name}`", "toa-relu", f"`{name}`")
        for name in classification_tables.UEA
    },
    "uea-softmax-mean": partial(uea_softmax, statistics.fmean),
    "uea-softmax-least": partial(uea_softmax, min),
    "uea-softmax-most": partial(uea_softmax, max),
}
VALUES: Mapping[str, Callable[[], str]] = {
    **BACKBONE_VALUES,
    "many-channels": many_channels,
    "toa-better-sets": better_sets,
    "toa-better-duet-large": partial(wins, "duet", LARGE),
    "toa-better-patchtst-small": partial(wins, "patchtst", SMALL),
    "trials-classify": partial(trials, "patchtst", "classify"),
    "trials-classify-two-axis": partial(trials, "two-axis", "classify"),
    "latest-best-epoch": latest_epoch,
    "duet-sor-earlier": partial(duet_value, "without SOR", "earlier", "{0.better} of {0.cells}"),
    "duet-both": partial(duet_value, "softmax", "both", "{0.mean:+.1f}"),
    "duet-equal": partial(duet_value, "equal dropout", "both", "{0.mean:+.1f}"),
    "duet-equal-interval": partial(duet_value, "equal dropout", "both", "{0.interval[0]:+.1f} to {0.interval[1]:+.1f}"),
    "duet-search-gain": searched_gain,
    "repeats-count": lambda: str(len(repeated_pairs())),
    "repeats-commits": lambda: str(len(read_repeats()["by_commit"]["runs"])),
    "repeats-equal": partial(repeated_equal, "classify"),
    "repeats-largest": partial(repeated_largest, "patchtst", "itransformer", "two-axis"),
    **UEA_VALUES,
    "uea-rival": partial(uea_mean, "multirocket-hydra"),
    "uea-largest": uea_largest,
    "uea-two-sets": uea_two_sets,
    "uea-median": lambda: f"{statistics.median(uea_differences().values()):.1f}",
    "uea-better": lambda: f"{uea_count(1)} of the {len(uea_differences())}",
    "uea-equal": lambda: str(uea_count(0)),
    "uea-sets": lambda: str(len(classification_tables.uea_accuracies())),
    "uea-network": uea_network,
    "uea-published-gain": partial(uea_gain, "published", "toa-relu", "published"),
    "uea-test-gain": partial(uea_gain, "`tslib-uea`", "softmax", "`toa-paper`"),
    "whole-cases": whole_cases,
    "demixing-gain": demixing_gain,
    "demixing-steps-change": demixing_tables.steps_change,
    "demixing-steps-gated": demixing_tables.gated_with_most_steps,
    "demixing-parameters": demixing_parameters,
    "primitive-sizes": primitive_sizes,
    "step-count": steps_measured,
    "two-axis-step": two_axis_step,
    **{f"cost-{name}": partial(attention_cost, name) for name in ("toa-softmax", "toa-relu", "toa-gated")},
    "cpu-patchtst-128": partial(cpu_step, "toa-gated", "peer", "patchtst-128"),
    "cpu-patchtst-16": partial(cpu_step, "toa-gated", "peer", "patchtst-16"),
    "first-run": partial(run_seconds, "ours, toa-gated, first run"),
}
