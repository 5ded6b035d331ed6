from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch

from toa.report import figures
from toa.report.figures import (
    draw_alarms,
    draw_confusion,
    draw_detection,
    draw_forecast,
    write_confusion,
    write_detection,
)
from toa.training.anomaly import SCORES
from toa.training.checkpoint import save_checkpoint


@pytest.fixture
def folder(tmp_path):
    labels = torch.zeros(9000, dtype=torch.bool)
    labels[1000:1400] = True
    score = torch.rand(9000, generator=torch.Generator().manual_seed(0)) + labels
    tensors = {"score": score, "labels": labels, "flags.tslib-pa": score > 1.5, "flags.strict": score > 0.9}
    save_checkpoint(tmp_path / SCORES, tensors, {"thresholds": {"tslib-pa": 1.5, "strict": 0.9}})
    return tmp_path


def test_the_detection_figure_shows_score_thresholds_and_ranges(folder):
    figure = draw_detection(folder)
    plt.close(figure)
    top, bottom = figure.axes
    score, *thresholds = top.lines
    # fewer points, but no peak is lost
    heights = np.asarray(score.get_ydata())
    assert len(heights) <= 4000
    assert heights.max() == pytest.approx(2.0, abs=0.01)
    assert [np.asarray(line.get_ydata())[0] for line in thresholds] == [1.5, 0.9]
    assert [tick.get_text() for tick in bottom.get_yticklabels()] == ["true", "tslib-pa", "strict"]
    assert len(bottom.collections[0].get_paths()) == 1


def test_the_detection_figure_is_written_beside_the_record(folder):
    before = plt.get_fignums()
    path = write_detection(folder)
    assert path == folder / "detection.png"
    assert path.stat().st_size > 10_000
    assert plt.get_fignums() == before


def test_the_figure_of_alarms_shows_channels_with_dates_and_names_the_events():
    rows = 10_000
    when = pd.date_range("2024-01-01", periods=rows, freq="min")
    frame = pd.DataFrame({"when": when, "flow": np.sin(np.arange(rows)), "heat": 1.0, "level": 0.0, "speed": 2.0})
    frame.loc[7000, "level"] = 30.0
    event = np.zeros(rows, dtype=int)
    event[7000:7003] = 1
    found = pd.DataFrame({"when": when, "score": 1.0 + event, "anomaly": event, "event": event, "why": ""})
    events = pd.DataFrame({"event": [1], "channel": ["level"], "why": ["level 90 %, flow 10 %"]})
    columns = ("flow", "heat", "level", "speed")
    labels = event.astype(bool)
    options: Any = {"thresholds": lambda score: np.linspace(1.2, 1.5, len(score))}
    figure, series = draw_alarms(frame, found, events, columns, time="when", labels=labels, title="x", **options)
    figure.canvas.draw()
    plt.close(figure)
    assert series == 1
    # the threshold of each row, and the scores
    threshold, score = figure.axes[-1].lines
    assert (np.min(threshold.get_ydata()), np.max(threshold.get_ydata())) == (1.2, 1.5)
    assert np.max(score.get_ydata()) == 2.0
    # the channel of the event comes first; a fourth one is left out for lack of space
    assert [axis.get_title("left").split(",")[0] for axis in figure.axes] == ["level", "flow", "heat", "score"]
    assert [text.get_text() for text in figure.axes[0].texts] == ["1: level 90 %, flow 10 %"]
    line = figure.axes[0].lines[0]
    assert np.max(line.get_ydata()) == 30.0
    assert len(np.asarray(line.get_xdata())) <= 4000
    # an event and a known anomaly in every panel
    assert all(len(axis.patches) == 2 for axis in figure.axes)
    assert all("Jan" in axis.xaxis.get_major_formatter().get_offset() for axis in figure.axes)
    by_id: Any = {"id": "unit", **options}
    several = draw_alarms(frame.assign(unit=1), found.assign(unit=1), events.assign(unit=1), columns, **by_id)[0]
    plt.close(several)
    assert several.axes[0].get_title("left") == "1: level"


def test_an_alarm_in_the_last_row_is_seen():
    frame = pd.DataFrame({"flow": np.arange(10.0)})
    event = np.array([0] * 9 + [1])
    found = pd.DataFrame({"score": 1.0 + event, "anomaly": event, "event": event, "why": ""})
    events = pd.DataFrame({"event": [1], "channel": ["flow"], "why": ["flow"]})
    figure, _ = draw_alarms(frame, found, events, ("flow",), thresholds=lambda score: np.full(len(score), 1.5))
    plt.close(figure)
    (patch,) = figure.axes[0].patches
    assert patch.get_extents().width > 5


def test_a_column_whose_name_begins_like_a_quantile_is_none():
    names = ("sales", "sales_qty", "sales_q1")
    past = pd.DataFrame({name: np.arange(30.0) for name in names})
    ahead = past[:3].assign(**{"sales_q0.1": 1.0, "sales_q1e-05": 2.0, "sales_qty_q0.1": 3.0, "sales_qty_lower": 4.0})
    figure, _ = draw_forecast(past, ahead, names)
    plt.close(figure)
    dotted = [
        [np.asarray(line.get_ydata())[0] for line in axis.lines if line.get_linestyle() == ":"]
        for axis in figure.axes[:3]
    ]
    assert dotted == [[1.0, 2.0], [3.0], []]


def confusion_record(classes: int = 3) -> dict[str, Any]:
    return {
        "task": "classify",
        "name": "patchtst/toa-gated",
        "config": {"dataset": "data/toy_TRAIN.ts", "evaluation": "strict"},
        "classes": [f"class {k}" for k in range(classes)],
        "confusion": [[5 if row == column else row for column in range(classes)] for row in range(classes)],
        "metrics": {"accuracy": 0.5, "balanced_accuracy": 0.4, "macro_f1": 0.3},
    }


def test_a_cell_shows_its_count_and_the_share_of_its_row():
    counts = np.array(confusion_record()["confusion"])
    figure = draw_confusion(counts, ["a", "b", "c"], "title")
    axis = figure.axes[0]
    shown = axis.images[0].get_array()
    assert shown is not None
    assert shown[0].tolist() == [1.0, 0.0, 0.0]
    assert shown[1].tolist() == pytest.approx([1 / 7, 5 / 7, 1 / 7])
    assert [label.get_text() for label in axis.get_yticklabels()] == ["a", "b", "c"]
    assert {text.get_text() for text in axis.texts} == {"5", "1", "2"}
    plt.close(figure)


def test_a_confusion_matrix_of_many_classes_is_written_without_counts(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(figures, "save_figure", lambda figure, path: drawn.append(figure))
    write_confusion(confusion_record(26), tmp_path / "a.png")
    axis = drawn[0].axes[0]
    plt.close(drawn[0])
    assert not axis.texts
    assert "patchtst/toa-gated on toy, strict" in axis.get_title()
