import json
from typing import Any, cast

import pytest
import torch

from tests.paper.demixing.cases import shrink_demixing
from tests.support import message
from toa.experiments import read_record
from toa.training.distributed import resolve_device
from toa_paper.demixing import DemixingBatch, experiment, run_demixing


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    shrink_demixing(monkeypatch)


def run(out, **options):
    return run_demixing("demo", out, **{"attentions": ["toa-relu", "softmax"], "steps": 2, "device": "cpu", **options})


def test_a_run_leaves_a_complete_record(tmp_path):
    result = run(tmp_path, command=["toa", "demix", "--steps", "2"])
    (path,) = tmp_path.glob("toa-relu-no-sor-2024-*/record.json")
    record = read_record(path)
    assert record == result.records[0]
    assert record["command"] == "toa demix --steps 2"
    assert record["seed"] == record["config"]["seed"] == 2024
    assert record["config"]["attention"]["name"] == "toa-relu"
    assert record["backend"] == "folded"
    assert len(record["data_checksum"]) == 64
    assert record["metrics"]["mse"] > 0
    assert record["device"].startswith("cpu")
    assert record["versions"]["torch"]
    assert json.loads(json.dumps(record)) == record


def test_finished_runs_are_loaded_not_repeated(tmp_path):
    first = run(tmp_path)
    again = run(tmp_path, command=["another"])
    assert again.records == first.records


def test_other_settings_have_another_folder(tmp_path):
    assert run(tmp_path).records != run(tmp_path, steps=3).records != run(tmp_path, steps=3, tf32=False).records
    assert len(list(tmp_path.glob("softmax-2024-*/record.json"))) == 3


def test_records_contain_the_defaults_of_the_layer(tmp_path):
    attention = run(tmp_path).records[0]["config"]["attention"]
    assert (attention["structure"], attention["operator_std"], attention["sor_max_rate"]) == ("dense", 1e-3, 1.0)


def test_seeds_and_attentions_are_given_once(tmp_path):
    with pytest.raises(ValueError, match=message("seed must be given at least once and none twice", "[1, 1]")):
        run(tmp_path, seeds=[1, 1])
    with pytest.raises(ValueError, match=message("seed must be given at least once", "[]")):
        run(tmp_path, seeds=[])
    with pytest.raises(ValueError, match=message("seed must be an integer from 0", "got -1")):
        run(tmp_path, seeds=[2, -1])
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_folder_raises_an_error_before_training(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=message("file must be a folder that can be written to", "choose another")):
        run(tmp_path / "file")


def test_steps_and_rate_can_be_changed(tmp_path):
    config = run(tmp_path, attentions=["softmax"], steps=1, learning_rate=0.5).records[0]["config"]
    assert (config["steps"], config["learning_rate"]) == (1, 0.5)


def test_medians_are_over_seeds(tmp_path):
    result = run(tmp_path, attentions=["softmax"], seeds=[1, 2, 3])
    errors = sorted(record["metrics"]["mse"] for record in result.records)
    assert result.medians() == {"softmax": errors[1]}


def test_runs_without_regularization_are_named_so(tmp_path):
    with_sor = run(tmp_path / "on", sor=True)
    without = run(tmp_path / "off", sor=False)
    assert [record["name"] for record in with_sor.records] == ["toa-relu", "softmax"]
    assert [record["name"] for record in without.records] == ["toa-relu-no-sor", "softmax"]
    assert without.records[0]["config"]["attention"]["sor"] is False
    assert with_sor.records[0]["metrics"] != without.records[0]["metrics"]
    assert with_sor.records[1]["metrics"] == without.records[1]["metrics"]


def test_softmax_operators_are_simplex_rows_and_toa_subtracts(tmp_path):
    relu, softmax = run(tmp_path, steps=5).views
    assert softmax.operator.min() >= 0
    assert softmax.operator.sum(-1).allclose(softmax.operator.new_ones(()))
    assert relu.operator.min() < 0


def test_unknown_names_raise_an_error(tmp_path):
    with pytest.raises(ValueError, match=message("unknown preset 'papr'", "demo, paper")):
        run_demixing("papr", tmp_path)
    with pytest.raises(ValueError, match=message("unknown attention 'toa-gatd'", "toa-gated", "softmax")):
        run(tmp_path, attentions=["toa-gatd"])
    for name in ("gpuu", "mps", "cuda:", "cuda:x", "cpu:1"):
        with pytest.raises(ValueError, match=message("device must be auto, cpu, cuda", repr(name))):
            resolve_device(name)


def test_a_missing_device_raises_an_error(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ValueError, match=message("'cuda'", "without CUDA", "use device='cpu'")):
        resolve_device("cuda")
    assert resolve_device("auto").type == "cpu"
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(ValueError, match=message("'cuda:2'", "2 CUDA devices")):
        resolve_device("cuda:2")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"metrics": 3, "config_hash": "a"}'])
def test_a_file_that_is_not_a_record_raises_an_error(tmp_path, content):
    path = tmp_path / "record.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=message("record.json", "must be a record of toa", "delete it")):
        read_record(path)


def test_a_head_of_zeros_is_not_shown(monkeypatch):
    """It has no share of negative weight: 0 / 0 would be larger than any share."""
    heads = torch.zeros(1, 3, 5, 5)
    heads[0, 1] = torch.tensor([1.0, -0.5, 0.0, 0.0, 0.0])
    heads[0, 2] = torch.tensor([1.0, -0.2, 0.0, 0.0, 0.0])
    monkeypatch.setattr(experiment, "mixing_operators", lambda *_: {"one": heads})
    monkeypatch.setattr(experiment, "demix", lambda _, noisy: noisy)
    monkeypatch.setattr(experiment, "frequency_response", lambda noisy, _: noisy)
    batch = DemixingBatch(*torch.zeros(len(DemixingBatch._fields), 4, 5))
    found = experiment._view("toa-relu", cast(Any, torch.nn.Linear(1, 1)), 0.1, batch, 0)
    assert found.place == (1, 2)
    assert found.operator.equal(heads[0, 1])
