"""Files of fitted estimators: tensors in safetensors, everything else in JSON, with versions and a checksum.

    save_file(path, "forecaster", tensors, facts)      # one file
    saved = load_file(path, "forecaster")              # saved.tensors, saved.facts
    save_folder(folder, "forecaster", tensors, facts)  # config.json and model.safetensors, as on the Hugging Face hub
    saved = load_folder(folder, "forecaster")

`facts` are JSON values. Writing is atomic. Reading raises ValueError for a file that was truncated or edited, or that
has another kind or format version; it never executes anything.
"""

import hashlib
import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import toa
from toa._files import write_atomically
from toa.tasks.checkpoint import Checkpoint, load_checkpoint, save_checkpoint

# increased when older files can no longer be read
FORMAT = 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"


def save_file(path: Path, kind: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write one file."""
    if path.is_dir():
        raise ValueError(f"path must be a file, got the folder {path}; use save_pretrained for a folder.")
    save_checkpoint(path, tensors, _header(kind, tensors, facts))


def load_file(path: Path, kind: str) -> Checkpoint:
    """Read a file that `save_file` wrote.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is damaged, edited, or of another kind.
    """
    if not path.is_file():
        hint = "; load a folder with from_pretrained" if path.is_dir() else ""
        raise FileNotFoundError(f"{path} must be a saved {kind}, got no such file{hint}.")
    saved = _read(path, kind)
    return _checked(path, kind, saved.facts, saved.tensors)


def save_folder(folder: Path, kind: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write config.json and model.safetensors into a folder."""
    header = _header(kind, tensors, facts)
    save_checkpoint(folder / WEIGHTS, tensors, {"checksum": header["checksum"]})
    write_atomically(folder / CONFIG, (json.dumps(header, indent=2, sort_keys=True) + "\n").encode())


def load_folder(folder: Path, kind: str) -> Checkpoint:
    """Read a folder that `save_folder` wrote; see `load_file`."""
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder} must hold {CONFIG} and {WEIGHTS} of a {kind}, got no {name}.")
    try:
        header = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{folder / CONFIG} must be JSON, got {error}; is it complete?") from None
    return _checked(folder, kind, header, _read(folder / WEIGHTS, kind).tensors)


def _read(path: Path, kind: str) -> Checkpoint:
    try:
        return load_checkpoint(path)
    except ValueError as error:
        raise ValueError(
            f"{path} must be a {kind} saved by toa, got another or a truncated file ({error.__cause__}); save or "
            "copy it again."
        ) from None


def _header(kind: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> dict[str, Any]:
    versions = {"toa": toa.__version__, "torch": torch.__version__, "python": platform.python_version()}
    header = {"format": FORMAT, "kind": kind, "versions": versions, "facts": dict(facts)}
    return header | {"checksum": _checksum(header, tensors)}


def _checked(path: Path, kind: str, header: Any, tensors: dict[str, Tensor]) -> Checkpoint:
    if not isinstance(header, dict) or not {"format", "kind", "facts", "checksum"} <= set(header):
        raise ValueError(f"{path} must be a {kind} saved by toa, got another file.")
    if header["format"] != FORMAT:
        made = header.get("versions")
        by = f" of toa {made.get('toa')}" if isinstance(made, dict) else ""
        raise ValueError(
            f"{path} must have format {FORMAT}, which toa {toa.__version__} reads, got format "
            f"{header['format']!r}{by}; use that version of toa, or fit and save again."
        )
    if header["kind"] != kind:
        raise ValueError(
            f"{path} must be a saved {kind}, got a {header['kind']}; load it with the class of that estimator."
        )
    rest = {key: value for key, value in header.items() if key != "checksum"}
    if header["checksum"] != _checksum(rest, tensors):
        raise ValueError(
            f"{path} must have the content that its checksum states, got an edited or damaged file; copy it again."
        )
    return Checkpoint(tensors=tensors, facts=header["facts"])


def _checksum(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Sha256 of the header as canonical JSON and of the name, type, shape and bytes of each tensor."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True, separators=(",", ":")).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        # uint8 view, because numpy has no bfloat16
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
