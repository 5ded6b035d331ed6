from typing import Any

import matplotlib.pyplot as plt
import pytest

from tests.support import message
from toa.report.classification import draw_confusion, write_confusion


def record(classes: int = 3) -> dict[str, Any]:
    return {
        "task": "classify",
        "name": "patchtst/toa-gated",
        "config": {"dataset": "data/toy_TRAIN.ts", "evaluation": "strict"},
        "classes": [f"class {k}" for k in range(classes)],
        "confusion": [[5 if row == column else row for column in range(classes)] for row in range(classes)],
        "metrics": {"accuracy": 0.5, "balanced_accuracy": 0.4, "macro_f1": 0.3},
    }


def test_a_cell_is_the_share_of_its_row_and_names_its_count():
    figure = draw_confusion(record())
    axis = figure.axes[0]
    shown = axis.images[0].get_array()
    assert shown is not None
    assert shown[0].tolist() == [1.0, 0.0, 0.0]
    assert shown[1].tolist() == pytest.approx([1 / 7, 5 / 7, 1 / 7])
    assert [label.get_text() for label in axis.get_yticklabels()] == ["class 0", "class 1", "class 2"]
    assert {text.get_text() for text in axis.texts} == {"5", "1", "2"}
    assert "patchtst/toa-gated on toy, strict" in axis.get_title()
    plt.close(figure)


def test_many_classes_have_no_numbers_and_the_picture_is_written(tmp_path):
    figure = draw_confusion(record(26))
    assert not figure.axes[0].texts
    plt.close(figure)
    assert write_confusion(record(26), tmp_path / "a" / "confusion.png").read_bytes().startswith(b"\x89PNG")


def test_a_record_of_another_task_is_refused():
    with pytest.raises(ValueError, match=message("record must be of a classification, got task 'forecast'")):
        draw_confusion({"task": "forecast"})
