"""Tables of the forecaster on public leaderboards."""

from collections.abc import Callable, Mapping
from functools import partial
from statistics import geometric_mean

from performance_tables import table
from stored_results import RESULTS, Record, read_csv, stored_records
from toa.report.tables import number

RIVALS = ("AutoTheta", "AutoETS", "DLinear", "PatchTST", "iTransformer", "N-BEATS", "Chronos-2", "TimesFM-2.5")
PRETRAINED = ("Chronos", "TimesFM", "TiRex", "Toto", "Moirai", "Sundial", "TabPFN", "CITRAS", "FlowState", "TS-ICL")
# methods in the records that are neither a baseline nor the default
ALONE = ("toa-network", "toa-without-trees", "toa-without-pretrained", "toa-zero-shot", "boosting")
COVARIATE_RIVALS = ("lightgbm direct", "lightgbm recursive", "seasonal naive")
# scores of the means over configurations
MEAN_SCORES = ("mase", "wql")
# ours: title, file, method, and the method on whose configurations the mean is taken
OWN_MEANS = (
    ("toa, default settings", "gift-eval", "toa", "toa"),
    ("toa, default settings, without M4 monthly", "gift-eval", "toa", "toa-without-pretrained"),
    (
        "the same without the pretrained model, without M4 monthly",
        "gift-eval",
        "toa-without-pretrained",
        "toa-without-pretrained",
    ),
    ("pretrained model alone, zero-shot", "gift-eval", "toa-zero-shot", "toa-zero-shot"),
    (
        "pretrained model alone, first evaluation, short series as they are",
        "gift-eval-first",
        "toa-zero-shot",
        "toa-zero-shot",
    ),
    ("toa of an earlier version, limits of 240 to 600 s", "gift-eval-limits", "toa", "toa"),
)
M3_BASELINES = ("seasonal naive", "drift", "theta", "damped trend", "optimised theta")
# methods of other packages in the records of `toa bench tables`, and their titles
TABLE_RIVALS = {"auto ets": "AutoETS", "mstl": "MSTL", "lightgbm": "LightGBM"}


def leaderboard_records(*names: str) -> dict[str, dict[str, Record]]:
    """Records of benchmarks by configuration and method."""
    by_config: dict[str, dict[str, Record]] = {}
    for name in names:
        if (RESULTS / "leaderboards" / f"{name}.jsonl").exists():
            for record in stored_records(f"leaderboards/{name}.jsonl"):
                by_config.setdefault(record["config"], {})[record["method"]] = record
    return by_config


def best_baseline(records: dict[str, Record], score: str) -> float:
    """The smallest score of a baseline."""
    no_baselines = ("toa", *ALONE)
    return float(min(record["metrics"][score] for method, record in records.items() if method not in no_baselines))


def ratio_to_naive(scores: Mapping[str, float], score: str) -> float:
    """Geometric mean of scores by configuration over those of the published seasonal naive forecast."""
    naive = {row["config"]: float(row[score]) for row in read_csv("leaderboards/published.csv") if is_naive(row)}
    return geometric_mean([value / naive[config] for config, value in scores.items()])


def is_naive(row: Mapping[str, str]) -> bool:
    """Whether a published figure is of the seasonal naive forecast on GIFT-Eval."""
    return row["benchmark"] == "gift-eval" and row["model"] == "seasonal naive"


def mean_table() -> str:
    """Geometric means over the configurations of GIFT-Eval: ours, and published models on the same ones."""
    rows = []
    for title, file, method, like in OWN_MEANS:
        records = leaderboard_records(file)
        scores = [(config, by_method[method]["metrics"]) for config, by_method in records.items() if like in by_method]
        means = [ratio_to_naive({config: metrics[name] for config, metrics in scores}, name) for name in MEAN_SCORES]
        rows.append([f"**{title}**", str(len(scores)), *(f"{mean:.3f}" for mean in means)])
    configs = set(leaderboard_records("gift-eval"))
    published = [row for row in read_csv("leaderboards/published.csv") if row["config"] in configs]
    for model in RIVALS:
        figures = [row for row in published if row["model"] == model]
        means = [ratio_to_naive({row["config"]: float(row[name]) for row in figures}, name) for name in MEAN_SCORES]
        rows.append([model, str(len(figures)), *(f"{mean:.3f}" for mean in means)])
    rows.sort(key=lambda cells: cells[2])
    return table(["geometric mean over seasonal naive", "configurations", "MASE", "weighted quantile loss"], rows)


