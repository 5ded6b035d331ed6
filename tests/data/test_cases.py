import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support import message
from toa.data import StandardScaler
from toa.data.classification import (
    hold_out,
    interpolate_missing,
    pad_cases,
    scale_by_channels,
    standardise_as_peers,
)

CASES = [np.arange(6.0).reshape(3, 2), np.arange(10.0).reshape(5, 2) ** 2]


def test_padding_is_zero_behind_the_mask():
    cases = pad_cases(CASES, [1, 0], 5, masked=True)
    assert cases.series.shape == (2, 5, 2)
    assert cases.mask is not None
    assert cases.mask.sum(1).tolist() == [3, 5]
    assert (cases.series[0, 3:] == 0).all()
    assert torch.equal(cases.series[1], torch.from_numpy(CASES[1]).float())
    assert len(cases) == 2


def test_a_batch_is_what_the_index_names():
    cases = pad_cases(CASES, [1, 0], 5, masked=True)
    batch = cases.batch(torch.tensor([1, 0, 1]))
    assert batch.labels.tolist() == [0, 1, 0]
    assert batch.mask is not None
    assert batch.mask.sum(1).tolist() == [5, 3, 5]
    assert torch.equal(batch.series[0], cases.series[1])
    assert pad_cases(CASES[1:], [0], 5, masked=False).batch(torch.tensor([0])).mask is None


def test_order_of_an_epoch_depends_on_seed_and_epoch_alone():
    cases = pad_cases([np.zeros((2, 1))] * 50, [0] * 50, 2, masked=False)
    assert torch.equal(cases.epoch_order(3, 1), cases.epoch_order(3, 1))
    assert not torch.equal(cases.epoch_order(3, 1), cases.epoch_order(3, 2))
    assert sorted(cases.epoch_order(3, 1).tolist()) == list(range(50))


@given(st.lists(st.integers(0, 4), min_size=2, max_size=60), st.integers(0, 5))
def test_what_is_held_out_follows_the_rule_and_leaves_every_class(labels, seed):
    counts = np.bincount(labels, minlength=5)
    if counts.max() < 2:
        return
    kept, held = hold_out(labels, 0.2, seed)
    assert sorted(kept + held) == list(range(len(labels)))
    of_class = np.bincount(np.asarray(labels)[held], minlength=5)
    for count, out in zip(counts, of_class, strict=True):
        assert out == (0 if count < 2 else max(1, int(0.2 * count + 0.5)))
        assert count == 0 or out < count
    assert hold_out(labels, 0.2, seed) == (kept, held)


def test_another_seed_holds_others_out():
    labels = [0] * 40 + [1] * 40
    assert hold_out(labels, 0.2, 1) != hold_out(labels, 0.2, 2)


def test_nothing_to_hold_out_is_rejected():
    with pytest.raises(ValueError, match=message("a class with two cases", "got 3 cases of 3 classes", "tslib-uea")):
        hold_out([0, 1, 2], 0.2, 0)


def test_gaps_are_closed_by_lines_and_the_nearest_value():
    case = np.array([[np.nan, 1.0], [2.0, np.nan], [np.nan, np.nan], [6.0, 4.0], [np.nan, 5.0]])
    expected = [[2.0, 1.0], [2.0, 2.0], [4.0, 3.0], [6.0, 4.0], [6.0, 5.0]]
    assert interpolate_missing(case, "case 1").tolist() == expected
    assert np.isnan(case[0, 0])


def test_a_channel_without_values_or_with_infinite_ones_is_rejected():
    with pytest.raises(ValueError, match=message("case 7 must have values in every channel, got none in channel 2;")):
        interpolate_missing(np.array([[1.0, np.nan]]), "case 7")
    with pytest.raises(ValueError, match=message("case 7 must be finite, got 1 infinite values")):
        interpolate_missing(np.array([[1.0, np.inf]]), "case 7")


def test_scaler_has_the_statistics_of_its_cases_and_leaves_a_constant_channel():
    cases = [np.array([[1.0, 5.0], [3.0, 5.0]]), np.array([[5.0, 5.0]])]
    scaler = StandardScaler.fit(np.concatenate(cases), allow_constant=True)
    assert scaler.mean.tolist() == [3.0, 5.0]
    assert scaler.std == pytest.approx([np.sqrt(8.0 / 3.0), 1.0])


def test_peers_standardise_a_split_by_its_own_sample_statistics():
    rows = np.concatenate(standardise_as_peers(CASES))
    raw = np.concatenate(CASES)
    assert rows == pytest.approx((raw - raw.mean(0)) / raw.std(0, ddof=1))


def test_the_extra_step_divides_by_the_spread_between_channels():
    case = np.array([[1.0, 2.0, 6.0], [3.0, 2.0, 0.0]])
    centred = case - case.mean(0)
    assert scale_by_channels(case) == pytest.approx(centred / np.sqrt(centred.var(1, keepdims=True) + 1e-5))
