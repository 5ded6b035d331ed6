import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from toa.report.anomaly import anomaly_table, draw_detection, undefined_notes, write_detection
from toa.tasks.anomaly import SCORES
from toa.tasks.checkpoint import save_checkpoint

RECORD = {
    "metrics": {"tslib-pa/f1": 0.25, "tslib-pa/pa_f1": 0.75, "tslib-pa/random_pa_f1": 0.5, "strict/f1": 0.125},
    "detections": {
        "tslib-pa": {"headline": "pa_f1", "undefined": {"range_precision": "no step is flagged"}},
        "strict": {"headline": "f1", "undefined": {"precision": "nothing", "vus_pr": "flat", "recall": "nothing"}},
    },
}


@pytest.fixture
def folder(tmp_path):
    labels = torch.zeros(9000, dtype=torch.bool)
    labels[1000:1400] = True
    score = torch.rand(9000, generator=torch.Generator().manual_seed(0)) + labels
    tensors = {"score": score, "labels": labels, "flags.tslib-pa": score > 1.5, "flags.strict": score > 0.9}
    save_checkpoint(tmp_path / SCORES, tensors, {"thresholds": {"tslib-pa": 1.5, "strict": 0.9}})
    return tmp_path


def test_the_table_marks_headlines_and_what_is_undefined():
    header, pa, strict = anomaly_table(RECORD)
    assert header[:6] == ("rules", "precision", "recall", "F1", "PA-F1", "random PA-F1")
    assert pa[:6] == ("tslib-pa", "-", "-", "0.250", "0.750*", "0.500")
    assert strict[:5] == ("strict", "-", "-", "0.125*", "-")


def test_notes_say_why_a_number_of_the_table_is_missing():
    assert undefined_notes(RECORD) == [
        "strict: precision, recall undefined: nothing.",
        "strict: VUS-PR undefined: flat.",
    ]


def test_the_picture_shows_score_thresholds_and_ranges(folder):
    figure = draw_detection(folder)
    plt.close(figure)
    top, bottom = figure.axes
    score, *thresholds = top.lines
    # thinned, but no peak is lost
    heights = np.asarray(score.get_ydata())
    assert len(heights) <= 4000
    assert heights.max() == pytest.approx(2.0, abs=0.01)
    assert [np.asarray(line.get_ydata())[0] for line in thresholds] == [1.5, 0.9]
    assert [tick.get_text() for tick in bottom.get_yticklabels()] == ["true", "tslib-pa", "strict"]
    assert len(bottom.collections[0].get_paths()) == 1


def test_the_picture_lies_beside_the_record(folder):
    before = plt.get_fignums()
    path = write_detection(folder)
    assert path == folder / "detection.png"
    assert path.stat().st_size > 10_000
    assert plt.get_fignums() == before
