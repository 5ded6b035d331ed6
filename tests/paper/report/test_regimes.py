"""The result by regime: one row per kind of data, from measured numbers and the decision on many channels."""

import json
from typing import Any

import pytest

from tests.report.cases import hide_data, record_of, write_lines
from toa_paper.report import regimes
from toa_paper.report.paper import PaperReport, make_report
from toa_paper.report.paper_text import summary
from toa_paper.report.regimes import first_sentence, gate_sentence, operators_help, regime_rows, regime_table
from toa_paper.tables import protocol_job

# gain of each variant in test and in validation, in percent
GAINS = {"toa-softmax": (1.0, 1.0), "toa-relu": (2.0, 0.5), "toa-gated": (3.0, 2.0)}


@pytest.fixture(autouse=True)
def no_data(monkeypatch, tmp_path):
    hide_data(monkeypatch, tmp_path)


def runs_of(backbone: str, datasets: tuple[str, ...], *, rise: float = 0.001, seeds: int = 2) -> list[Any]:
    """Runs of softmax and the variants at one horizon, with the gains above."""
    records = []
    for place, dataset in enumerate(datasets):
        for variant in ("softmax", *GAINS):
            test, validation = GAINS.get(variant, (0.0, 0.0))
            job = protocol_job("forecast", "toa-paper", dataset, 96, backbone, variant)
            for seed in range(2024, 2024 + seeds):
                error = (0.3 + 0.1 * place) * (1 + 0.001 * (seed - 2024))
                metrics = {"mse": error * (1 - test / 100), "mae": 1.0, "val_mse": error * (1 - validation / 100)}
                more = {} if variant == "softmax" else {"operators": {"contributions": {"operators": rise}}}
                records.append(record_of(job, metrics, seed=seed, **more))
    return records


def decision(*, complete: bool = True, **changes: Any) -> dict[str, Any]:
    """A decision on three sets."""
    comparison = {"percent": -4.0, "interval": [-6.0, -2.0], "p": 0.001, "wins": 9}
    against = {"softmax": comparison | changes, "gated": comparison | {"percent": -1.5}}
    units = [f"set {index}" for index in range(10)]
    finished = units if complete else units[:4]
    names = {"decision": "toa-wide", "units": units, "finished": finished, "complete": complete, "seeds": 3}
    return names | {"variant": "toa-gated", "against": against, "without_operators": 2.5}


def made_up(folder, records: list[Any], found: dict[str, Any] | None = None) -> PaperReport:
    write_lines(folder / "runs.jsonl", records)
    if found:
        (folder / "decision.json").write_text(json.dumps(found))
    return make_report([folder], tables=["forecast-full"])


def test_a_regime_has_the_gain_of_each_variant_and_what_was_not_tested(tmp_path):
    records = runs_of("itransformer", ("ETTm1", "ETTm2", "Weather")) + runs_of("patchtst", ("ETTh1", "ETTh2"), seeds=1)
    report = made_up(tmp_path, records)
    windows, patches = regime_rows(report.entries)
    assert windows.regime.title == "few channels as tokens, many training windows"
    assert windows.preferred == "toa-gated"
    gated = windows.chosen
    assert gated.gain == pytest.approx(3.0)
    assert (gated.better, gated.cells, windows.sets, windows.seeds) == (3, 3, 3, (2, 2))
    assert gated.rises == {"itransformer": pytest.approx(0.1)}
    assert patches.chosen.interval is None
    assert "Solar" in patches.missing
    table = regime_table([windows, patches], None, ())
    assert table[1][3].startswith("**+3.0 % (t interval +")
    assert table[1][4] == "3 sets, 2 seeds"


def test_the_first_sentence_is_about_many_channels_and_few(tmp_path):
    report = made_up(tmp_path, runs_of("itransformer", ("ETTm1", "ETTm2", "Weather")), decision(complete=False))
    (sentence,) = first_sentence(regime_rows(report.entries), report.decision)
    assert sentence.startswith(
        "Many channels as tokens: not complete, 4 of 10 sets. Few channels as tokens: with many "
    )
    assert "TOA-Gated, which validation prefers, gains +3.0 %" in sentence
    lines = summary(report)
    assert lines[2] == f"- {sentence}"
    # no number of an incomplete decision
    (row,) = (line for line in lines if line.startswith("| many channels"))
    assert row.count("not complete: 4 of 10 sets") == 3
    assert "4.0" not in row


def test_a_complete_decision_is_stated_with_its_rule():
    (sentence,) = first_sentence([], decision())
    shown = "TOA-Gated, which validation prefers, gains +4.0 % over softmax on 10 sets"
    beside = "(t interval +2.0 to +6.0, better on 9): operators help, by the rule."
    assert sentence == f"Many channels as tokens: {shown} {beside}"
    row = regime_table([], decision(), ())[1]
    assert row[1:3] == ("", "")
    assert row[3] == "**+4.0 % (t interval +2.0 to +6.0; better on 9 of 10 sets)**"
    assert row[5] == "+2.5 %; against the gate alone +1.5 %"


@pytest.mark.parametrize("missed", [{"percent": -2.9}, {"p": 0.02}, {"wins": 7}])
def test_the_rule_of_many_channels_needs_each_of_its_parts(missed):
    assert operators_help(decision())
    assert not operators_help(decision(**missed))
    assert not operators_help(decision() | {"against": decision()["against"] | {"gated": {"percent": -0.9}}})


def test_a_gain_that_the_operators_do_not_make_is_stated(tmp_path):
    report = made_up(tmp_path, runs_of("duet", ("ETTh1", "ETTh2")))
    (sentence,) = gate_sentence(report.entries)
    assert "on 2 of 2 sets" in sentence
    assert "ETTh1 +3.0 and +0.1 %" in sentence
    assert "TOA-Gated gains more than TOA-ReLU on ETTh1, ETTh2. Models" in sentence
    # two attentions, two sets, one horizon, two seeds
    assert sentence.endswith("have no test errors there: 8 runs are missing.")


def test_a_gain_without_a_gate_is_stated(tmp_path, monkeypatch):
    monkeypatch.setitem(GAINS, "toa-relu", (3.0, 0.5))
    report = made_up(tmp_path, runs_of("duet", ("ETTh1",)))
    (sentence,) = gate_sentence(report.entries)
    assert "TOA-ReLU, which has no gate, gains at least as much on ETTh1. Models" in sentence


def test_operators_that_carry_the_gain_are_not_named(tmp_path):
    report = made_up(tmp_path, runs_of("duet", ("ETTh1", "ETTh2"), rise=0.02))
    assert gate_sentence(report.entries) == []


def test_nothing_measured_gives_no_sentence():
    assert first_sentence([], None) == []
    assert regimes.read_decision([]) is None
