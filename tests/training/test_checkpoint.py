import os

import pytest
import torch

from tests.support import message
from toa.training.checkpoint import load_checkpoint, save_checkpoint


def test_a_checkpoint_returns_the_saved_tensors_and_facts(tmp_path):
    tensors = {"a": torch.randn(3, 2), "b": torch.tensor(7, dtype=torch.uint8)}
    save_checkpoint(tmp_path / "deep" / "c.safetensors", tensors, {"step": 3, "key": "k"})
    saved = load_checkpoint(tmp_path / "deep" / "c.safetensors")
    assert saved.facts == {"step": 3, "key": "k"}
    assert saved.tensors.keys() == tensors.keys()
    assert all(torch.equal(saved.tensors[n], tensors[n]) for n in tensors)


def test_a_failed_write_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, {"a": torch.zeros(2)}, {"step": 1})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        save_checkpoint(path, {"a": torch.ones(2)}, {"step": 2})
    assert load_checkpoint(path).facts == {"step": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["c.safetensors"]


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"\x08\x00\x00\x00\x00\x00\x00\x00{}      "])
def test_a_file_of_another_kind_raises_an_error(tmp_path, content):
    path = tmp_path / "c.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message("c.safetensors", "must be a checkpoint of toa", "delete it")):
        load_checkpoint(path)
