import base64
import gzip
import re
from statistics import fmean

import pytest

from tests.paper.report.cases import ATTENTIONS, cell_of, etth1_records
from tests.report.cases import read_page, record_of, write_lines
from toa.training.diagnostics import describe_operators
from toa_paper.report.page import write_report
from toa_paper.report.paper import make_report
from toa_paper.report.paper_text import cell_text


def test_every_number_of_the_page_links_to_its_records(paper_out, paper_results):
    data = read_page(paper_out / "index.html")
    measured = [line for line in data["lines"] if line["status"] == "measured"]
    assert len(measured) == 4 * 4 * 2 + 2
    for line in measured:
        records = [data["records"][place] for place in line["records"]]
        assert line["mean"] == pytest.approx(fmean(record["metrics"][line["read"]] for record in records), rel=1e-5)
        for record in records:
            assert (paper_out / data["files"][record["file"]]).exists()
            assert record["command"].startswith("toa run --task forecast --protocol toa-paper --dataset ETTh1")
            assert len(record["history"]) == 2
    (line,) = [x for x in measured if (x["data"], x["attention"], x["metric"]) == ("ETTh1 720", "toa-softmax", "mse")]
    assert (line["published"], line["text"], line["seeds"]) == ("0.508", "0.4632 ± 0.0002", 3)
    assert line["difference"] == pytest.approx(0.4632 - 0.508)
    assert data["records"][line["records"][0]]["line"] == 46


def test_all_published_numbers_are_on_the_page_whether_run_or_not(paper_out, paper_report):
    lines = read_page(paper_out / "index.html")["lines"]
    assert len(lines) == 864 + 72
    assert all(line["published"] for line in lines)
    assert all(line["reason"] for line in lines if line["status"] != "measured")


def test_the_page_is_self_contained(paper_out):
    page = (paper_out / "index.html").read_text()
    assert "{{" not in page
    # no address except an XML namespace
    assert set(re.findall(r"https?://[^\s\"'<)]+", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(link|img|script)[^>]+(src|href)=", page)
    assert 'name="viewport"' in page
    assert "prefers-color-scheme: dark" in page


def test_the_same_records_give_the_same_page(paper_report, paper_out, tmp_path):
    write_report(paper_report, tmp_path / "report")
    ours = read_page(tmp_path / "report" / "index.html")
    theirs = read_page(paper_out / "index.html")
    # relative paths to the records differ
    assert {**ours, "files": None} == {**theirs, "files": None}
    for path in paper_out.iterdir():
        if path.name != "index.html":
            assert (tmp_path / "report" / path.name).read_text() == path.read_text()


def test_operators_of_a_model_are_on_the_page_with_their_record(paper_out):
    data = read_page(paper_out / "index.html")
    (model,) = data["operators"]
    assert data["records"][model["record"]]["label"] == model["label"] == "ETTh1 96, patchtst/toa-gated, seed 2024"
    assert [picture["part"] for picture in model["pictures"]] == ["S1", "S2"]


def test_skipped_records_are_on_the_page_and_in_the_text(paper_out, paper_results):
    said = f"{paper_results / 'broken.jsonl'}: it is not valid JSON"
    assert any(said in words for words in read_page(paper_out / "index.html")["skipped"])
    assert said in (paper_out / "report.md").read_text()


def test_markdown_has_ours_and_in_brackets_the_published_number(paper_report, paper_out):
    text = (paper_out / "report.md").read_text()
    assert "| ETTh1 96 | 0.4002 ± 0.0002 (0.385, +0.0152) | 0.4012 ± 0.0002 (0.386, +0.0152) |" in text
    assert "| ETTh1 96 | - (0.370) | 0.3700 (0.373, -0.0030) |" in text
    assert "## Significance" in text
    short = (paper_out / "summary.md").read_text()
    assert short.startswith(
        "## What was found\n\n- TOA helps: in none of the comparisons over all data sets of a backbone."
    )
    assert "34 of 936 published numbers are measured here, from 49 records." in short
    assert len(short.splitlines()) < 40
    line = next(line for line in paper_report.entries if line.number.dataset == "Solar")
    assert cell_text(line) == f"- ({line.number.text})"


def test_attentions_are_tested_against_softmax(paper_report, tmp_path):
    three = write_lines(tmp_path / "three.jsonl", etth1_records(1, ("ETTh1", "ETTh2", "ETTm1")))
    report = make_report([three], tables=["forecast-full"])
    write_report(report, tmp_path)
    (contest,) = report.contests
    assert (contest.baseline, contest.metric) == ("itransformer/softmax", "mse")
    assert [row.system for row in contest.rows] == [f"itransformer/{name}" for name in ATTENTIONS]
    assert [row.losses for row in contest.rows] == [None, 3, 3, 3]
    assert contest.diagram.count("<svg") == 1
    assert (tmp_path / contest.file).read_text() == contest.diagram
    assert f"![Critical-difference diagram]({contest.file})" in (tmp_path / "report.md").read_text()
    alone = next(one for one in paper_report.contests if one.backbone == "patchtst")
    assert alone.scores is None
    assert "baseline 'patchtst/softmax' must name one system" in alone.notes[0]


def test_a_record_cannot_inject_markup(tmp_path):
    job = cell_of("forecast-full", dataset="ETTh1", horizon="96", backbone="itransformer", variant="softmax").jobs[0]
    evil = record_of(job, {"mse": 0.4}, command="</script><script>alert(1)</script>", device="<img src=x onerror=y>")
    write_report(make_report([write_lines(tmp_path / "x.jsonl", [evil])], tables=["forecast-full"]), tmp_path / "out")
    page = (tmp_path / "out" / "index.html").read_text()
    assert page.count("</script>") == 2
    assert "onerror" not in page
    assert read_page(tmp_path / "out" / "index.html")["records"][0]["command"] == evil["command"]


def test_the_page_states_what_operators_contribute(tmp_path):
    job = cell_of("forecast-full", dataset="ETTh1", horizon="96", backbone="patchtst", variant="toa-gated").jobs[0]
    record = record_of(job, {"mse": 0.4}, operators={"contributions": {"operators": 0.031}})
    path = write_lines(tmp_path / "x.jsonl", [record])
    write_report(make_report([path], tables=["forecast-full"]), tmp_path / "out")
    (shown,) = read_page(tmp_path / "out" / "index.html")["records"]
    assert [shown["operators"]] == describe_operators(record)


def test_packed_data_do_not_depend_on_the_time(paper_out):
    packed = re.search(r'id="data">([^<]+)<', (paper_out / "index.html").read_text())
    assert packed is not None
    raw = base64.b64decode(packed[1])
    assert raw[4:8] == b"\0\0\0\0"
    assert gzip.decompress(raw).startswith(b'{"headline":')
