"""Progress is shown where a person looks: in a terminal or a notebook, in no file, pipe or test."""

import io
import sys

import pytest
from rich.console import Console

from tests.estimators.signals import quick, wide
from tests.estimators.stages import only
from toa._console import show_bars, show_epochs, show_steps, shows_progress
from toa.estimators import AnomalyDetector, Classifier, Forecaster


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def shown(monkeypatch) -> io.StringIO:
    """What a console shows."""
    output = io.StringIO()
    console = Console(file=output, width=200)
    monkeypatch.setattr("toa._console.make_console", lambda: console)
    return output


def test_progress_is_shown_in_a_terminal_but_in_no_file_pipe_or_test(monkeypatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert not shows_progress(None)
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    assert shows_progress(None)
    assert not shows_progress(False)
    monkeypatch.setenv("RANK", "1")
    assert not shows_progress(None)
    monkeypatch.delenv("RANK")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert not shows_progress(None)
    assert shows_progress(True)
    monkeypatch.setattr(sys, "stdout", None)
    assert not shows_progress(None)


@pytest.mark.parametrize(("package", "expected"), [(object(), True), (None, False)])
def test_progress_is_shown_in_a_notebook_that_can_show_it(monkeypatch, package, expected) -> None:
    class Notebook:
        is_jupyter = True

    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    monkeypatch.setattr("toa._console.make_console", Notebook)
    monkeypatch.setattr("toa._console.find_spec", lambda name: package)
    assert shows_progress(None) is expected


@pytest.mark.parametrize("kind", [Forecaster, AnomalyDetector, Classifier])
def test_estimators_show_progress_by_default_where_a_person_looks(monkeypatch, kind) -> None:
    arguments = {"horizon": 6} if kind is Forecaster else {}
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert kind(**arguments).settings_of_fit().network.progress
    assert not kind(**arguments, progress=False).settings_of_fit().network.progress


def test_a_fit_shows_each_method_and_the_training(shown) -> None:
    with only("baselines"):
        Forecaster(6, progress=True).fit(wide(120))
    assert "methods" in shown.getvalue()
    assert "5/5" in shown.getvalue()
    quick(epochs=1, progress=True).fit(wide(120))
    assert "loss" in shown.getvalue()


def test_a_fit_shows_nothing_in_a_test(capsys) -> None:
    with only("baselines"):
        Forecaster(6).fit(wide(120))
    assert capsys.readouterr().out == ""


def test_bars_within_others_are_shown_together(shown) -> None:
    with show_bars() as outer, show_epochs("network") as observe:
        observe(1, 2, 0.5, None)
        with show_bars() as inner:
            assert inner is outer
    with show_bars() as later:
        assert later is not outer
    assert "network" in shown.getvalue()


def test_steps_that_are_not_shown_need_no_bar(shown) -> None:
    with show_steps("methods", 2, shown=False) as begin:
        begin("theta")
    assert shown.getvalue() == ""
