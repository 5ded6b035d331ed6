"""Operators of trained models in numbers: of a model in memory, and as pictures stored beside records.

A file `operators.json` stores the pictures where models are too large to keep. A model has a config hash, a label and
pictures. A picture shows, per layer and part (S1, S2, the gate's S1), the head with the largest offset M = S - I:

    layer, head  counted from 1
    part         "S1", "S2" or "S1 of the gate"
    tokens       N
    block        side of the blocks of M; a block is shown by its entry with the largest absolute value
    scale        value of M that is stored as 127
    values       M, or its blocks, row by row, as signed bytes in base64
    response     gain per frequency, as in `OperatorView.response`

Alphabet: B batch, N tokens, M queries, H heads.
"""

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Complex, Float
from torch import Tensor, nn

from toa._checks import ArgumentError
from toa._files import parse_json, read_text, write_atomically
from toa._limits import shorten
from toa.data.frequency import Frequency, describe_steps
from toa.experiments.records import RECORD, Record
from toa.experiments.run import load_run
from toa.nn import (
    Attention,
    ChannelDropout,
    ChannelMask,
    PatchEmbedding,
    SequenceOperator,
    VariateEmbedding,
    mixing_operators,
)
from toa.ops import simplex_distance
from toa.training import TASKS
from toa.training.metrics import evaluating

OPERATORS_FILE = "operators.json"
_FORMAT = "toa-operators-1"
_MODEL_KEYS = {"config_hash", "label", "pictures"}
_PICTURE_KEYS = {"layer", "head", "part", "tokens", "block", "scale", "values", "response"}
# longer operators are shown in blocks
_SHOWN = 96
_PARTS = {"s1": "S1", "s2": "S2", "gate_s1": "S1 of the gate"}

