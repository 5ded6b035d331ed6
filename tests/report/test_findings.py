"""The summary in words follows from the records: with other records it says something else."""

import pytest

from tests.report.paper_cases import hide_data, record_of, write_lines
from toa.experiments.paper.tables import protocol_job
from toa.report.findings import found_parts
from toa.report.paper import PaperReport, make_report

SETS = ("ETTh1", "ETTh2", "ETTm1", "ETTm2", "Weather", "Exchange")


def made_up(folder, gains: tuple[float, ...], *, protocol: str = "toa", seeds: int = 2) -> PaperReport:
    """iTransformer with softmax, and with a TOA-Softmax that is better by a percentage on each set."""
    records = []
    for place, (dataset, gain) in enumerate(zip(SETS, gains, strict=False)):
        for horizon in (96, 720):
            for variant, factor in (("softmax", 1.0), ("toa-softmax", 1.0 - gain / 100)):
                job = protocol_job("forecast", protocol, dataset, horizon, "itransformer", variant)
                for seed in range(2024, 2024 + seeds):
                    mse = (0.3 + 0.1 * place + 1e-4 * horizon + 1e-3 * (seed - 2024)) * factor
                    more = {"operators": {"contributions": {"operators": 0.07}}} if variant != "softmax" else {}
                    records.append(record_of(job, {"mse": mse, "mae": mse, "val_mse": mse}, seed=seed, **more))
    trials = [
        {"trial": trial, "backbone": "itransformer", "horizon": 96, "dataset": dataset}
        for trial in ("softmax", "softmax model.dropout=0.0", "toa-softmax", "toa-relu a=1")
        for dataset in ("ETTh1", "Weather")
    ]
    write_lines(folder / "runs.jsonl", records)
    write_lines(folder / "trials.jsonl", trials)
    return make_report([folder], tables=["forecast-full"])


@pytest.fixture(autouse=True)
def no_data(monkeypatch, tmp_path):
    hide_data(monkeypatch, tmp_path)


def test_a_gain_on_every_set_is_said_first_with_its_size(tmp_path):
    parts = found_parts(made_up(tmp_path, (1.0, 2.0, 3.0, 2.0, 6.0, 4.0)))
    assert next(iter(parts)) == "What was found"
    assert parts["What was found"] == ["TOA helps: Forecasting, itransformer under `toa` (+3.0 %)."]
    text, budget = parts["Comparisons"]
    assert "**Forecasting, itransformer under `toa`: helps.** TOA-Softmax gains +3.0 % (95 % interval +" in text
    assert "over softmax on 6 data sets, p = 0.031; published on the same data: " in text
    assert "Weather (+6.0)" in text.split("worse with every seed")[0]
    assert "worse with every seed: none" in text
    assert text.endswith("With M = 0: the validation error rises by 7.0 %.")
    assert budget.endswith("by validation error alone: itransformer, forecast: softmax 2, TOA 2.")


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ((1.0, -1.0, 2.0, -2.0, 0.5, -0.5), "No gain could be shown"),
        ((-1.0, -2.0, -3.0, -2.0, -6.0, -4.0), "TOA hurts"),
        ((0.1, 3.0, 3.0, 2.0, 6.0, -0.5), "TOA may help"),
        ((1.0, 2.0, 3.0), "Too few data sets"),
    ],
)
def test_other_records_give_another_sentence(tmp_path, gains, verdict):
    first, *others = found_parts(made_up(tmp_path, gains))["What was found"]
    assert first == "TOA helps: nowhere."
    assert [line.startswith(verdict) for line in others] == [True]


def test_a_claim_of_the_paper_is_judged_by_its_own_settings(tmp_path):
    def claim(name: str, protocol: str, gains: tuple[float, ...]) -> str:
        return found_parts(made_up(tmp_path / name, gains, protocol=protocol))["Claims of the paper"][0]

    words = "TOA improves forecasting under every backbone: "
    assert claim("a", "toa-paper", (1.0, 2.0, 3.0, 2.0, 6.0, 4.0)) == f"{words}holds (helps: 1)."
    assert claim("b", "toa-paper", (-1.0, 1.0) * 3) == f"{words}not shown here (no gain shown: 1)."
    assert claim("c", "toa-paper", (1.0, 1.0)) == f"{words}not decided yet (too few data sets: 1)."
    assert claim("d", "toa", (1.0, 2.0, 3.0, 2.0, 6.0, 4.0)) == f"{words}not measured."


def test_one_seed_is_not_called_every_seed(tmp_path):
    parts = found_parts(made_up(tmp_path, (1.0, 2.0, 3.0, 2.0, 6.0, 4.0), seeds=1))
    assert "Better with every seed: none; worse with every seed: none; one seed: " in parts["Comparisons"][0]