def own_cells(records: dict[str, Record], score: str) -> list[str]:
    """Our score, that of boosting alone, and that of the best baseline; empty if not run."""
    scores = [score_of(records, method, score) for method in ("toa", "boosting")]
    return [number(value, missing="") for value in (*scores, best_baseline(records, score))]


def score_of(records: Mapping[str, Record], method: str, score: str) -> float | None:
    """The score of a method; None if it was not run."""
    return records[method]["metrics"][score] if method in records else None


def leaderboard_table(score: str) -> str:
    """Ours beside the published figures, one row per configuration."""
    published_scores = {
        (row["config"], row["model"]): float(row[score]) for row in read_csv("leaderboards/published.csv")
    }
    rows = []
    for config, records in leaderboard_records("gift-eval").items():
        others = [published_scores.get((config, name)) for name in ("seasonal naive", *RIVALS)]
        variants = [score_of(records, method, score) for method in ("toa-without-pretrained", "toa-zero-shot")]
        cells = [number(value, missing="") for value in variants]
        toa, *rest = own_cells(records, score)
        rows.append([config, toa, *cells, *rest, *(number(value, ".4g", "") for value in others)])
    titles = ["configuration", "toa", "without pretrained", "zero-shot", "boosting", "baseline", "seasonal naive"]
    return table([*titles, *RIVALS], rows, left=1)


def fev_table() -> str:
    """Ours among the published figures of ETT_1H, the best first."""
    (ours,) = leaderboard_records("fev").values() or [{}]
    scores = ("mase", "sql", "wql", "wape")
    rows: list[list[str]] = []
    for row in read_csv("leaderboards/published-fev.csv"):
        name = f"{row['model']} (pretrained)" if row["model"].startswith(PRETRAINED) else row["model"]
        rows.append([name, *(f"{float(row[score]):.4f}" for score in scores)])
    methods = [method for method in ("toa", "boosting") if method in ours]
    rows += [[f"**{name}, here**", *(f"{ours[name]['metrics'][score]:.4f}" for score in scores)] for name in methods]
    rows.sort(key=lambda cells: cells[1])
    return table(["model", "MASE", "SQL", "WQL", "WAPE"], rows, left=1)


def m3_table() -> str:
    """Ours, boosting alone and the baselines on the M3 competition."""
    rows = []
    for config, records in leaderboard_records("m3").items():
        shown = own_cells(records, "mase")[:2]
        shown += [f"{records[name]['metrics']['mase']:.4f}" if name in records else "" for name in M3_BASELINES]
        rows.append([config, *shown, f"{records['toa']['metrics']['wql']:.4f}"])
    return table(["MASE", "toa", "boosting", *M3_BASELINES, "toa, WQL"], rows, left=1)


def earlier_table() -> str:
    """MASE on windows before the tested ones, with and without trees."""
    rows = []
    for config, records in sorted(leaderboard_records("earlier").items()):
        without = records["toa-without-trees"]["metrics"]["mase"]
        score, *others = own_cells(records, "mase")
        rows.append([config, score, f"{without:.4f}", *others])
    return table(["MASE", "toa", "toa without trees", "boosting", "best baseline"], rows, left=1)


def scale_table() -> str:
    """Throughput and memory of forecasts of panels in parquet files."""
    rows = []
    for record in stored_records("leaderboards/scale.jsonl"):
        count, seconds = record["series"], record["seconds"]
        cells = [f"{count:,}", f"{record['rows']:,}", f"{record['parquet_bytes'] / 2**20:,.0f}", f"{seconds:.0f}"]
        peak = f"{record['peak_bytes'] / 2**20:.0f}"
        rows.append([record["executor"], str(record["workers"] or 1), *cells, f"{count / seconds:,.0f}", peak])
    titles = ["executor", "processes", "series", "rows", "parquet, MiB", "s", "series / s", "MiB per process"]
    return table(titles, rows, left=1)


