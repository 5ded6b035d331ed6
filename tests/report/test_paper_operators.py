import json

import numpy as np
import pytest
import torch

from tests.report.paper_cases import cell_of, keep_model, record_of
from tests.support import message
from toa.report.operators import OperatorView, picture_offset, pictures_of, read_pictures, write_pictures
from toa.tasks.checkpoint import save_checkpoint


@pytest.fixture
def record():
    job = cell_of("forecast-full", dataset="ETTh1", horizon="96", backbone="patchtst", variant="toa-gated").jobs[0]
    return record_of(job, {"mse": 0.4})


@pytest.mark.parametrize("structure", ["dense", "dplr", "toeplitz"])
def test_pictures_are_the_operators_of_the_model(tmp_path, record, structure):
    dense = keep_model(tmp_path, 12, structure)
    model = pictures_of(record, tmp_path)
    assert model is not None
    assert model["label"] == "ETTh1 96, patchtst/toa-gated, seed 2024"
    assert [(one["layer"], one["part"], one["head"]) for one in model["pictures"]] == [(1, "S1", 2), (1, "S2", 2)]
    shown = model["pictures"][1]
    exact = dense[1] - np.eye(12)
    assert np.abs(picture_offset(shown) - exact).max() <= shown["scale"] / 127 / 2 * 1.01
    assert shown["scale"] == pytest.approx(np.abs(exact).max(), rel=1e-5)
    gain = OperatorView(name="s2", matrix=torch.from_numpy(dense)).response()[1]
    assert np.allclose(shown["response"], gain, rtol=1e-3)


def test_a_long_operator_is_shown_in_blocks_that_keep_the_sign(tmp_path, record):
    dense = keep_model(tmp_path, 200)
    model = pictures_of(record, tmp_path)
    assert model is not None
    shown = model["pictures"][1]
    assert (shown["tokens"], shown["block"], picture_offset(shown).shape) == (200, 3, (67, 67))
    exact = (dense[1] - np.eye(200))[3:6, 9:12]
    farthest = exact.flat[np.abs(exact).argmax()]
    assert picture_offset(shown)[1, 3] == pytest.approx(farthest, abs=shown["scale"] / 127)


def test_a_run_without_operators_has_no_pictures(tmp_path, record):
    assert pictures_of(record, tmp_path) is None
    save_checkpoint(tmp_path / "model.safetensors", {"model.head.weight": torch.ones(2)}, {})
    assert pictures_of(record, tmp_path) is None


def test_pictures_survive_a_round_trip_through_a_small_file(tmp_path, record):
    keep_model(tmp_path, 64, heads=16)
    model = pictures_of(record, tmp_path)
    assert model is not None
    path = write_pictures([model], tmp_path / "operators.json")
    assert read_pictures(path) == [model]
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


def test_a_picture_with_missing_entries_raises(tmp_path, record):
    keep_model(tmp_path, 8)
    model = pictures_of(record, tmp_path)
    assert model is not None
    path = write_pictures([model], tmp_path / "operators.json")
    content = json.loads(path.read_text())
    content["models"][0]["pictures"][0]["tokens"] = 9
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="must have operators in format"):
        read_pictures(path)
