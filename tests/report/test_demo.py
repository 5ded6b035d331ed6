import pytest
import torch

from toa.experiments.demo import DemoRun
from toa.report.demo import classification_table, detection_table
from toa.report.page import Section, write_sections
from toa.tasks.anomaly import SCORES
from toa.tasks.checkpoint import save_checkpoint


def run_of(folder, attention: str, seed: int = 1, **parts) -> DemoRun:
    return DemoRun(record={"config": {"attention": {"name": attention}}, "seed": seed, **parts}, folder=folder)


def test_accuracy_is_shown_with_its_spread(tmp_path):
    runs = [
        run_of(tmp_path, name, metrics={"accuracy": accuracy, "macro_f1": 0.5})
        for name, accuracy in (("toa-relu", 0.5), ("softmax", 1.0), ("toa-relu", 0.75))
    ]
    assert classification_table(runs) == [
        ("system", "seeds", "accuracy", "lowest to highest", "macro F1"),
        ("TOA-ReLU", "2", "0.625", "0.500 to 0.750", "0.500"),
        ("Softmax attention", "1", "1.000", "1.000 to 1.000", "0.500"),
    ]


def test_detections_are_means_and_a_number_that_one_seed_lacks_is_not_made_up(tmp_path):
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
def test_a_page_escapes_all_text_and_holds_its_pictures(tmp_path, title):
    (tmp_path / "a.png").write_bytes(b"picture")
    section = Section(
        title=title,
        lead="a < b",
        table=[("h&h",), ("x<y",)],
        pictures=[(tmp_path / "a.png", 'say "so"')],
        reading="read > this",
        runs=[("command",), ("toa <x>",)],
    )
    page = write_sections("A & B", [section], tmp_path / "new" / "page.html").read_text()
    for text in ("A &amp; B", "a &lt; b", "h&amp;h", "x&lt;y", "say &quot;so&quot;", "read &gt; this", "toa &lt;x&gt;"):
        assert text in page
    assert 'src="data:image/png;base64,cGljdHVyZQ=="' in page
    assert ("<h2>Part &lt;1&gt;</h2>" in page) == bool(title)
    assert page.count("<h2>") == bool(title)
