"""Records of the paper's cells for tests, made without a run."""

import base64
import gzip
import json
import re
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from toa.experiments.paper.tables import FIRST_SEED, Cell, select, table_cells
from toa.experiments.records import hashed_values
from toa.experiments.run import Job
from toa.nn import Structure, TemporalOperatorAttention

ATTENTIONS = ("softmax", "toa-gated", "toa-relu", "toa-softmax")


def hide_data(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let no data set be found, whatever this machine has."""
    for name in ("TOA_DATA", "XDG_CACHE_HOME"):
        patch.setenv(name, str(folder))


def cell_of(table: str, **wanted: str) -> Cell:
    """The one cell with these values, of several metrics the first."""
    return select(table_cells(table), **{name: [value] for name, value in wanted.items()})[0]


def record_of(job: Job, metrics: dict[str, float], *, seed: int = FIRST_SEED, **changes: Any) -> dict[str, Any]:
    """What a run of a job would leave."""
    run = job.seeded(seed)
    return {
        "task": run.task,
        "name": run.config.name,
        "config": json.loads(json.dumps(hashed_values(run.config))),
        "config_hash": run.key,
        "seed": seed,
        "data_checksum": f"sum of {getattr(run.config, 'dataset', 'signals')}",
        "metrics": metrics,
        "wall_s": 1.5,
        "device": "cpu (x86_64, 1 threads)",
        "commit": "0123456789ab",
        "command": " ".join(run.command),
        "best_epoch": 2,
        "history": [{"rate": 1e-4, "train": 0.5, "validation": 0.6}, {"rate": 1e-4, "train": 0.4, "validation": 0.55}],
    } | changes


def write_lines(path: Path, records: Iterable[dict[str, Any]]) -> Path:
    """Records in a file, one a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return path


def etth1_records(seeds: int = 3, datasets: Iterable[str] = ("ETTh1",)) -> list[dict[str, Any]]:
    """iTransformer, every attention and horizon; errors rise with the horizon and the attention's place."""
    records = []
    for (place, attention), dataset in product(enumerate(ATTENTIONS), datasets):
        for step, horizon in enumerate(("96", "192", "336", "720")):
            (job,) = cell_of(
                "forecast-full", dataset=dataset, horizon=horizon, backbone="itransformer", variant=attention
            ).jobs
            for seed in range(seeds):
                mse = 0.4 + 0.02 * step + 0.001 * place + 0.0002 * seed
                records.append(record_of(job, {"mse": mse, "mae": mse + 0.01}, seed=FIRST_SEED + seed))
    return records


def small_layer(tokens: int, structure: Structure = "dense", heads: int = 2) -> TemporalOperatorAttention:
    """A layer with operators of a structure, of which head 2 is the largest."""
    torch.manual_seed(0)
    layer = TemporalOperatorAttention(2 * heads, heads, tokens, "relu", structure=structure, operator_std=0.1)
    with torch.no_grad():
        for operator in (layer.s1, layer.s2):
            for parameter in operator.parameters():
                parameter[0].mul_(0.5)
    return layer


def read_page(path: Path) -> dict[str, Any]:
    """The data of a page that `toa report` wrote."""
    found = re.search(r'id="data">([A-Za-z0-9+/=\s]+)<', path.read_text(encoding="utf-8"))
    assert found is not None
    content: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(found[1])))
    return content
