"""A small comparison with the paper."""

from pathlib import Path

import pytest

from tests.paper.report.cases import cell_of, etth1_records
from tests.report.cases import hide_data, record_of, small_layer, write_lines
from toa.experiments.records import write_record
from toa.report.operators import OPERATORS_FILE, model_label, model_pictures, write_pictures
from toa_paper.report import make_report, write_report
from toa_paper.report.paper import PaperReport


@pytest.fixture(scope="session")
def paper_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of iTransformer on ETTh1, and a PatchTST with pictures of operators."""
    folder = tmp_path_factory.mktemp("paper-results")
    write_lines(folder / "main.jsonl", etth1_records())
    job = cell_of("forecast-full", dataset="ETTh1", horizon="96", backbone="patchtst", variant="toa-gated").jobs[0]
    record = record_of(job, {"mse": 0.37, "mae": 0.4})
    write_record(folder / "run" / "record.json", record)
    # odd, so that the middle of the picture is the middle of an entry
    model = model_pictures(small_layer(13), model_label(record))
    write_pictures([{"config_hash": record["config_hash"], **(model or {})}], folder / OPERATORS_FILE)
    (folder / "broken.jsonl").write_text('{"task": "forec')
    return folder


@pytest.fixture(scope="session")
def paper_report(paper_results: Path) -> PaperReport:
    with pytest.MonkeyPatch.context() as patch:
        hide_data(patch, paper_results)
        return make_report([paper_results], tables=["forecast-full", "forecast-average"])


@pytest.fixture(scope="session")
def paper_out(paper_report: PaperReport, paper_results: Path) -> Path:
    folder = paper_results.parent / "paper-report"
    write_report(paper_report, folder)
    return folder
