import numpy as np
import pandas as pd
import pytest

from tests.campaign import small_tables
from toa._checks import ArgumentError, check_count


@pytest.mark.parametrize("name", small_tables.ATTEMPTS)
def test_no_small_table_ends_in_an_error_of_another_library(name, tmp_path):
    outcome = small_tables.try_tables(name, tmp_path, seed=1, numbers=range(6))
    assert outcome.failures == []
    assert sum(outcome.counts.values()) == 6


def raise_own() -> None:
    check_count("rows", 0, 1)


def raise_elsewhere() -> None:
    raise ArgumentError("rows", "be at least 1", 0)


def raise_numpy() -> None:
    np.zeros((2, 3)).reshape(5)


@pytest.mark.parametrize(("work", "clear"), [(raise_own, True), (raise_elsewhere, False), (raise_numpy, False)])
def test_an_error_is_clear_if_the_library_raises_it(work, clear):
    with pytest.raises(ValueError, match=r"rows must be|cannot reshape") as raised:
        work()
    assert small_tables.is_clear(raised.value) == clear


def test_an_answer_that_changes_by_saving_is_a_failure(tmp_path, monkeypatch):
    def change(random, table, path):
        small_tables._check_equal(pd.DataFrame({"a": [0.1]}), pd.DataFrame({"a": [np.nextafter(0.1, 1.0)]}))

    monkeypatch.setitem(small_tables.ATTEMPTS, "forecaster", change)
    assert len(small_tables.try_tables("forecaster", tmp_path, seed=0, numbers=range(3)).failures) == 3
