import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import message
from toa.data import DATASETS, SPLIT_RULES, Segment, split_rows

ETT_ROWS = {"ett-hour": 17420, "ett-minute": 69680}


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("ETTh1", (8449, 2785, 2785)),
        ("ETTh2", (8449, 2785, 2785)),
        ("ETTm1", (34369, 11425, 11425)),
        ("ETTm2", (34369, 11425, 11425)),
        ("PEMS03", (15533, 5051, 5051)),
        ("Weather", (36696, 5175, 10444)),
        ("Exchange", (5120, 665, 1422)),
        ("ECL", (18221, 2537, 5165)),
        ("Traffic", (12089, 1661, 3413)),
        ("Solar", (36601, 5161, 10417)),
    ],
)
def test_window_counts_at_96_to_96_are_the_published_loaders(name, counts):
    spec = DATASETS[name]
    split = split_rows(spec.split, spec.rows, lookback=96, horizon=96)
    assert tuple(segment.windows(96, 96) for segment in split) == counts


def test_ett_rules_leave_the_last_months_unused():
    assert split_rows("ett-hour", 17420, lookback=96, horizon=1) == ((0, 8640), (8544, 11520), (11424, 14400))
    assert split_rows("ett-minute", 69680, lookback=96, horizon=1) == ((0, 34560), (34464, 46080), (45984, 57600))


def test_ratio_gives_the_remaining_rows_to_validation():
    # floor(0.7 * 966) = 676, floor(0.2 * 966) = 193
    assert split_rows("ratio", 966, lookback=36, horizon=24) == ((0, 676), (640, 773), (737, 966))


def test_solar_may_leave_rows_between_validation_and_test():
    assert split_rows("solar", 966, lookback=36, horizon=24) == ((0, 676), (640, 772), (737, 966))


def test_pems_windows_do_not_look_over_the_border():
    assert split_rows("pems", 1000, lookback=96, horizon=12) == ((0, 600), (600, 800), (800, 1000))


def test_fractions_are_cut_as_ratio_is():
    ratio = split_rows("ratio", 977, lookback=10, horizon=5)
    assert split_rows((0.7, 0.1, 0.2), 977, lookback=10, horizon=5) == ratio
    assert split_rows((0.6, 0.2, 0.2), 977, lookback=10, horizon=5) == ((0, 586), (576, 782), (772, 977))


@given(
    rule=st.sampled_from(SPLIT_RULES),
    rows=st.integers(1, 80_000),
    lookback=st.integers(1, 800),
    horizon=st.integers(1, 800),
)
def test_segments_are_ordered_and_their_targets_disjoint(rule, rows, lookback, horizon):
    rows = ETT_ROWS.get(rule, rows)
    try:
        split = split_rows(rule, rows, lookback=lookback, horizon=horizon)
    except ValueError as error:
        assert "must fit every split" in str(error)  # noqa: PT017
        return
    first_targets = [segment.start + lookback for segment in split]
    stops = [segment.stop for segment in split]
    assert split.train.start == 0
    assert all(segment.start >= 0 for segment in split)
    assert stops[-1] <= rows
    # the first target of a split comes no earlier than the last row of the split before
    assert stops[0] <= first_targets[1] < stops[1] <= first_targets[2] < stops[2]


@given(rows=st.integers(1, 400), lookback=st.integers(1, 60), horizon=st.integers(1, 60))
def test_windows_are_counted_as_they_can_be_listed(rows, lookback, horizon):
    segment = Segment(7, 7 + rows)
    starts = [s for s in range(segment.start, segment.stop) if s + lookback + horizon <= segment.stop]
    assert segment.windows(lookback, horizon) == len(starts)


@given(rows=st.integers(1, 3000), lookback=st.integers(1, 300), horizon=st.integers(1, 300))
def test_the_longest_horizon_a_refusal_names_does_fit(rows, lookback, horizon):
    try:
        split_rows("ratio", rows, lookback=lookback, horizon=horizon)
    except ValueError as error:
        words = str(error)
        if "longest horizon" not in words:
            assert "no horizon fits" in words
            with pytest.raises(ValueError, match="no horizon fits"):
                split_rows("ratio", rows, lookback=lookback, horizon=1)
            return
        longest = int(words.rstrip(".").split()[-1])
        split_rows("ratio", rows, lookback=lookback, horizon=longest)
        with pytest.raises(ValueError, match=f"is {longest}\\.$"):
            split_rows("ratio", rows, lookback=lookback, horizon=longest + 1)


@pytest.mark.parametrize(
    ("rule", "rows", "sizes", "parts"),
    [
        (
            "ratio",
            500,
            (96, 60),
            ("needing 156 rows", "got 146 in val", "500 rows of the series", "this lookback is 50"),
        ),
        ("ratio", 100, (90, 1), ("got 70 in train", "no horizon fits", "now 90")),
        ("ett-hour", 5000, (96, 96), ("split 'ett-hour' must have at least 14400 rows", "got 5000", "split='ratio'")),
        ("ratios", 500, (9, 9), ("unknown split 'ratios'", "ett-hour, ett-minute, ratio, solar, pems")),
        ((0.7, 0.2, 0.2), 500, (9, 9), ("sum to 1", "got (0.7, 0.2, 0.2)", "use (0.7, 0.1, 0.2)")),
        ((1.0, 0.0, 0.0), 500, (9, 9), ("in (0, 1)",)),
        ("ratio", 500, (0, 9), ("lookback must be at least 1, got 0",)),
        ("ratio", 500, (9, 0), ("horizon must be at least 1, got 0",)),
    ],
)
def test_invalid_splits_raise(rule, rows, sizes, parts):
    with pytest.raises(ValueError, match=message(*parts)):
        split_rows(rule, rows, lookback=sizes[0], horizon=sizes[1])
