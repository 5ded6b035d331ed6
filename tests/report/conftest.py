"""A small comparison with the paper, for the tests of its page."""

from pathlib import Path

import pytest

from tests.report.paper_cases import cell_of, etth1_records, hide_data, keep_model, record_of, write_lines
from toa.experiments.records import write_record
from toa.report.page import write_report
from toa.report.paper import PaperReport, make_report


@pytest.fixture(scope="session")
def paper_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of iTransformer on ETTh1, and a PatchTST that left its model."""
    folder = tmp_path_factory.mktemp("paper-results")
    write_lines(folder / "main.jsonl", etth1_records())
    job = cell_of("forecast-full", dataset="ETTh1", horizon="96", backbone="patchtst", variant="toa-gated").jobs[0]
    write_record(folder / "run" / "record.json", record_of(job, {"mse": 0.37, "mae": 0.4}))
    # odd, so that the middle of the picture is the middle of an entry
    keep_model(folder / "run", 13)
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
