"""Records, layers and pages for tests of reports, made without a run."""

import base64
import gzip
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from toa.experiments import resolve
from toa.experiments.records import hashed_values
from toa.experiments.run import Job
from toa.nn import Structure, TemporalOperatorAttention

SEED = 2024


def hide_data(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let no data set be found, whatever this machine has."""
    for name in ("TOA_DATA", "XDG_CACHE_HOME"):
        patch.setenv(name, str(folder))


def job_of(backbone: str, attention: str, horizon: int = 96) -> Job:
    """A run on ETTh1."""
    names = {"dataset": "ETTh1", "horizon": horizon, "backbone": backbone, "attention": attention}
    config = resolve("forecast", "toa-paper", seed=SEED, **names)
    return Job(config=config, label=f"ETTh1 {horizon}, {backbone}/{attention}", command=("toa", "run"))


def record_of(job: Job, metrics: dict[str, float], *, seed: int = SEED, **changes: Any) -> dict[str, Any]:
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
