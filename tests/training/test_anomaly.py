import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.support import message
from toa.data import SeriesWindows
from toa.training.anomaly import AnomalyDetection, evaluate_reconstruction, score_series
from toa.training.detection import RULES, SeriesScores, detect
from toa.training.step import ShuffledBatches


class Flat(nn.Module):
    """Reconstructs every window as its own mean, so that a step's score depends on the window it is seen in."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1, keepdim=True).expand_as(x)


SERIES = torch.randn(23, 2, generator=torch.Generator().manual_seed(0))


def naive(series: Tensor, length: int, starts: list[int]) -> tuple[list[float], np.ndarray]:
    """Scores window after window, and averaged over windows for each step."""
    flat: list[float] = []
    seen: list[list[float]] = [[] for _ in range(len(series))]
    for start in starts:
        window = series[start : start + length]
        errors = (window - window.mean(0)).square().mean(1).tolist()
        flat += errors
        for place, error in enumerate(errors):
            seen[start + place].append(error)
    return flat, np.array([np.mean(values) for values in seen])


@pytest.mark.parametrize(("stride", "starts"), [(1, [*range(18)]), (3, [0, 3, 6, 9, 12, 15, 17]), (6, [0, 6, 12, 17])])
def test_each_step_is_scored_once_by_the_mean_over_its_windows(stride, starts):
    scores = score_series(Flat(), SeriesWindows(SERIES, 6, stride=stride, whole=True))
    flat, steps = naive(SERIES, 6, starts)
    np.testing.assert_allclose(scores.steps, steps, rtol=1e-6)
    # the library knows no window beyond the stride
    regular = len(range(0, 18, stride)) * 6
    np.testing.assert_allclose(scores.flat, flat[:regular], rtol=1e-6)
    labels = np.arange(23) % 4 == 0
    expected = [labels[s + i] for s in range(0, 18, stride) for i in range(6)]
    assert scores.flatten(labels).tolist() == expected


def test_scoring_in_batches_changes_nothing():
    windows = SeriesWindows(SERIES, 6, whole=True)
    whole = score_series(Flat(), windows)
    parts = score_series(Flat(), windows, batch_size=4)
    np.testing.assert_allclose(parts.flat, whole.flat)
    np.testing.assert_allclose(parts.steps, whole.steps)


def test_steps_outside_of_all_windows_raise_an_error():
    with pytest.raises(ValueError, match=message("windows must cover every step", "whole=True")):
        score_series(Flat(), SeriesWindows(SERIES, 6, stride=6))


def test_losses_are_mean_squared_errors_and_evaluation_keeps_the_mode():
    model = Flat()
    windows = SeriesWindows(SERIES, 6)
    x = windows.batch(torch.arange(len(windows)))
    expected = (x - x.mean(1, keepdim=True)).square().mean()
    loss = AnomalyDetection().loss(None, None)  # type: ignore[arg-type]
    assert loss(model, x) == pytest.approx(expected.item())
    assert evaluate_reconstruction(model, windows) == pytest.approx(expected.item())
    assert model.training
    assert evaluate_reconstruction(model.eval(), windows) > 0.0
    assert not model.training


def test_batches_hold_every_window_once_per_epoch():
    windows = SeriesWindows(SERIES[:, :1], 6)
    batches = ShuffledBatches(windows, 5, seed=1)
    assert batches.steps_per_epoch == 4
    first = [batches.at(0, step)[0] for step in range(4)]
    assert [len(batch) for batch in first] == [5, 5, 5, 3]
    starts = sorted(SERIES[:, 0].tolist().index(value) for value in torch.cat(first)[:, 0, 0].tolist())
    assert starts == [*range(18)]
    assert not torch.equal(batches.at(1, 0)[0], first[0])


def scores(steps: list[float], length: int = 2) -> SeriesScores:
    """Scores of a series whose windows, at stride 1, all give a step the same score."""
    values = np.array(steps)
    starts = np.arange(len(values) - length + 1)
    flat = np.lib.stride_tricks.sliding_window_view(values, length).ravel()
    return SeriesScores(flat=flat, steps=values, starts=starts, length=length)


TRAIN = scores([1.0, 2.0, 3.0, 4.0, 5.0])
TEST = scores([1.0, 9.0, 2.0, 8.0, 3.0, 1.0])
LABELS = np.array([False, True, True, False, False, False])


def test_the_rules_are_those_of_the_library_and_strict_ones():
    pa, strict = RULES
    assert (pa.name, pa.threshold_source, pa.overlaps, pa.point_adjust) == (
        "tslib-pa",
        "train and test",
        "flattened",
        True,
    )
    assert (strict.name, strict.threshold_source, strict.overlaps, strict.point_adjust) == (
        "strict",
        "train",
        "averaged",
        False,
    )
    assert (pa.headline, strict.headline) == ("pa_f1", "f1")


def test_strict_rules_use_the_train_threshold_and_count_each_step_once():
    _, strict = detect(TRAIN, TEST, LABELS, anomaly_ratio=50.0)
    assert strict.threshold == 3.0
    assert strict.flags.tolist() == [False, True, False, True, False, False]
    assert strict.flag_rate == pytest.approx(2 / 6)
    assert (strict.metrics["precision"], strict.metrics["recall"]) == (0.5, 0.5)
    assert strict.metrics["pa_recall"] == 1.0


def test_library_rules_pool_both_series_and_count_windows():
    pa, _ = detect(TRAIN, TEST, LABELS, anomaly_ratio=20.0)
    # train steps 1 2 | 2 3 | 3 4 | 4 5, test steps 1 9 | 9 2 | 2 8 | 8 3 | 3 1
    pooled = [1, 2, 2, 3, 3, 4, 4, 5, 1, 9, 9, 2, 2, 8, 8, 3, 3, 1]
    assert pa.threshold == pytest.approx(np.percentile(pooled, 80))
    assert pa.flag_rate == pytest.approx(4 / 10)
    # labels 01 | 11 | 10 | 00 | 00 flattened: one run of four and no break between windows; 9 9 of it are flagged
    assert pa.metrics["recall"] == pytest.approx(2 / 4)
    assert pa.metrics["pa_recall"] == 1.0
    assert pa.metrics["pa_precision"] == pytest.approx(4 / 6)
    # ranges have no windows: each step once
    assert pa.flags.tolist() == [False, True, False, True, False, False]


def test_undefined_metrics_have_a_reason():
    for labels, why in ((np.zeros(6, bool), "no step is labelled"), (np.ones(6, bool), "every step is labelled")):
        for found in detect(TRAIN, TEST, labels, anomaly_ratio=50.0):
            assert set(found.undefined) == set(found.metrics)
            assert all(why in reason for reason in found.undefined.values())
    _, strict = detect(scores([99.0] * 5), TEST, LABELS, anomaly_ratio=1.0)
    assert strict.undefined["precision"] == "no step is flagged"
    assert strict.metrics["f1"] == 0.0
    constant = detect(TRAIN, scores([1.0] * 6), LABELS, anomaly_ratio=50.0)[1]
    assert constant.undefined["vus_pr"] == "the score never changes"
