"""Every promise of `properties.toml` is tested, and no other one is made."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.metamorphic.cases import KINDS, PROMISES, problem, shared, try_cases
from tests.metamorphic.promises import ERROR, EXACT, NOT_PROMISED, Fit, Promise, read_promises, refused

SEEDS = st.integers(0, 2**32 - 1)
# an export takes seconds
QUICK = [promise for promise in PROMISES if (promise.name, promise.estimator) != ("ONNX", "forecaster network")]
# a fit of the forecaster takes a fiftieth of a second, others longer
EXAMPLES = {"forecaster": 2}
MANY_EXAMPLES = 20
FEW_EXAMPLES = 3


def name_of(promise: Promise) -> str:
    """The promise in the name of a test."""
    return f"{promise.estimator}: {promise.name}"


@pytest.fixture(scope="module")
def shared_fits() -> dict[str, Fit]:
    """Per kind of estimator a fit that returns the same estimator for the same data."""
    return {kind: shared(fit) for kind, (fit, _) in KINDS.items()}


def check(promise: Promise, examples: int, fit: Fit) -> None:
    @settings(max_examples=examples)
    @given(seed=SEEDS)
    def is_kept(seed: int) -> None:
        assert problem(promise, seed, fit) == ""

    is_kept()


@pytest.mark.parametrize("promise", QUICK, ids=name_of)
def test_a_promise_is_kept(promise, shared_fits):
    check(promise, EXAMPLES.get(promise.estimator, 1), shared_fits[promise.estimator])


@pytest.mark.slow
@pytest.mark.parametrize("promise", PROMISES, ids=name_of)
def test_a_promise_is_kept_by_many_tables(promise):
    check(promise, MANY_EXAMPLES if promise in QUICK else FEW_EXAMPLES, KINDS[promise.estimator][0])


def test_every_property_of_every_estimator_has_a_level_and_no_other_has():
    tested = {(name, kind) for kind, (_, properties) in KINDS.items() for name in properties}
    listed = [(promise.name, promise.estimator) for promise in read_promises()]
    assert sorted(listed) == sorted(tested)


def test_every_difference_has_a_reason():
    for promise in read_promises():
        if isinstance(promise.level, str):
            assert promise.level in (EXACT, ERROR, NOT_PROMISED)
        else:
            assert 0 < promise.level < 1
        assert bool(promise.why) == (promise.level not in (EXACT, ERROR)), promise


def test_answers_that_differ_break_a_promise():
    exact = Promise(name="scale", estimator="detector", level=EXACT, why="")
    about = replace(exact, level=0.01)
    ones = np.ones((2, 3))
    assert exact.broken_by([(ones, ones)]) == ""
    assert exact.broken_by([(ones, ones + 1e-15)])
    assert about.broken_by([(ones, ones + 0.009)]) == ""
    assert "differ by 0.02" in about.broken_by([(ones, ones), (ones, ones + 0.02)])
    assert "differ by nan" in about.broken_by([(ones, ones * np.nan)])
    assert "shape (2, 3) instead of (3,)" in about.broken_by([(ones[0], ones)])
    assert about.broken_by([]) == "nothing was compared"
    assert exact.broken_by([refused(lambda: 1)])
    with pytest.raises(ValueError, match="not promised"):
        replace(exact, level=NOT_PROMISED).broken_by([(ones, ones)])


def test_the_campaign_names_the_case_that_breaks_a_promise(monkeypatch, tmp_path):
    from tests.metamorphic import cases

    assert try_cases("detector", tmp_path, 0, 0, seed=0).counts == {}
    names = {promise.name for promise in PROMISES if promise.estimator == "detector"}
    monkeypatch.setattr(cases, "problem", lambda promise, *_: "no" if promise.name == "scale" else "")
    outcome = try_cases("detector", tmp_path, 5, 2, seed=1)
    assert outcome.failures == ["detector, scale, 5: no", "detector, scale, 6: no"]
    assert outcome.counts == {"broken": 2, "kept": 2 * (len(names) - 1)}
