"""The page in a real browser; see `tests/report/browser.py` for how it is found and started."""

import json
import shutil

import pytest

from tests.report.browser import NAMES, Browser, find_browser
from toa.report.operators import picture_offset

pytestmark = pytest.mark.skipif(
    find_browser() is None,
    reason=f"needs Chromium: $CHROME is not set, and none of {', '.join(NAMES)} is here; apt-get install chromium",
)

ROWS = "[...document.querySelectorAll('#numbers-table tbody tr')]"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    executable = find_browser()
    assert executable is not None
    profile = tmp_path_factory.mktemp("profile")
    with Browser(executable, profile) as one:
        yield one
    shutil.rmtree(profile, ignore_errors=True)


@pytest.fixture
def page(browser, paper_out):
    # leave the page first: opening the same address again would keep its state
    browser.call("Page.navigate", url="about:blank")
    browser.open(paper_out / "index.html")
    return browser


def column(page, index):
    return page.run(f"{ROWS}.map(row => row.cells[{index}].textContent)")


def test_the_page_makes_no_request_and_logs_no_error(page):
    assert {url.split(":")[0] for url in page.requests} <= {"file", "data", "about"}
    assert page.complaints == []
    assert page.run("document.querySelectorAll('main section[id]').length") == 6


def test_a_column_sorts_by_mouse_and_keyboard(page):
    head = "#numbers-table th:nth-child(6)"
    shown = [float(text.split(" ")[0]) for text in column(page, 5)]
    assert len(shown) == 34
    page.click(f"{head} button")
    ascending = [float(text.split(" ")[0]) for text in column(page, 5)]
    assert ascending == sorted(shown) != shown
    assert page.run(f"document.querySelector('{head}').getAttribute('aria-sort')") == "ascending"
    # the button has the focus now
    page.press("Enter")
    assert [float(text.split(" ")[0]) for text in column(page, 5)] == sorted(shown, reverse=True)
    assert page.run(f"document.querySelector('{head}').getAttribute('aria-sort')") == "descending"
    page.click("#numbers-table th:nth-child(1) button")
    # by number inside names: 96 comes before 192
    assert list(dict.fromkeys(column(page, 0))) == [
        f"ETTh1 {horizon}{backbone}, {metric}"
        for horizon in (96, 192, 336, 720)
        for backbone in (("patchtst", "itransformer") if horizon == 96 else ("itransformer",))
        for metric in ("mse", "mae")
    ]


def test_filters_select_rows(page):
    page.choose("#filter-backbone", "patchtst")
    assert set(column(page, 1)) == {"patchtst"}
    assert page.run("document.getElementById('count').textContent") == "2 of 936 numbers"
    page.choose("#filter-status", "")
    page.choose("#filter-dataset", "Solar")
    page.choose("#filter-task", "forecast")
    assert page.run("document.getElementById('count').textContent") == "36 of 936 numbers"
    assert set(column(page, 5)) == {"no data"}
    page.click("#filters button[type=reset]")
    page.wait("document.getElementById('count').textContent === '936 of 936 numbers'")


def test_a_number_opens_its_record_and_equals_it(page, paper_out):
    page.choose("#filter-attention", "toa-relu")
    page.choose("#filter-metric", "mae")
    page.click("#numbers-table tbody tr a.number")
    page.wait("document.getElementById('detail').open")
    assert page.run("document.getElementById('detail-title').textContent") == "ETTh1 96, itransformer, toa-relu, mae"
    shown = page.run("document.querySelector('#numbers-table tbody a.number').textContent")
    link = "document.querySelector('#detail section.record a')"
    path, words = page.run(f"[{link}.getAttribute('href'), {link}.parentNode.textContent]")
    line = int(words.rpartition(" ")[2])
    stored = [json.loads(text) for text in (paper_out / path).read_text().splitlines()][line - 1 : line + 2]
    mean = sum(record["metrics"]["mae"] for record in stored) / 3
    assert shown.split(" ")[0] == f"{mean:.4f}"
    hashes = page.run("[...document.querySelectorAll('#detail section.record')].map(node => node.dataset.hash)")
    assert hashes == [record["config_hash"] for record in stored]
    commands = page.run("[...document.querySelectorAll('#detail code.command')].map(node => node.textContent)")
    assert commands == [record["command"] for record in stored]
    # a solid and a dashed curve for each seed
    assert page.run("document.querySelectorAll('#detail .learning polyline').length") == 6
    page.press("Escape")
    page.wait("!document.getElementById('detail').open")
    page.wait("location.hash === '#numbers'")


def test_an_operator_can_be_read_entry_by_entry(page, paper_report):
    (model,) = paper_report.operators
    exact = picture_offset(model["pictures"][1])
    page.choose("#operator-part", "1")
    assert "S2, head 2" in page.run("document.getElementById('heat').getAttribute('aria-label')")
    page.run("document.getElementById('heat').focus()")
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        page.press(key)
    words, _, value = page.run("document.getElementById('readout').textContent").rpartition(": ")
    assert words == "output 2, input 3"
    assert float(value) == pytest.approx(exact[1, 2], rel=1e-3)
    curves = "document.querySelectorAll('#response polyline').length"
    assert page.run(curves) == 1
    page.press("Enter")
    assert page.run(curves) == 2
    page.choose("#operator-shown", "1")
    page.click("#heat")
    words, _, value = page.run("document.getElementById('readout').textContent").rpartition(": ")
    assert words == "output 7, input 7"
    assert float(value) == pytest.approx(1 + exact[6, 6], rel=1e-3)
    colours = "new Set(document.getElementById('heat').getContext('2d').getImageData(0, 0, 13, 13).data).size"
    assert page.run(colours) > 20


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_never_scrolls_sideways_and_dark_mode_is_dark(page, paper_out, dark):
    page.open(paper_out / "index.html", width=360, height=740, dark=dark)
    assert page.run("document.documentElement.scrollWidth") <= 360
    colour = page.run("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, colour.strip("rgb()").split(","))) < 200) is dark
    assert page.run("getComputedStyle(document.querySelector('#numbers-table .wide')).display") == "none"
    page.run("document.querySelector('#numbers-table a.number').click()")
    page.wait("document.getElementById('detail').open")
    assert page.run("document.documentElement.scrollWidth") <= 360


def test_a_link_opens_a_number(page, paper_out):
    number = "document.querySelector('#numbers-table a.number')"
    place = page.run(f"{number}.getAttribute('href')")
    page.run(f"location.hash = {json.dumps(place)}")
    page.wait("document.getElementById('detail').open")
    shown = page.run(f"{number}.textContent").split(" ")[0]
    assert shown in page.run("document.getElementById('detail').textContent")