# pictures of one model
Pictures = dict[str, Any]
# inputs of a model for one window or case as batches of one, or a function that calls the model with them
Sample = Sequence[Tensor | None] | Callable[[], object]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class OperatorView:
    """An operator S = I + M of a layer, in float64."""

    name: str
    matrix: Float[Tensor, "h n n"]

    @property
    def offset(self) -> Float[Tensor, "h n n"]:
        """M, the learned part."""
        return self.matrix - torch.eye(self.matrix.shape[-1], dtype=self.matrix.dtype)

    @property
    def row_sums(self) -> Float[Tensor, "h n"]:
        """Response to a constant: 1 for an average, 0 for a difference."""
        return self.matrix.sum(-1)

    def simplex_distance(self) -> Float[Tensor, " h"]:
        """Distance to the nearest averaging operator; see `toa.ops.simplex_distance`."""
        return simplex_distance(self.matrix)

    def response(self) -> Float[Tensor, "h f"]:
        """‖S e_f‖ / ‖e_f‖ for the waves e_f(t) = exp(2πi f t / N), f = 0 … N // 2."""
        n = self.matrix.shape[-1]
        # column f is S applied to the wave of f periods with norm 1
        waves = torch.fft.ifft(self.matrix, dim=-1) * n**0.5
        return torch.linalg.vector_norm(waves, dim=-2)[:, : n // 2 + 1]

    def eigenvalues(self) -> Complex[Tensor, "h n"]:
        """All 1 for an untrained operator; complex for one that shifts."""
        return torch.linalg.eigvals(self.matrix)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LayerView:
    """An attention layer with operators.

    Attributes:
        mixing: W_mix (H, M, N), the matrix applied to the values for one sample; None without a sample.
    """

    name: str
    operators: Sequence[OperatorView]
    mixing: Float[Tensor, "h m n"] | None = None


def tokens_have_order(model: nn.Module) -> bool:
    """Whether tokens are ordered in time; those of iTransformer, DUET and two-axis are channels."""
    return not any(isinstance(module, (VariateEmbedding, ChannelMask, ChannelDropout)) for module in model.modules())


def describe_tokens(model: nn.Module, freq: Frequency | None = None, patch: int = 1) -> str:
    """What a token of a model is, in words; empty without attention. A row of the inputs has `patch` rows of data."""
    embeddings = [one for one in model.modules() if isinstance(one, PatchEmbedding | VariateEmbedding)]
    if not any(isinstance(layer, Attention) for layer in model.modules()):
        return ""
    if embeddings and isinstance(embeddings[0], PatchEmbedding):
        rows, every = embeddings[0].patch_len, embeddings[0].stride
    elif embeddings or not tokens_have_order(model):
        return "A token is one column with its whole look-back."
    else:
        rows = every = patch
    span = "" if freq is None else f", {describe_steps(freq, rows)}"
    later = "" if every == rows else f"; the next begins {_count_rows(every)} later"
    column = " of one column" if embeddings else ""
    return f"A token is {_count_rows(rows)}{column}{span}{later}."


def _count_rows(rows: int) -> str:
    return f"{rows} rows" if rows > 1 else f"{rows} row"


@torch.no_grad()
def view_layers(model: nn.Module, sample: Sample | None = None) -> list[LayerView]:
    """Every attention layer with operators, in the order of the model.

    Args:
        sample: Inputs to compute W_mix for. If a model treats channels separately, the first channel is used.
    """
    layers = {name: module for name, module in model.named_modules() if isinstance(module, Attention)}
    views = {name: _operators(layer) for name, layer in layers.items()}
    if not any(views.values()):
        kinds = sorted({type(layer).__name__ for layer in layers.values()})
        raise ArgumentError(
            "the model",
            "have operators to explain",
            f"{', '.join(kinds) or 'no attention'} in {type(model).__name__}",
            "train one with attention toa-gated, toa-relu, toa-softmax or hyperglu",
        )
    mixing = {}
    if sample is not None:
        with evaluating(model):
            matrices = mixing_operators(model, sample if callable(sample) else lambda: model(*sample))
        # the last call of a layer, for the first element of its batch
        mixing = {name: matrix[0].double().cpu() for name, matrix in matrices.items()}
    return [
        LayerView(name=name, operators=operators, mixing=mixing.get(name))
        for name, operators in views.items()
        if operators
    ]


def _operators(layer: Attention) -> list[OperatorView]:
    return [
        OperatorView(name=name, matrix=module.dense().double().cpu())
        for name, module in layer.named_modules()
        if isinstance(module, SequenceOperator)
    ]


def model_label(record: Record) -> str:
    """Data set, horizon, name and seed of a model."""
    config = record["config"]
    data = Path(str(config.get("dataset", record["task"]))).stem
    horizon = f" {config['horizon']}" if "horizon" in config else ""
    return f"{data}{horizon}, {record['name']}, seed {record.get('seed')}"


def pictures_of(record: Record, folder: Path) -> Pictures | None:
    """Operators of the model in the folder of a run; None without a model or operators."""
    if not (folder / RECORD).is_file() or not (folder / TASKS[record["task"]].model_file).is_file():
        return None
    found = model_pictures(load_run(folder).model, model_label(record))
    return None if found is None else {"config_hash": record["config_hash"], **found}


@torch.no_grad()
def model_pictures(model: nn.Module, label: str) -> Pictures | None:
    """Operators of a model in memory; None if it has none."""
    found = [_operators(layer) for layer in model.modules() if isinstance(layer, Attention)]
    layers = enumerate((views for views in found if views), 1)
    pictures = [_picture(view, number) for number, views in layers for view in views if view.name in _PARTS]
    return {"label": label, "pictures": pictures} if pictures else None


def write_pictures(models: Iterable[Pictures], path: Path) -> Path:
    """Write pictures to a file, one model per line."""
    lines = ",\n".join(json.dumps(model, separators=(",", ":")) for model in models)
    write_atomically(path, f'{{"format":"{_FORMAT}","models":[\n{lines}\n]}}\n'.encode())
    return path


def read_pictures(path: Path) -> list[Pictures]:
    """Read the pictures of a file."""
    try:
        content = parse_json(read_text(path), str(path))
        if content["format"] != _FORMAT:
            raise ValueError(f"format {content['format']!r}")
        models: list[Pictures] = content["models"]
        for model in models:
            for picture in model["pictures"]:
                if model.keys() != _MODEL_KEYS or picture.keys() != _PICTURE_KEYS:
                    raise ValueError("other keys")
                # raises if entries are missing
                picture_offset(picture)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArgumentError(path, f"have operators in format {_FORMAT}", f"something else ({shorten(error)})") from None
    return models


def picture_offset(picture: Mapping[str, Any]) -> Float[np.ndarray, "n n"]:
    """M of a picture, or its blocks, rounded to 8 bits."""
    entries = np.frombuffer(base64.b64decode(picture["values"]), dtype=np.int8)
    side = -(-picture["tokens"] // picture["block"])
    return entries.reshape(side, side) * (picture["scale"] / 127)


def _picture(view: OperatorView, layer: int) -> dict[str, Any]:
    """The picture of the head with the largest offset."""
    n = view.matrix.shape[-1]
    head = int(view.offset.square().sum((1, 2)).argmax())
    block = -(-n // _SHOWN)
    shown = _blocks(view.offset[head].numpy(), block)
    scale = float(np.abs(shown).max()) or 1.0
    return {
        "layer": layer,
        "head": head + 1,
        "part": _PARTS[view.name],
        "tokens": n,
        "block": block,
        "scale": float(f"{scale:.6g}"),
        "values": base64.b64encode(np.round(shown / scale * 127).astype(np.int8).tobytes()).decode(),
        "response": [float(f"{gain:.4g}") for gain in view.response()[head].tolist()],
    }


def _blocks(matrix: Float[np.ndarray, "n n"], block: int) -> Float[np.ndarray, "m m"]:
    """Per block the entry with the largest absolute value; the last blocks may be smaller."""
    starts = np.arange(0, len(matrix), block)
    low, high = (
        find.reduceat(find.reduceat(matrix, starts, axis=0), starts, axis=1) for find in (np.minimum, np.maximum)
    )
    return np.where(-low > high, low, high)
