import struct

import pytest
import torch

from toa.report.figures import save_figure
from toa.report.html_page import Section, write_sections
from toa.training.anomaly import SCORES
from toa.training.checkpoint import save_checkpoint
from toa_paper.demixing import DemixingResult, HarmonicDemixing, VariantView
from toa_paper.demixing.figure import draw_demixing
from toa_paper.demo import DemoRun
from toa_paper.known_operator import Comparison
from toa_paper.report.demo import (
    classification_table,
    demixing_section,
    demixing_table,
    detection_table,
    operator_table,
)


def run_of(folder, attention: str, seed: int = 1, **parts) -> DemoRun:
    return DemoRun(record={"config": {"attention": {"name": attention}}, "seed": seed, **parts}, folder=folder)


def test_accuracy_is_shown_with_minimum_and_maximum(tmp_path):
    runs = [
        run_of(tmp_path, name, metrics={"accuracy": accuracy, "macro_f1": 0.5})
        for name, accuracy in (("toa-relu", 0.5), ("softmax", 1.0), ("toa-relu", 0.75))
    ]
    assert classification_table(runs) == [
        ("system", "seeds", "accuracy", "lowest to highest", "macro F1"),
        ("TOA-ReLU", "2", "0.625", "0.500 to 0.750", "0.500"),
        ("Softmax attention", "1", "1.000", "1.000 to 1.000", "0.500"),
    ]


def test_detections_are_means_over_seeds_and_undefined_if_one_is(tmp_path):
    labels = torch.arange(400) == 200
    runs = []
    for seed, (highest, metrics) in enumerate(
        [(100, {"tslib-pa/pa_f1": 0.5, "strict/f1": 0.25, "strict/vus_pr": 0.5}), (301, {"tslib-pa/pa_f1": 1.0})]
    ):
        folder = tmp_path / str(seed)
        save_checkpoint(folder / SCORES, {"labels": labels, "score": 1.0 * (torch.arange(400) == highest)}, {})
        runs.append(run_of(folder, "toa-gated", seed, metrics=metrics))
    header, pa, strict = detection_table(runs)
    assert header == ("system", "rules", "F1", "PA-F1", "random PA-F1", "VUS-PR", "peak")
    assert pa == ("TOA-Gated", "tslib-pa", "-", "0.750*", "-", "-", "1 of 2, 0 inside")
    assert strict == ("TOA-Gated", "strict", "-*", "-", "-", "-", "1 of 2, 0 inside")


@pytest.mark.parametrize("title", ["", "Part <1>"])
def test_a_page_escapes_all_text_and_embeds_its_pictures(tmp_path, title):
    (tmp_path / "a.png").write_bytes(b"picture")
    section = Section(
        title=title,
        lead="a < b",
        table=[("h&h",), ("x<y",)],
        pictures=[(tmp_path / "a.png", 'say "so"')],
        reading="read > this",
        details=[("command",), ("toa <x>",)],
    )
    page = write_sections("A & B", [section], tmp_path / "new" / "page.html").read_text()
    for text in ("A &amp; B", "a &lt; b", "h&amp;h", "x&lt;y", "say &quot;so&quot;", "read &gt; this", "toa &lt;x&gt;"):
        assert text in page
    assert 'src="data:image/png;base64,cGljdHVyZQ=="' in page
    assert ("<h2>Part &lt;1&gt;</h2>" in page) == bool(title)
    assert page.count("<h2>") == bool(title)


@pytest.fixture
def result():
    names = {"toa-gated-no-sor": 0.02, "toa-relu-no-sor": 0.03, "softmax": 0.1}
    more = {"seed": 1, "wall_s": 2.0, "device": "cpu", "command": "toa <demo>"}
    signal = torch.linspace(-1, 1, 84)
    operator = signal.outer(signal)
    return DemixingResult(
        signals=HarmonicDemixing().scaled(84),
        records=[{"name": name, "metrics": {"mse": mse}, **more} for name, mse in names.items()],
        reference={"oracle": 0.01, "filter": 0.05},
        noisy=signal,
        clean=signal,
        oracle_response=torch.ones(43),
        views=[
            VariantView(name=name, operator=operator, place=(1, 2), estimate=signal, response=torch.ones(43), mse=mse)
            for name, mse in names.items()
        ],
    )


def test_the_table_has_models_oracle_and_published_numbers(result):
    header, *rows = demixing_table(result, published=True)
    assert header == ("system", "seeds", "MSE", "x oracle", "published")
    cells = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    assert cells["TOA-Gated, no SOR"]["published"] == "-"
    assert cells["Softmax attention"]["published"] == "0.0972"
    assert cells["linear oracle that knows the warp"]["x oracle"] == "1.00"
    assert (cells["TOA-ReLU, no SOR"]["MSE"], cells["TOA-ReLU, no SOR"]["x oracle"]) == ("0.03000", "3.00")


def test_other_sizes_have_no_published_numbers(result):
    rows = demixing_table(result, published=False)
    assert rows[0] == ("system", "seeds", "MSE", "x oracle")
    assert {len(row) for row in rows} == {4}


def test_the_page_contains_a_figure_of_three_by_three_and_escaped_text(result, tmp_path):
    figure = save_figure(draw_demixing(result), tmp_path / "new" / "figure.png")
    content = figure.read_bytes()
    assert content.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", content[16:24])
    assert width > 900
    assert height > 700
    page = write_sections("A & B", [demixing_section(result, figure)], tmp_path / "index.html").read_text()
    assert "A &amp; B" in page
    assert "&lt;demo&gt;" in page
    assert 'src="data:image/png;base64,iVBOR' in page
    assert "http" not in page
    assert page.count("<tr>") == 1 + 5 + 1 + 3


def test_systems_on_the_known_operator_are_sorted_by_error():
    errors = {"own lags": 1.0, "known operator": 0.6, "toa-gated": 0.7, "all channels": 0.8}
    assert operator_table(Comparison(errors=errors)) == [
        ("system", "MSE", "gap closed"),
        ("known operator", "0.6000", "1.00"),
        ("TOA-Gated", "0.7000", "0.75"),
        ("all channels", "0.8000", "0.50"),
        ("own lags", "1.0000", "0.00"),
    ]
