"""The page of the paper has a row for everything that the paper labels, and for each of its published tables."""

import re
import tomllib
from dataclasses import replace
from importlib.resources import files

import pytest

import paper_tables
from paper_tables import PaperItem, paper_items
from tests.support import ROOT, message
from toa_paper.settings import paper_settings
from toa_paper.tables import TABLES
from toa_paper.theory import CASES

LABELS = tomllib.loads((files("toa_paper") / "labels.toml").read_text(encoding="utf-8"))
ITEMS = [item for items in paper_items().values() for item in items]
PAGE = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")


def test_every_label_of_the_paper_has_one_row():
    wanted = [label for labels in LABELS.values() for label in labels]
    covered = [label for item in ITEMS for label in item.labels]
    assert sorted(covered) == sorted(wanted)
    assert len(set(wanted)) == len(wanted)


def test_figures_and_tables_have_the_numbers_of_their_order_in_the_paper():
    for kind, word in (("figures", "Figure"), ("tables", "Table")):
        names = {item.labels[0]: item.name for item in paper_items()[kind]}
        assert names == {label: f"{word} {number}" for number, label in enumerate(LABELS[kind], 1)}


def test_statements_have_the_numbers_of_their_order_in_the_paper():
    named = {label: item.name for item in paper_items()["theory"] for label in item.labels}
    for kind in ("propositions", "lemmas", "remarks"):
        for number, label in enumerate(LABELS[kind], 1):
            assert re.search(rf"\b{kind[:-1]} {number}\b", named[label], re.IGNORECASE), label


def test_every_published_table_and_every_case_has_a_row():
    assert sorted(item.published for item in ITEMS if item.published) == sorted(TABLES)
    assert [item.case for item in ITEMS if item.case] == list(CASES)


def test_sections_that_state_settings_are_on_the_page():
    assert paper_settings().sections.keys() <= {label for item in ITEMS for label in item.labels}


def test_every_stated_setting_has_a_row():
    (table,) = re.findall(r"<!-- generated: paper-setting-list -->(.*?)<!-- end -->", PAGE, re.DOTALL)
    shown = re.findall(r"^\| `([\w.]+)` \|", table, re.MULTILINE)
    assert shown == list(dict.fromkeys(entry.key for entry in paper_settings().stated))
    # a departure is a link away
    assert "| `loss` | forecasting, PEMS, SOR | mse | the same |" in table
    place = re.escape("protocols.md#where-toa-paper-departs-from-the-paper")
    assert re.search(rf"`attention.scale` .* \[differs\]\({place}\) in", table)


def test_every_row_says_where_the_item_is_and_what_was_found():
    for item in ITEMS:
        # every row leads somewhere in one click
        assert re.search(r"\[[^]]+\]\([^)]+\)", item.where), item.name
        assert item.finding(), item.name


def test_numbers_of_a_published_table_are_those_of_the_report():
    text = (ROOT / "results" / "report" / "summary.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| forecast-full \|.*$", text, re.MULTILINE)
    count, measured = (cell.strip() for cell in row.split("|")[2:4])
    text = paper_tables.measured_text("forecast-full")
    assert text.startswith(f"{measured} of {count} numbers measured; no data for ")


def test_a_lemma_that_fails_is_said_to_fail(monkeypatch):
    case = CASES["A"]()
    wrong = CASES["patch"]()
    monkeypatch.setattr(paper_tables, "CASES", {"A": lambda: wrong})
    assert paper_tables.case_text("A").startswith("holds (some row subtracts, ")
    object.__setattr__(wrong, "claims", case.claims)
    assert paper_tables.case_text("A").startswith("fails: every row sums to zero, every row leaves the simplex; ")


def test_an_item_states_what_was_found_in_one_way():
    item = PaperItem(labels=("a",), name="Table 1", about="x", where="y", found="z")
    error = message("Table 1 must have one of published, case and found")
    with pytest.raises(ValueError, match=error):
        replace(item, found="")
    with pytest.raises(ValueError, match=error):
        replace(item, case="A")


def test_readme_front_page_and_summary_link_to_the_page():
    for page, link in (
        ("README.md", "docs/paper.md"),
        ("docs/index.md", "paper.md"),
        ("results/README.md", "../docs/paper.md"),
        ("results/report/summary.md", "../../docs/paper.md"),
    ):
        assert f"({link})" in (ROOT / page).read_text(encoding="utf-8"), page
