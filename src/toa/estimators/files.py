"""Files of estimators: tensors in safetensors and everything else in JSON, with versions and a checksum.

    save_file(path, "forecaster", tensors, facts)
    load_file(path, "forecaster").facts

Writing is atomic. Reading never executes anything; it raises ValueError for a file that was truncated or edited, or
that has another kind or format version.
"""

import json
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import toa
from toa._checks import ArgumentError
from toa._files import CHECKSUM, parse_json, read_together, seal, unseal, write_together
from toa._limits import shorten
from toa.training.checkpoint import Checkpoint, checkpoint_content, load_checkpoint, save_checkpoint

# increased when older files can no longer be read
FORMAT = 1
# files of a folder in the format of the Hugging Face hub
CONFIG = "config.json"
WEIGHTS = "model.safetensors"


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedColumns:
    """What a saved estimator tells about the columns of its tables: their names, and whether ids are text."""

    id: str | None = None
    label: str | None = None
    has_text_ids: bool = False


def saved_columns(path: Path) -> SavedColumns:
    """The columns of a saved estimator; none for another file, which loading it names in its error."""
    facts: Mapping[str, Any] = {}
    with suppress(FileNotFoundError, ValueError):
        facts = load_file(path).facts
    parameters = facts.get("parameters")
    results = facts.get("fitted")
    if not isinstance(parameters, Mapping):
        parameters = {}
    if not isinstance(results, Mapping):
        results = {}
    ids = results.get("ids")
    # else the id column that the names of other libraries told
    id = parameters.get("id") or results.get("id")
    label = parameters.get("label")
    return SavedColumns(
        # loading the file names others in its error
        id=id if isinstance(id, str) else None,
        label=label if isinstance(label, str) else None,
        has_text_ids=isinstance(ids, list) and any(isinstance(id, str) for id in ids),
    )


def save_file(
    path: Path, kind: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], *, folder: bool = False
) -> None:
    """Write one file, or config.json and model.safetensors into a folder."""
    versions = {"toa": toa.__version__, "torch": torch.__version__, "python": platform.python_version()}
    header = {"format": FORMAT, "kind": kind, "versions": versions, "facts": dict(facts)}
    if folder:
        text = json.dumps(seal(header, tensors), indent=2, sort_keys=True) + "\n"
        write_together(path, {WEIGHTS: checkpoint_content(tensors, {}), CONFIG: text.encode()})
    elif path.is_dir():
        raise ArgumentError("path", "be a file", f"the folder {path}", "use save_pretrained for a folder")
    else:
        save_checkpoint(path, tensors, header)


def load_file(path: Path, wanted: str | None = None, *, folder: bool = False) -> Checkpoint:
    """Read what `save_file` wrote, of the wanted or of any kind; the facts have the kind too."""
    kind = wanted or "model"
    content: bytes | None = None
    header: Any = None
    if folder:
        header, content = _read_folder(path, kind)
    elif not path.is_file():
        hint = "; load a folder with from_pretrained" if path.is_dir() else ""
        raise FileNotFoundError(f"{path} must be a saved {kind}, got no such file{hint}.")
    weights = path / WEIGHTS if folder else path
    try:
        checkpoint = load_checkpoint(weights, content=content, verify=False)
    except ValueError as error:
        raise ArgumentError(
            weights,
            f"be a {kind} saved by toa",
            f"another or a truncated file ({error.__cause__})",
            "save or copy it again",
        ) from None
    header = _check_header(header if folder else checkpoint.facts, path, wanted)
    facts = unseal(header, str(path), checkpoint.tensors)[0]["facts"]
    if not isinstance(facts, dict):
        raise ArgumentError(f"facts in {path}", "be a mapping", type(facts).__name__, "save it again")
    return Checkpoint(tensors=checkpoint.tensors, facts={**facts, "kind": header["kind"]}, verified=True)


def _read_folder(path: Path, kind: str) -> tuple[Any, bytes]:
    """The JSON file of a folder, not yet checked, and the content of the other file."""
    for name in (CONFIG, WEIGHTS):
        if not (path / name).is_file():
            raise FileNotFoundError(f"{path} must hold {CONFIG} and {WEIGHTS} of a {kind}, got no {name}.")
    contents = read_together(path, (CONFIG, WEIGHTS))
    try:
        return parse_json(contents[CONFIG], "it"), contents[WEIGHTS]
    except ValueError as error:
        raise ArgumentError(path / CONFIG, "be JSON", error, "is it complete?") from None


def _check_header(header: Any, path: Path, wanted: str | None) -> dict[str, Any]:
    """The header, if it is one of this format and of the wanted kind."""
    kind = wanted or "model"
    if not isinstance(header, dict) or not {"format", "kind", "facts", CHECKSUM} <= set(header):
        raise ArgumentError(path, f"be a {kind} saved by toa", "another file")
    if header["format"] != FORMAT:
        versions = header.get("versions")
        by = f" of toa {versions.get('toa')}" if isinstance(versions, dict) else ""
        raise ArgumentError(
            path,
            f"have format {FORMAT}, which toa {toa.__version__} reads",
            f"format {shorten(header['format'])}{by}",
            "use that version of toa, or fit and save again",
        )
    if wanted is not None and header["kind"] != wanted:
        raise ArgumentError(
            path, f"be a saved {wanted}", f"the kind {shorten(header['kind'])}", "use it with its own class or command"
        )
    return header


def tensors_under(tensors: Mapping[str, Tensor], start: str) -> dict[str, Tensor]:
    """Tensors whose name has this start, without it."""
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}


def download_folder(name: str, revision: str | None) -> Path:
    """The folder of a model of the Hugging Face hub; the hub needs the extra `toa[hf]`."""
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise FileNotFoundError(f"name must be a folder or a model of the hub, 'owner/model', got {name!r}.")
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ImportError(
            f"{name!r} is not a local folder, and huggingface_hub, which downloads models, is not installed; install "
            "toa[hf]."
        ) from error
    return Path(snapshot_download(name, revision=revision, allow_patterns=[CONFIG, WEIGHTS]))


def to_json(value: Any) -> Any:
    """A parameter that JSON does not know, as one that it knows."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise ArgumentError("parameters", "be text, numbers, lists or mappings to be saved", repr(value))


def to_tuples(value: Any) -> Any:
    """A parameter from JSON, with tuples in place of lists."""
    if isinstance(value, dict):
        return {key: to_tuples(entry) for key, entry in value.items()}
    return tuple(to_tuples(entry) for entry in value) if isinstance(value, list) else value
