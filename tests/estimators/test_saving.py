import json
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file as load_tensors
from safetensors.torch import save_file as save_tensors

import toa
from tests.support import message
from toa.estimators import Forecaster
from toa.estimators import files as saving
from toa.training.checkpoint import load_checkpoint, save_checkpoint

TENSORS = {"w": torch.arange(6.0).reshape(2, 3), "half": torch.ones(3, dtype=torch.bfloat16), "scalar": torch.tensor(2)}
FACTS: dict[str, Any] = {"ids": ["a", 1, None], "size": 2.5}


def test_a_file_survives_a_round_trip(tmp_path) -> None:
    saving.save_file(tmp_path / "m.toa", "guess", TENSORS, FACTS)
    saved = saving.load_file(tmp_path / "m.toa", "guess")
    assert saved.facts == FACTS | {"kind": "guess"}
    assert saved.tensors.keys() == TENSORS.keys()
    assert all(torch.equal(saved.tensors[name], TENSORS[name]) for name in TENSORS)
    assert [path.name for path in tmp_path.iterdir()] == ["m.toa"]


def test_a_folder_has_the_form_of_the_hub(tmp_path) -> None:
    saving.save_file(tmp_path / "m", "guess", TENSORS, FACTS, folder=True)
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == ["config.json", "model.safetensors"]
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert (config["format"], config["kind"], config["versions"]["toa"]) == (saving.FORMAT, "guess", toa.__version__)
    saved = saving.load_file(tmp_path / "m", "guess", folder=True)
    assert saved.facts == FACTS | {"kind": "guess"}
    assert torch.equal(saved.tensors["w"], TENSORS["w"])


@pytest.mark.parametrize("kept", [0, 7, 40, 0.5, -1])
def test_a_file_cut_short_is_rejected(tmp_path, kept) -> None:
    path = tmp_path / "m.toa"
    saving.save_file(path, "guess", TENSORS, FACTS)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept) if isinstance(kept, float) else kept])
    with pytest.raises(ValueError, match=message("m.toa must be a guess saved by toa", "truncated")):
        saving.load_file(path, "guess")


def test_every_changed_byte_is_noticed(tmp_path) -> None:
    path = tmp_path / "m.toa"
    saving.save_file(path, "guess", TENSORS, FACTS)
    content = path.read_bytes()
    for place in range(0, len(content), 7):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(ValueError, match=message("m.toa must")):
            saving.load_file(path, "guess")


def edit(path, **changes: Any) -> None:
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | changes))


def test_edited_settings_or_weights_are_rejected(tmp_path) -> None:
    saving.save_file(tmp_path, "guess", TENSORS, FACTS, folder=True)
    edit(tmp_path / "config.json", facts=FACTS | {"size": 2.0})
    with pytest.raises(ValueError, match=message("its checksum", "edited or damaged")):
        saving.load_file(tmp_path, "guess", folder=True)
    saving.save_file(tmp_path, "guess", TENSORS, FACTS, folder=True)
    weights = load_tensors(tmp_path / "model.safetensors")
    save_tensors(weights | {"w": weights["w"] + 1}, tmp_path / "model.safetensors", {"toa": "{}"})
    with pytest.raises(ValueError, match="edited or damaged"):
        saving.load_file(tmp_path, "guess", folder=True)


@pytest.mark.parametrize("name", ["values", "covariates", "past_covariates", "static"])
def test_a_forged_list_of_columns_is_rejected(tmp_path, name) -> None:
    path = tmp_path / "m.toa"
    Forecaster(2, lookback=8, epochs=1, backbone="dlinear", model="toa").fit(np.arange(60.0)).save(path)
    saved = load_checkpoint(path)
    facts: Any = saved.facts
    facts["facts"]["parameters"][name] = 3
    save_checkpoint(path, saved.tensors, facts)
    with pytest.raises(ValueError, match=message("m.toa", f"{name} must be a list of columns, got 3")):
        Forecaster.load(path)


def test_another_version_of_the_format_is_rejected(tmp_path) -> None:
    saving.save_file(tmp_path, "guess", TENSORS, FACTS, folder=True)
    edit(tmp_path / "config.json", format=saving.FORMAT + 1, versions={"toa": "9.9"})
    with pytest.raises(ValueError, match=message("must have format 1", "got format 2 of toa 9.9")):
        saving.load_file(tmp_path, "guess", folder=True)


def test_other_files_are_rejected(tmp_path) -> None:
    saving.save_file(tmp_path / "m.toa", "guess", TENSORS, FACTS)
    with pytest.raises(ValueError, match=message("must be a saved forecaster, got the kind 'guess'")):
        saving.load_file(tmp_path / "m.toa", "forecaster")
    save_tensors(TENSORS, tmp_path / "plain.safetensors")
    with pytest.raises(ValueError, match="must be a guess saved by toa"):
        saving.load_file(tmp_path / "plain.safetensors", "guess")
    with pytest.raises(FileNotFoundError, match=message("got no such file", "from_pretrained")):
        saving.load_file(tmp_path, "guess")
    with pytest.raises(FileNotFoundError, match=r"got no config\.json"):
        saving.load_file(tmp_path, "guess", folder=True)
    with pytest.raises(ValueError, match=message("path must be a file", "save_pretrained")):
        saving.save_file(tmp_path, "guess", TENSORS, FACTS)
    (tmp_path / "config.json").write_text("{")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=message("config.json must be JSON", "complete")):
        saving.load_file(tmp_path, "guess", folder=True)
