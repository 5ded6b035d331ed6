"""The report in the repository: its numbers are those of the records beside it, and the paper's are the paper's."""

import csv
import hashlib
import json
import re
from importlib.resources import files
from statistics import fmean, stdev

import pytest

from tests.report.cases import read_page
from tests.support import ROOT
from toa_paper.report.cells import paper_entries, recipe_cells
from toa_paper.report.evidence import read_evidence
from toa_paper.report.findings import found_parts
from toa_paper.report.paper import PaperReport, contests
from toa_paper.report.paper_text import cell_text, our_text
from toa_paper.report.regimes import read_decision

RESULTS = ROOT / "results"
FOLDER = RESULTS / "report"
# of published.csv as it was taken from the paper, with plain line ends
PUBLISHED = "b5e19469d85ef247819dacd6455aacaa6619579229ed8e0cbec7493337e91f14"


@pytest.fixture(scope="module")
def page():
    return read_page(FOLDER / "index.html")


@pytest.fixture(scope="module")
def evidence():
    return read_evidence([RESULTS])


@pytest.fixture(scope="module")
def measured(evidence):
    """What the records say now."""
    return [line for line in paper_entries(evidence) if line.values]


def published_rows():
    return list(csv.DictReader((files("toa_paper") / "published.csv").read_text(encoding="utf-8").splitlines()))


def test_no_published_number_was_altered():
    content = (files("toa_paper") / "published.csv").read_bytes()
    assert hashlib.sha256(content).hexdigest() == PUBLISHED
    assert len(published_rows()) == 1616


def test_the_page_shows_every_published_number_as_it_was_printed(page):
    names = ("table", "data", "backbone", "attention", "metric", "published")
    shown = [tuple(line[name] for name in names) for line in page["lines"] if line["published"]]
    expected = [
        (table, f"{dataset} {horizon}".strip(), *rest)
        for table, dataset, horizon, *rest in (row.values() for row in published_rows())
    ]
    # another protocol shows the same number again
    assert sorted(set(shown)) == sorted(expected)


def test_the_numbers_of_the_page_equal_their_records(page):
    contents = [(FOLDER / file).read_text(encoding="utf-8") for file in page["files"]]
    lines = [content.splitlines() for content in contents]
    for line in page["lines"]:
        if line["status"] != "measured" or line["metric"] == "avg_rank":
            continue
        factor = 100.0 if line["metric"] == "accuracy_pct" else 1.0
        by_seed: dict[int | None, list[float]] = {}
        for place in line["records"]:
            shown = page["records"][place]
            file, number = shown["file"], shown["line"]
            stored = json.loads(lines[file][number - 1] if number else contents[file])
            assert (stored["config_hash"], stored.get("command", "")) == (shown["hash"], shown["command"])
            by_seed.setdefault(stored["config"].get("seed"), []).append(factor * stored["metrics"][line["read"]])
        means = {seed: fmean(values) for seed, values in by_seed.items()}
        where = (line["table"], line["data"], line["backbone"], line["attention"], line["metric"])
        assert dict(line["values"]) == pytest.approx(means, rel=1e-5), where
        mean = fmean(means.values())
        digits = line["digits"]
        spread = f" ± {stdev(means.values()):.{digits}f}" if len(means) > 1 else ""
        assert line["text"] == f"{mean:.{digits}f}{spread}", where


def test_the_report_uses_all_records(page, measured):
    """`make report` builds it anew."""
    names = ("table", "dataset", "backbone", "attention", "protocol", "read", "text")
    stored = [tuple(line[name] for name in names) for line in page["lines"] if line["text"]]
    now = [
        (n.table, n.dataset, n.backbone, n.variant, line.protocol, line.metric, our_text(line))
        for n, line in ((line.number, line) for line in measured)
    ]
    assert stored == now
    said = f"{sum(line.own for line in measured):,} of 1,616 published numbers are measured here"
    assert page["headline"].startswith(said)
    assert said in (FOLDER / "summary.md").read_text(encoding="utf-8")


def test_the_findings_are_those_of_the_records(page, evidence, measured):
    report = PaperReport(
        evidence=evidence,
        entries=tuple(measured),
        recipes=tuple(recipe_cells(evidence)),
        contests=tuple(contests(measured)),
        ranks=(),
        operators=(),
        remarks=(),
        decision=read_decision([FOLDER.parent]),
    )
    now = {title: [re.sub(r"\*\*|`", "", line) for line in lines] for title, lines in found_parts(report).items()}
    *found, tested = page["found"]["What was found"]
    assert page["found"] | {"What was found": found} == now
    # which data are missing depends on the machine
    assert tested.startswith(
        f"Tested: {sum(line.own for line in measured):,} of the 1,616 published numbers. Not tested: "
    )


def test_the_text_shows_the_same_numbers(measured):
    text = (FOLDER / "report.md").read_text(encoding="utf-8")
    for line in measured:
        assert f" {cell_text(line)} |" in text


def test_the_page_is_small_enough_to_keep():
    assert (FOLDER / "index.html").stat().st_size < 900_000
