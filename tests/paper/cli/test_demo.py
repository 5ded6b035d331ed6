import re

import pytest

from tests.cli.test_app import call
from tests.paper.demixing.cases import shrink_demixing


@pytest.mark.parametrize("command", ["demo", "demix", "theory", "report", "reproduce"])
def test_every_command_explains_itself(command):
    code, text = call(command, "--help")
    assert code == 0
    assert "Usage" in text
    assert command in text


@pytest.mark.usefixtures("pictures")
def test_demo_begins_with_demixing_beside_softmax_and_ends_with_a_self_contained_page(tmp_path, monkeypatch):
    monkeypatch.delenv("TOA_DATA", raising=False)
    monkeypatch.setattr("toa_paper.demo.SEEDS", (1,))
    shrink_demixing(monkeypatch)
    code, text = call("demo", "--steps", "2", "--device", "cpu", "--out", str(tmp_path))
    assert code == 0, text
    for part in ("TOA-Gated", "TOA-ReLU", "Softmax attention", "linear oracle", "demixing.png", "index.html"):
        assert part in text
    for part in ("seasonal naive", "drift", "theta", "damped trend", "MASE", "The model", "forecast.png"):
        assert part in text
    page = (tmp_path / "index.html").read_text()
    pictures = re.findall('alt="([^"]+)', page)
    assert pictures[:2] == [
        "mixing operators, reconstructions and frequency responses of each model",
        "forecast of rented bicycles beside baselines and the actual values",
    ]
    # what the first part does not show stands beside it
    assert "on real data the gain of operators is small or none" in page
    parts = ["Harmonic demixing", "Forecast of a CSV", "Classification of BasicMotions", "The anomaly of a UCR"]
    parts.append("A wide table with a known operator")
    for number, part in enumerate(parts, 1):
        assert f"{number}. {part}" in text
        assert f"<h2>{number}. {part}" in page
    for part in ("tslib-pa", "strict", "random PA-F1", "A Transformer with one token per step"):
        assert part in page
    # the forecast, the operators, a confusion matrix an attention, a detection; nothing from outside
    assert page.count("<img") == page.count('src="data:image/png;base64,iVBOR') == 6
    assert "://" not in page
    assert "<link" not in page
    assert "<script" not in page
    found = [path.parent.parent.name for path in tmp_path.rglob("record.json")]
    assert sorted(found) == ["anomaly"] * 3 + ["classification"] * 3 + ["demixing"] * 3 + ["operator"] * 2


def test_demix_runs_the_given_attention_and_seed(tmp_path, monkeypatch):
    shrink_demixing(monkeypatch)
    code, text = call(
        "demix", "--attention", "softmax", "--seed", "3", "--steps", "1", "--device", "cpu", "--out", str(tmp_path)
    )
    assert code == 0
    assert "TOA" not in text
    assert len(list(tmp_path.glob("softmax-3-*/record.json"))) == 1


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("demix", "--preset", "papr"), ("unknown preset 'papr'", "demo, paper, toa")),
        (("demix", "--attention", "flash"), ("unknown attention 'flash'", "toa-gated")),
        (("demix", "--steps", "0"), ("steps must be at least 1, got 0",)),
        (("demix", "--device", "tpuu"), ("device must be auto", "'tpuu'")),
        (("demo", "--stepz", "1"), ("No such option", "--stepz")),
    ],
)
def test_wrong_options_print_one_clear_line(words, parts, tmp_path):
    code, text = call(*words, "--out", str(tmp_path))
    assert code == 2
    for part in parts:
        assert part in text
    assert "Traceback" not in text
