import json

import numpy as np
import pytest
import torch

from tests.report.cases import job_of, record_of, small_layer
from tests.support import message
from toa.experiments.records import write_record
from toa.report.operators import (
    OperatorView,
    model_pictures,
    picture_offset,
    pictures_of,
    read_pictures,
    write_pictures,
)
from toa.training import TASKS
from toa.training.base import model_checkpoint
from toa.training.checkpoint import save_checkpoint
from toa.training.forecast import ForecastWindows


@pytest.mark.parametrize("structure", ["dense", "dplr", "toeplitz", "banded"])
def test_pictures_are_the_operators_of_the_model(structure):
    layer = small_layer(12, structure)
    model = model_pictures(layer, "a model")
    assert model is not None
    assert model["label"] == "a model"
    assert [(one["layer"], one["part"], one["head"]) for one in model["pictures"]] == [(1, "S1", 2), (1, "S2", 2)]
    shown = model["pictures"][1]
    dense = layer.s2.dense().detach().double()
    exact = dense[1].numpy() - np.eye(12)
    assert np.abs(picture_offset(shown) - exact).max() <= shown["scale"] / 127 / 2 * 1.01
    assert shown["scale"] == pytest.approx(np.abs(exact).max(), rel=1e-5)
    gain = OperatorView(name="s2", matrix=dense).response()[1]
    assert np.allclose(shown["response"], gain, rtol=1e-3)


def test_a_long_operator_is_shown_in_blocks_that_keep_the_sign():
    layer = small_layer(200)
    model = model_pictures(layer, "a model")
    assert model is not None
    shown = model["pictures"][1]
    assert (shown["tokens"], shown["block"], picture_offset(shown).shape) == (200, 3, (67, 67))
    exact = (layer.s2.dense()[1].detach().double().numpy() - np.eye(200))[3:6, 9:12]
    farthest = exact.flat[np.abs(exact).argmax()]
    assert picture_offset(shown)[1, 3] == pytest.approx(farthest, abs=shown["scale"] / 127)


@pytest.mark.parametrize("variant", ["toa-gated", "softmax"])
def test_pictures_of_a_run_are_those_of_its_model(tmp_path, variant):
    job = job_of("itransformer", variant)
    record = record_of(job, {"mse": 0.4})
    assert pictures_of(record, tmp_path) is None
    write_record(tmp_path / "record.json", record)
    assert pictures_of(record, tmp_path) is None
    task = TASKS["forecast"]
    torch.manual_seed(0)
    trained = task.build(job.config, ForecastWindows(channels=7))
    file = model_checkpoint(job.config, trained, None, columns=list("abcdefg"))
    save_checkpoint(tmp_path / task.model_file, file.tensors, file.facts)
    model = pictures_of(record, tmp_path)
    if variant == "softmax":
        assert model is None
        return
    assert model is not None
    assert (model["label"], model["config_hash"]) == ("ETTh1 96, itransformer/toa-gated, seed 2024", job.key)
    direct = model_pictures(trained, "")
    assert direct is not None
    assert model["pictures"] == direct["pictures"]


def small_file(path, tokens, heads=2):
    model = model_pictures(small_layer(tokens, heads=heads), "a model")
    return write_pictures([{"config_hash": "0", **(model or {})}], path), model


def test_pictures_survive_a_round_trip_through_a_small_file(tmp_path):
    path, model = small_file(tmp_path / "operators.json", 64, heads=16)
    assert read_pictures(path) == [{"config_hash": "0", **model}]
    assert path.stat().st_size < 14_000


BROKEN = (
    "{",
    "[]",
    '{"format": "toa-operators-9", "models": []}',
    '{"format": "toa-operators-1", "models": [{"config_hash": "0", "label": "x", "pictures": [{"layer": 1}]}]}',
)


@pytest.mark.parametrize("content", BROKEN)
def test_a_file_without_operators_raises(tmp_path, content):
    path = tmp_path / "operators.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=message(path, "must have operators in format toa-operators-1, got")):
        read_pictures(path)


def test_a_picture_with_missing_entries_raises(tmp_path):
    path, _ = small_file(tmp_path / "operators.json", 8)
    content = json.loads(path.read_text())
    content["models"][0]["pictures"][0]["tokens"] = 9
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="must have operators in format"):
        read_pictures(path)
