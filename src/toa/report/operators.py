"""Learned operators to look at: taken from the models that runs leave, and kept as one small file.

A file `operators.json` beside records serves where the models themselves are too big to keep. For each model it holds,
a layer and a part (S1, S2, the gate's S1) each, the head whose offset M = S - I is largest: M in 8 bits an entry, and
the gain of S at each frequency.
"""

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from toa import ops
from toa._files import write_atomically
from toa.experiments.records import Record
from toa.tasks.checkpoint import load_checkpoint

OPERATORS_FILE = "operators.json"
_FORMAT = "toa-operators-1"
# operators that are longer are shown by blocks
_SHOWN = 96
_PARTS = {"s1": "S1", "s2": "S2", "gate_s1": "S1 of the gate"}
_NAME = re.compile(r"model\.(?P<layer>.+)\.(?P<part>gate_s1|s1|s2)\.(?P<parameter>offset|taps|diagonal)")


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorPicture:
    """One head's operator S = I + M on N tokens.

    Attributes:
        layer, head: Counted from 1.
        part: "S1", "S2" or "S1 of the gate".
        tokens: N.
        block: Entries a side that one shown value stands for: the one of them that is farthest from 0.
        scale: What a shown value of 127 is.
        values: M, or its blocks, row by row, as signed bytes in base64.
        response: ‖S e_f‖ / ‖e_f‖ for the waves e_f of f = 0 … N // 2 periods in N tokens.
    """

    layer: int
    head: int
    part: str
    tokens: int
    block: int
    scale: float
    values: str
    response: tuple[float, ...]

    def offset(self) -> Float[np.ndarray, "n n"]:
        """M, or its blocks, as far as 8 bits tell."""
        entries = np.frombuffer(base64.b64decode(self.values), dtype=np.int8)
        side = -(-self.tokens // self.block)
        return entries.reshape(side, side) * (self.scale / 127)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelPictures:
    """What is shown of one model; its record has the same hash of a config."""

    config_hash: str
    label: str
    pictures: tuple[OperatorPicture, ...]


def pictures_of(record: Record, folder: Path) -> ModelPictures | None:
    """The operators of the model that a run left in its folder; None if there is no model, or none in it.

    Raises:
        ValueError: If the file is no model.
    """
    path = folder / "model.safetensors"
    if not path.exists() and record["task"] == "demixing":
        # a task without validation keeps its last weights, in the checkpoint
        path = folder / "checkpoint.safetensors"
    if not path.exists():
        return None
    pictures = tuple(_pictures(load_checkpoint(path).tensors))
    if not pictures:
        return None
    return ModelPictures(config_hash=record["config_hash"], label=model_label(record), pictures=pictures)


def model_label(record: Record) -> str:
    """What a model is known by: data, horizon, name and seed."""
    config = record["config"]
    data = Path(str(config.get("dataset", record["task"]))).stem
    horizon = f" {config['horizon']}" if "horizon" in config else ""
    return f"{data}{horizon}, {record['name']}, seed {record.get('seed')}"


def write_pictures(models: Iterable[ModelPictures], path: Path) -> Path:
    """Keep pictures in a file, a line each."""
    lines = ",\n".join(json.dumps(asdict(model), separators=(",", ":")) for model in models)
    write_atomically(path, f'{{"format":"{_FORMAT}","models":[\n{lines}\n]}}\n'.encode())
    return path


def read_pictures(path: Path) -> list[ModelPictures]:
    """Pictures of a file.

    Raises:
        ValueError: If it is none of these files.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != _FORMAT:
            raise ValueError(f"format {content['format']!r}")
        return [_model(values) for values in content["models"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} must be operators in the format {_FORMAT}, got something else ({error!r}).") from None


def _model(values: Mapping[str, Any]) -> ModelPictures:
    pictures = tuple(
        OperatorPicture(**{**one, "response": tuple(map(float, one["response"]))}) for one in values["pictures"]
    )
    for picture in pictures:
        picture.offset()
    return ModelPictures(config_hash=str(values["config_hash"]), label=str(values["label"]), pictures=pictures)


def _pictures(tensors: Mapping[str, Tensor]) -> Iterator[OperatorPicture]:
    found = [match for match in map(_NAME.fullmatch, tensors) if match is not None]
    layers = {name: number for number, name in enumerate(sorted({match["layer"] for match in found}, key=_natural), 1)}
    for match in sorted(found, key=lambda match: (layers[match["layer"]], list(_PARTS).index(match["part"]))):
        operator = _operator(tensors, match[0].removesuffix(match["parameter"]), match["parameter"])
        dense = operator.dense(operator.num_tokens).double()  # (H, N, N)
        yield _picture(dense, layers[match["layer"]], _PARTS[match["part"]])


def _natural(name: str) -> list[int | str]:
    return [int(word) if word.isdecimal() else word for word in name.split(".")]


def _operator(tensors: Mapping[str, Tensor], prefix: str, parameter: str) -> ops.Operator:
    if parameter == "offset":
        return ops.Dense(tensors[f"{prefix}offset"])
    if parameter == "taps":
        return ops.Toeplitz(tensors[f"{prefix}taps"])
    diagonal, left, right = (tensors[f"{prefix}{name}"] for name in ("diagonal", "left", "right"))
    return ops.DiagonalLowRank(diagonal, left, right)


def _picture(dense: Tensor, layer: int, part: str) -> OperatorPicture:
    n = dense.shape[-1]
    offsets = dense - torch.eye(n, dtype=dense.dtype)
    head = int(offsets.square().sum((1, 2)).argmax())
    block = -(-n // _SHOWN)
    shown = _blocks(offsets[head].numpy(), block)
    scale = float(np.abs(shown).max()) or 1.0
    return OperatorPicture(
        layer=layer,
        head=head + 1,
        part=part,
        tokens=n,
        block=block,
        scale=float(f"{scale:.6g}"),
        values=base64.b64encode(np.round(shown / scale * 127).astype(np.int8).tobytes()).decode(),
        response=tuple(float(f"{gain:.4g}") for gain in frequency_gain(dense[head].numpy())),
    )


def frequency_gain(operator: Float[np.ndarray, "n n"]) -> Float[np.ndarray, " f"]:
    """‖S e_f‖ / ‖e_f‖ for the waves e_f(t) = exp(2πi f t / N), f = 0 … N // 2."""
    n = len(operator)
    # the DFT of the rows is S applied to the waves, conjugated
    answers = np.fft.fft(operator, axis=1)[:, : n // 2 + 1]  # (N, f)
    return np.linalg.norm(answers, axis=0) / np.sqrt(n)


def _blocks(matrix: Float[np.ndarray, "n n"], block: int) -> Float[np.ndarray, "m m"]:
    """Of each block of entries the one that is farthest from 0, sign kept; the last blocks may be smaller."""
    if block == 1:
        return matrix
    side = -(-len(matrix) // block)
    padded = np.zeros((side * block, side * block))
    padded[: len(matrix), : len(matrix)] = matrix
    tiles = padded.reshape(side, block, side, block).transpose(0, 2, 1, 3).reshape(side, side, block * block)
    farthest = np.abs(tiles).argmax(axis=2)[..., None]
    return np.take_along_axis(tiles, farthest, axis=2)[..., 0]