def leaderboard_weights() -> str:
    """What the forecaster chose, and its CPU time."""
    rows = []
    for config, records in leaderboard_records("gift-eval", "fev", "m3").items():
        if "toa" in records:
            record = records["toa"]
            mixed = ", ".join(f"{weight:.2f} {name}" for name, weight in record["weights"].items())
            limit = record.get("time_limit")
            rows.append([config, mixed, f"{record['cpu_s']:.0f}", "none" if limit is None else f"{limit:g}"])
    return table(["configuration", "weights", "CPU s", "limit, s"], rows, left=2)


def user_table() -> str:
    """Errors and intervals of the forecaster on tables of users, beside simple methods."""
    by_set: dict[str, dict[str, Record]] = {}
    for record in stored_records("leaderboards/user-tables.jsonl"):
        by_set.setdefault(record["dataset"], {})[record["method"]] = record
    rows = []
    for name, records in by_set.items():
        scores = {method: record["metrics"] for method, record in records.items()}
        ours = scores.pop("toa")
        naive = scores["seasonal naive"]
        simple = [part["mase"] for method, part in scores.items() if method not in TABLE_RIVALS]
        errors = [number(value) for value in (ours["mase"], naive["mase"], scores["last value"]["mase"], min(simple))]
        errors += [number(scores[method]["mase"]) if method in scores else "" for method in TABLE_RIVALS]
        shares = [f"{100 * ours[part]:.0f}" for part in ("coverage", "first", "middle", "last")]
        outside = f"{ours['outside']:.0f} of {records['toa']['series']}"
        widths = [number(part[score]) for score in ("width", "interval_score") for part in (ours, naive)]
        rows.append([name, f"{records['toa']['cells']:,}", *errors, *shares, outside, *widths])
    titles = [
        "set",
        "values",
        "MASE",
        "seasonal naive",
        "last value",
        "best simple",
        *TABLE_RIVALS.values(),
        "covered, %",
        "first third",
        "middle",
        "last third",
    ]
    titles += ["series outside", "width", "naive width", "interval score", "naive score"]
    return table(titles, rows, left=1)


def covariate_table() -> str:
    """Errors of the forecaster with and without covariates, beside LightGBM with the same ones."""
    by_set: dict[str, dict[str, Record]] = {}
    for record in stored_records("leaderboards/covariates.jsonl"):
        by_set.setdefault(record["dataset"], {})[record["method"]] = record
    rows = []
    for name, records in by_set.items():
        ours = records["toa"]["metrics"]
        without = records["toa without covariates"]["metrics"]
        errors = [records[method]["metrics"]["mase"] for method in COVARIATE_RIVALS]
        change = f"{100 * (ours['mase'] / without['mase'] - 1):+.1f} %"
        shares = [f"{100 * part['coverage']:.0f}" for part in (ours, without)]
        scores = [number(part["interval_score"]) for part in (ours, without, records["seasonal naive"]["metrics"])]
        cells = f"{records['toa']['cells']:,}"
        rows.append([name, cells, number(ours["mase"]), number(without["mase"]), change, *map(number, errors), *shares])
        rows[-1] += scores
    titles = ["set", "values", "MASE", "without covariates", "change", *COVARIATE_RIVALS]
    titles += ["covered, %", "without", "interval score", "without", "naive score"]
    return table(titles, rows, left=1)


TABLES: Mapping[str, Callable[[], str]] = {
    "user-tables": user_table,
    "covariates": covariate_table,
    "leaderboard-means": mean_table,
    "leaderboard-mase": partial(leaderboard_table, "mase"),
    "leaderboard-wql": partial(leaderboard_table, "wql"),
    "leaderboard-weights": leaderboard_weights,
    "fev": fev_table,
    "m3": m3_table,
    "earlier": earlier_table,
    "scale": scale_table,
}
