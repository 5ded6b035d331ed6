"""Experiments: the runs of each task have one object, which names and describes them."""

from typing import Any

import pytest

from tests.support import message
from toa.cli.run import config_of
from toa.experiments import EXPERIMENTS, Experiment, experiment_of, resolve, run_folder
from toa.training import TASKS, Task

NAMES = {
    "forecast": "ETTh1-96-patchtst-toa-gated-2024",
    "anomaly": "MSL-transformer-toa-gated-2024",
    "classify": "BasicMotions-strict-transformer-toa-gated-2024",
}
CHOSEN: dict[str, dict[str, Any]] = {
    "forecast": {"protocol": "toa-paper", "dataset": "ETTh1", "backbone": "patchtst", "horizon": 96},
    "anomaly": {"protocol": "toa-paper", "dataset": "MSL", "backbone": "transformer"},
    "classify": {"protocol": "strict", "dataset": "BasicMotions", "backbone": "transformer"},
}


def test_every_task_has_an_experiment_of_its_own():
    for name, task in TASKS.items():
        experiment = experiment_of(name)
        assert experiment.task is task
        assert EXPERIMENTS[name] is experiment
        assert experiment.summary_metrics


@pytest.mark.parametrize("task", CHOSEN)
def test_runs_have_readable_folders(task, tmp_path):
    config = resolve(task, attention="toa-gated", seed=2024, **CHOSEN[task])
    assert run_folder(config, tmp_path).name[:-9] == NAMES[task]
    assert experiment_of(task).title(config)


def test_a_task_of_another_package_has_the_defaults(monkeypatch):
    task = Task()
    monkeypatch.setitem(TASKS, "guess", task)
    experiment = experiment_of("guess")
    assert type(experiment) is Experiment
    assert experiment.task is task


def test_an_unknown_task_is_named():
    with pytest.raises(ValueError, match=message("unknown task 'sort'", "known: ")):
        experiment_of("sort")
    with pytest.raises(ValueError, match=message("unknown task 'sort'", "forecast")):
        config_of({"task": "sort"})
