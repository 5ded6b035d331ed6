import re
import statistics
from collections.abc import Iterable

import pytest

from tests.support import ROOT
from toa.data import CLASSIFICATION_SETS
from toa.experiments.paper.published import published_numbers
from toa.experiments.records import Record
from toa.report.comparison import system_table
from toa.report.evidence import read_records
from toa.report.statistics import collect, compare
from toa.report.tables import changes_of, markdown_table

FOLDER = ROOT / "results" / "classification"
PROTOCOLS = ("toa-paper", "tslib-uea")
# the paper's names, in the order of the page
VARIANTS = ("softmax", "hyperglu-dplr", "toa-softmax", "toa-relu", "toa-relu-nosor", "toa-gated", "toa-gated-nosor")


def variant_of(record: Record) -> str:
    attention = record["config"]["attention"]
    name = {"hyperglu": "hyperglu-dplr"}.get(attention["name"], attention["name"])
    return f"{name}-nosor" if name.startswith("toa-") and not attention["sor"] else name


def accuracies(protocol: str) -> dict[str, dict[str, list[float]]]:
    """By variant and dataset, one for each seed."""
    found: dict[str, dict[str, list[float]]] = {}
    for record in read_records([FOLDER / f"{protocol}.jsonl"]):
        row = found.setdefault(variant_of(record), {})
        row.setdefault(record["config"]["dataset"], []).append(record["metrics"]["accuracy"])
    return found


def published() -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for number in published_numbers():
        if number.table == "classification":
            found.setdefault(number.variant, {})[number.dataset] = number.value
    return found


def percent(values: Iterable[float]) -> str:
    return f"{100 * statistics.mean(values):.1f}"


def percentages() -> str:
    """Rows of the page: what is published and ours, as means over the sets that were run."""
    ours = {protocol: accuracies(protocol) for protocol in PROTOCOLS}
    sets = sorted(ours["toa-paper"]["softmax"])
    rows = {"published": [percent(published()[variant][name] for name in sets) for variant in VARIANTS]}
    for protocol, found in ours.items():
        rows[f"`{protocol}`"] = [percent(statistics.mean(found[v][name]) for name in sets) for v in VARIANTS]
    best = ours["toa-paper"]
    rows["`toa-paper`, best of three seeds"] = [percent(max(best[v][name]) for name in sets) for v in VARIANTS]
    return "\n".join(f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items())


def setting_table() -> str:
    """The search: a row for each setting, a column for each dataset."""
    rows: dict[str, dict[str, str]] = {}
    datasets: dict[str, None] = {}
    for record in read_records([FOLDER / "search.jsonl"]):
        config, metrics = record["config"], record["metrics"]
        norms = [norm for norm in (config["attention"]["score_norm"], config["attention"]["gate_norm"]) if norm]
        without = ["no instance norm"] if "model.instance_norm=false" in changes_of(record) else []
        name = ", ".join((config["attention"]["name"], *norms, *without))
        datasets.setdefault(config["dataset"])
        cell = f"{metrics['val_accuracy']:.3f} / {metrics['accuracy']:.3f}"
        assert rows.setdefault(name, {}).setdefault(config["dataset"], cell) == cell
    head = ["setting", *datasets]
    body = [[name, *(row.get(dataset, "-") for dataset in datasets)] for name, row in sorted(rows.items())]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *body))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_cell_has_three_seeds_of_one_device(protocol):
    records = read_records([FOLDER / f"{protocol}.jsonl"])
    assert len(records) == 12 * 7 * 3
    assert {record["device"] for record in records} == {"NVIDIA H200"}
    cells = {(variant_of(r), r["config"]["dataset"], r["seed"]): r for r in records}
    assert len(cells) == len(records)
    assert {seed for _, _, seed in cells} == {2024, 2025, 2026}
    strict = protocol == "toa-paper"
    assert all((r["config"]["evaluation"] == "strict") == strict for r in records)
    assert all(r["command"].startswith("toa run --task classify ") for r in records)
    # one checksum a dataset
    assert len({(r["config"]["dataset"], r["data_checksum"]) for r in records}) == 12


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_page_shows_what_toa_compare_finds(protocol):
    scores = collect(read_records([FOLDER / f"{protocol}.jsonl"]), "accuracy")
    rows = compare(scores, "softmax")
    assert "\n".join(markdown_table(system_table(scores, rows, "softmax"))) in (FOLDER / "README.md").read_text()
    # what the page says of it
    assert all(row.p_holm is None or row.p_holm > 0.05 for row in rows)


def test_the_page_shows_means_beside_published_ones():
    assert percentages() in (FOLDER / "README.md").read_text()


def test_the_readme_shows_means_beside_published_ones():
    ours, theirs = accuracies("toa-paper"), published()
    cells = []
    for variant in ("softmax", "toa-softmax", "toa-relu", "toa-gated", "hyperglu-dplr"):
        mean = percent(statistics.mean(values) for values in ours[variant].values())
        cells.append(f"{mean} ({percent(theirs[variant][name] for name in ours[variant])})")
    assert f"| {' | '.join(cells)} |" in (ROOT / "README.md").read_text()


def test_the_page_shows_the_search():
    assert setting_table() in (FOLDER / "README.md").read_text()


def test_softmax_is_no_more_than_three_points_under_the_paper():
    ours = accuracies("toa-paper")["softmax"]
    theirs = published()["softmax"]
    assert len(ours) == 12
    difference = statistics.mean(statistics.mean(values) - theirs[name] for name, values in ours.items())
    assert difference > -0.03


def whole_cases(variant: str) -> int:
    """Sets on which a published accuracy is a whole number of test cases, within its four digits."""
    count = 0
    for name, value in published()[variant].items():
        cases = value * CLASSIFICATION_SETS[name].test
        count += abs(cases - round(cases)) <= 0.51e-4 * CLASSIFICATION_SETS[name].test
    return count


def test_three_published_columns_are_whole_numbers_of_cases():
    found = {variant: whole_cases(variant) for variant in VARIANTS}
    single = {variant for variant, count in found.items() if count == 28}
    assert single == {"toa-relu", "toa-relu-nosor", "toa-gated"}
    page = (FOLDER / "README.md").read_text()
    others = [count for variant, count in found.items() if variant not in single]
    shown = re.search(r"those of the other four variants are so in (\d+) to (\d+) of 28", page)
    assert shown is not None
    assert (min(others), max(others)) == tuple(map(int, shown.groups()))
