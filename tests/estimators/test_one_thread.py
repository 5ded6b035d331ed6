"""Small work has one thread: threads that wait for each other take longer than the work."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.estimators.signals import quick, wide
from toa._threads import one_thread_if
from toa.estimators import Forecaster, network


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def fitted() -> Forecaster:
    return quick(epochs=1).fit(wide())


def threads_of_a_forecast(forecaster: Forecaster) -> list[int]:
    """Threads that PyTorch has while the network forecasts."""
    threads: list[int] = []

    def note(*inputs: Any) -> None:
        threads.append(torch.get_num_threads())

    hook = forecaster.model_.register_forward_pre_hook(note)
    forecaster.predict()
    hook.remove()
    return threads


def test_the_forecast_of_a_window_has_one_thread_and_leaves_the_others(two_threads, fitted) -> None:
    assert threads_of_a_forecast(fitted) == [1]
    assert torch.get_num_threads() == 2


def test_a_forecast_of_much_work_has_all_threads(two_threads, fitted, monkeypatch) -> None:
    monkeypatch.setattr(network, "_ONE_THREAD", 0)
    assert threads_of_a_forecast(fitted) == [2]


def test_an_error_leaves_the_threads_as_they_were(two_threads) -> None:
    with pytest.raises(ValueError, match="inside"), one_thread_if(True):
        raise ValueError("inside")
    assert torch.get_num_threads() == 2
