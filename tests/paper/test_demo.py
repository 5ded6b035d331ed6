import os
import signal
from pathlib import Path

import pytest

from toa.training import TrainingStopped
from toa_paper.demo import COMPARED, PARTS, SEEDS, part_configs, run_part


@pytest.fixture(autouse=True)
def _own_data(monkeypatch):
    monkeypatch.delenv("TOA_DATA", raising=False)


def test_both_parts_run_every_attention_with_every_seed():
    for configs in map(part_configs, PARTS):
        cells = {(config.attention.name, config.seed) for config in configs if config.attention}
        assert cells == {(name, seed) for name in COMPARED for seed in SEEDS}
        assert len(configs) == len(cells)
    assert {config.evaluation for config in part_configs("classification")} == {"strict"}


def test_fewer_steps_shorten_the_parts_in_proportion():
    full = [part_configs(part)[0].training.epochs for part in PARTS]
    assert [part_configs(part, 1000)[0].training.epochs for part in PARTS] == [epochs // 2 for epochs in full]
    assert part_configs("anomaly", 1)[0].training.epochs == 1


def test_the_series_is_inside_aeon():
    config = part_configs("anomaly")[0]
    assert all(Path(file).is_file() for file in (config.dataset, config.test_file))


@pytest.mark.parametrize("part", PARTS)
def test_a_stopped_part_resumes_and_a_finished_one_is_loaded(part, tmp_path, monkeypatch):
    monkeypatch.setattr("toa_paper.demo.COMPARED", ("toa-relu", "softmax"))
    monkeypatch.setattr("toa_paper.demo.SEEDS", (1,))

    def stop(done: int, steps: int, loss: float, validation: float | None, title: str) -> None:
        if title == "softmax, seed 1":
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(TrainingStopped):
        run_part(part, tmp_path, steps=1, device="cpu", command=["first"], observe=stop)
    runs = run_part(part, tmp_path, steps=1, device="cpu", command=["second"])
    assert [(run.attention, run.record["command"]) for run in runs] == [("toa-relu", "first"), ("softmax", "second")]
    assert all((run.folder / "record.json").is_file() for run in runs)
    again = run_part(part, tmp_path, steps=1, device="cpu", command=["third"])
    assert [run.record for run in again] == [run.record for run in runs]
