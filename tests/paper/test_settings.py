"""The protocols of the tables against the settings that the paper states: every difference is listed with a reason."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import ROOT
from toa_paper import settings
from toa_paper.settings import Stated, differences, entries_of, open_values, paper_runs, paper_settings, stated_values


def test_every_difference_from_the_paper_is_listed_once_with_a_reason():
    departures = paper_settings().departures
    wrong = {(one.key, *one.run.names) for one in differences() if len(entries_of(departures, one.run, one.key)) != 1}
    assert not wrong, "add to the departures of src/toa_paper/settings.toml"
    assert all(entry.reason for entry in departures)


def test_every_listed_departure_is_one():
    different = [(one.run, one.key) for one in differences()]
    for entry in paper_settings().departures:
        for key in entry.keys:
            assert any(one == key and entry.holds(run) for run, one in different), f"{entry.about}: {key}"


def test_what_neither_the_paper_nor_a_script_states_is_listed_too():
    entries = paper_settings().open
    wrong = {(key, *run.names) for run, key, _ in open_values() if len(entries_of(entries, run, key)) != 1}
    assert not wrong
    named = {key for _, key, _ in open_values()}
    assert not {key for entry in entries for key in entry.keys} - named


def test_the_page_has_each_departure():
    text = (ROOT / "docs" / "protocols.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"<!-- generated: departures -->(.*?)<!-- end -->", text, re.DOTALL)
    for entry in paper_settings().departures:
        assert f"\n| {entry.about} | " in table
        assert f"| {entry.reason} |" in table


def test_a_changed_protocol_is_noticed(monkeypatch):
    run = next(run for run in paper_runs() if (run.table, run.dataset) == ("classification", "Libras"))
    config = run.job.config
    model = {**config.model, "num_layers": 2}
    changed = replace(run, job=replace(run.job, config=replace(config, model=model)))
    monkeypatch.setattr(settings, "paper_runs", lambda: (changed,))
    found = settings.differences.__wrapped__()
    (one,) = (one for one in found if one.key == "model.num_layers")
    assert (one.stated, one.ours, one.source) == ("3", 2, "Exp-details")
    assert not entries_of(paper_settings().departures, one.run, one.key)


@pytest.mark.parametrize(
    ("table", "backbone", "dataset", "key", "value"),
    [
        ("forecast-full", "patchtst", "ETTh1", "training.learning_rate", 1e-4),
        ("forecast-full", "duet", "ETTm1", "model.num_experts", 4),
        ("forecast-full", "itransformer", "Weather", "model.num_layers", 2),
        # of the authors' script
        ("forecast-full", "patchtst", "ETTh1", "model.embed_dim", 16),
        ("classification", "patchtst", "Libras", "model.ff_dim", 256),
        ("anomaly", "transformer", "SWAT", "training.epochs", None),
        ("demixing", "transformer-2x2", "harmonic-demixing", "signals.noise", 0.5),
    ],
)
def test_a_setting_is_that_of_the_paper_else_of_the_script(table, backbone, dataset, key, value):
    names = (table, backbone, dataset)
    run = next(run for run in paper_runs() if (run.table, run.backbone, run.dataset) == names)
    assert stated_values(run)[key].value == value


@pytest.mark.parametrize(
    ("entry", "ours", "agrees", "text"),
    [
        ({"value": 2}, 2.0, True, "2"),
        ({"value": [0.9, 0.95]}, (0.9, 0.95), True, "0.9, 0.95"),
        ({"least": 3, "most": 10}, 11, False, "3 to 10"),
        ({"least": 3, "most": 10}, 10, True, "3 to 10"),
        ({"least": 2}, 1, False, "at least 2"),
    ],
)
def test_a_value_agrees_or_does_not(entry, ours, agrees, text):
    stated = Stated(key="batch_size", source="Exp-details", **entry)
    assert stated.agrees(ours) is agrees
    assert stated.text == text


@pytest.mark.data
def test_the_sections_are_labels_of_the_paper():
    source = os.environ.get("TOA_PAPER")
    if source is None:
        pytest.skip("TOA_PAPER names no source of the paper (arXiv:2605.11287)")
    labels = re.findall(r"\\label\{([^}]+)\}", Path(source).read_text(encoding="utf-8"))
    assert not paper_settings().sections.keys() - {*labels}
