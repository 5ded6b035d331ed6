import re
import statistics

from tests.support import ROOT
from toa.experiments import read_record

FOLDER = ROOT / "results" / "demixing"


def medians() -> dict[str, float]:
    errors: dict[str, list[float]] = {}
    for path in FOLDER.glob("*.json"):
        record = read_record(path)
        errors.setdefault(record["name"], []).append(record["metrics"]["mse"])
    assert all(len(values) == 3 for values in errors.values())
    return {name: statistics.median(values) for name, values in errors.items()}


def test_stored_runs_reach_the_published_errors():
    found = medians()
    assert found["toa-gated"] <= 0.0024
    assert found["toa-relu"] <= 0.0035


def test_the_readme_shows_the_stored_medians():
    readme = (ROOT / "README.md").read_text()
    for system, name in (("TOA-Gated", "toa-gated"), ("TOA-ReLU", "toa-relu"), ("softmax attention", "softmax")):
        shown = re.search(rf"^\| {system} \| (0\.\d+) \|", readme, flags=re.MULTILINE)
        assert shown is not None, system
        assert float(shown.group(1)) == round(medians()[name], 5)


def test_stored_runs_share_their_test_signals_and_name_their_command():
    records = [read_record(path) for path in FOLDER.glob("*.json")]
    assert len({record["data_checksum"] for record in records}) == 1
    assert all(record["command"].startswith("toa demix --preset paper") for record in records)
    assert all("H200" in record["device"] for record in records)
