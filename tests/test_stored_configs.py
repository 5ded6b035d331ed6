import hashlib
import json
from dataclasses import asdict

import pytest

from tests.support import ROOT
from toa.experiments import config_hash, run_folder
from toa.experiments.records import hashed_values
from toa.training import TASKS

# trials of the search keep only what a choice may use; the others have scores that belong to no run
OTHERS = ("trials.jsonl", "detectors.jsonl", "agreement.jsonl", "rivals.jsonl")
# benchmarks of estimators, and the training of the pretrained forecaster
FOLDERS_OF_OTHERS = ("leaderboards", "pretraining")
FILES = [
    path
    for path in sorted((ROOT / "results").rglob("*.jsonl"))
    if not path.name.endswith(OTHERS) and path.parent.name not in FOLDERS_OF_OTHERS
]


def restrict(table, like):
    """A table with only the keys of another."""
    return {name: restrict(table[name], like[name]) for name in like} if isinstance(like, dict) else table


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT / "results")))
def test_every_stored_record_keeps_its_hash_when_its_config_is_rebuilt(path, tmp_path):
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert records
    for record in records:
        config = TASKS[record["task"]].config_from(record["config"])
        # a record may be older than some fields
        values = restrict(asdict(config), record["config"])
        text = json.dumps(values, sort_keys=True, separators=(",", ":"))
        assert hashlib.sha256(text.encode()).hexdigest()[:16] == record["config_hash"]
        if values == hashed_values(config):
            assert config_hash(config) == record["config_hash"]
        assert config.name == record["name"]
        assert run_folder(config, tmp_path).name.endswith(config_hash(config)[:8])
