"""The page in a real browser; see `tests/report/browser.py` for how it is found and started."""

import json

import pytest

from tests.report.browser import NAMES, chromium, find_browser, open_page
from tests.support import ROOT
from toa.report.operators import picture_offset

pytestmark = pytest.mark.skipif(
    find_browser() is None,
    reason=f"needs Playwright (the extra browser) and Chromium: $CHROME, or one of {', '.join(NAMES)} on the path",
)

ROWS = "[...document.querySelectorAll('#numbers-table tbody tr')]"


@pytest.fixture(scope="module")
def browser():
    with chromium() as one:
        yield one


@pytest.fixture
def page(browser, paper_out):
    one = open_page(browser, paper_out / "index.html")
    yield one
    one.close()


def column(page, index):
    return page.evaluate(f"{ROWS}.map(row => row.cells[{index}].textContent)")


def test_the_page_makes_no_request_and_logs_no_error(browser, paper_out):
    requests = []
    complaints = []
    page = browser.new_page()
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text))
    page.goto((paper_out / "index.html").as_uri())
    page.wait_for_selector("body[data-ready=yes]")
    assert {url.split(":")[0] for url in requests} <= {"file", "data"}
    assert complaints == []
    assert page.evaluate("document.querySelectorAll('main section[id]').length") == 8


def test_a_column_sorts_by_mouse_and_keyboard(page):
    head = "#numbers-table th:nth-child(6)"
    shown = [float(text.split(" ")[0]) for text in column(page, 5)]
    assert len(shown) == 34
    page.click(f"{head} button")
    ascending = [float(text.split(" ")[0]) for text in column(page, 5)]
    assert ascending == sorted(shown) != shown
    assert page.evaluate(f"document.querySelector('{head}').getAttribute('aria-sort')") == "ascending"
    # the button has the focus now
    page.keyboard.press("Enter")
    assert [float(text.split(" ")[0]) for text in column(page, 5)] == sorted(shown, reverse=True)
    assert page.evaluate(f"document.querySelector('{head}').getAttribute('aria-sort')") == "descending"
    page.click("#numbers-table th:nth-child(1) button")
    # by number inside names: 96 comes before 192
    assert list(dict.fromkeys(column(page, 0))) == [f"ETTh1 {horizon}" for horizon in (96, 192, 336, 720)]


def test_filters_select_rows(page):
    page.select_option("#filter-backbone", "patchtst")
    assert set(column(page, 1)) == {"patchtst"}
    assert page.text_content("#count") == "2 of 936 numbers"
    page.select_option("#filter-status", "")
    page.select_option("#filter-dataset", "Solar")
    page.select_option("#filter-task", "forecast")
    assert page.text_content("#count") == "36 of 936 numbers"
    assert set(column(page, 5)) == {"no data"}
    page.click("#filters button[type=reset]")
    page.wait_for_function("document.getElementById('count').textContent === '936 of 936 numbers'")


def test_a_number_opens_its_record_and_equals_it(page, paper_out):
    page.select_option("#filter-attention", "toa-relu")
    page.select_option("#filter-metric", "mae")
    page.click("#numbers-table tbody tr a.number")
    page.wait_for_function("document.getElementById('detail').open")
    assert page.text_content("#detail-title") == "ETTh1 96, itransformer, toa-relu, mae"
    shown = page.evaluate("document.querySelector('#numbers-table tbody a.number').textContent")
    link = "document.querySelector('#detail section.record a')"
    path, words = page.evaluate(f"[{link}.getAttribute('href'), {link}.parentNode.textContent]")
    line = int(words.rpartition(" ")[2])
    stored = [json.loads(text) for text in (paper_out / path).read_text().splitlines()][line - 1 : line + 2]
    mean = sum(record["metrics"]["mae"] for record in stored) / 3
    assert shown.split(" ")[0] == f"{mean:.4f}"
    hashes = page.evaluate("[...document.querySelectorAll('#detail section.record')].map(node => node.dataset.hash)")
    assert hashes == [record["config_hash"] for record in stored]
    commands = page.evaluate("[...document.querySelectorAll('#detail code.command')].map(node => node.textContent)")
    assert commands == [record["command"] for record in stored]
    # a solid and a dashed curve for each seed
    assert page.evaluate("document.querySelectorAll('#detail .learning polyline').length") == 6
    page.keyboard.press("Escape")
    page.wait_for_function("!document.getElementById('detail').open")
    page.wait_for_function("location.hash === '#numbers'")


def test_an_operator_can_be_read_entry_by_entry(page, paper_report):
    (model,) = paper_report.operators
    exact = picture_offset(model["pictures"][1])
    page.select_option("#operator-part", "1")
    assert "S2, head 2" in page.evaluate("document.getElementById('heat').getAttribute('aria-label')")
    page.evaluate("document.getElementById('heat').focus()")
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    words, _, value = page.text_content("#readout").rpartition(": ")
    assert words == "output 2, input 3"
    assert float(value) == pytest.approx(exact[1, 2], rel=1e-3)
    curves = "document.querySelectorAll('#response polyline').length"
    assert page.evaluate(curves) == 1
    page.keyboard.press("Enter")
    assert page.evaluate(curves) == 2
    page.select_option("#operator-shown", "1")
    page.click("#heat")
    words, _, value = page.text_content("#readout").rpartition(": ")
    assert words == "output 7, input 7"
    assert float(value) == pytest.approx(1 + exact[6, 6], rel=1e-3)
    colours = "new Set(document.getElementById('heat').getContext('2d').getImageData(0, 0, 13, 13).data).size"
    assert page.evaluate(colours) > 20


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_never_scrolls_sideways_and_dark_mode_is_dark(browser, paper_out, dark):
    page = open_page(browser, paper_out / "index.html", width=360, height=740, dark=dark)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, colour.strip("rgb()").split(","))) < 200) is dark
    page.evaluate("document.querySelector('#numbers-table a.number').click()")
    page.wait_for_function("document.getElementById('detail').open")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_no_table_is_cut_on_a_phone(browser):
    page = open_page(browser, ROOT / "results" / "report" / "index.html", width=360, height=740)
    cut = (
        "[...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth).map(one => one.id)"
    )
    assert page.evaluate(cut) == []
    assert page.evaluate("document.querySelectorAll('.scroll table').length") >= 8
    # each value has its title beside it
    first = "#recipes-table tbody tr:first-child td"
    assert page.evaluate(f"getComputedStyle(document.querySelector('{first}'), '::before').content") == '"backbone"'
    # what the numbers beyond the published ones are
    assert "under another protocol or other rules" in (page.text_content("#count") or "")


def test_the_findings_come_first_and_seeds_are_dots(page, paper_report):
    assert page.text_content("main h2") == "What was found"
    assert page.text_content("#found li") == "TOA helps: nowhere."
    dots = page.locator("#numbers-table .dots").first
    assert (dots.locator("circle").count(), dots.locator("line").count()) == (3, 1)


def test_on_paper_every_row_is_shown_and_no_table_is_wider_than_the_page(browser, paper_out):
    page = open_page(browser, paper_out / "index.html", width=720)
    page.emulate_media(media="print")
    wide = "[...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > innerWidth).map(one => one.id)"
    assert page.evaluate(wide) == []
    high = "[...document.querySelectorAll('.scroll')].filter(one => one.scrollHeight > one.clientHeight + 1).length"
    assert page.evaluate(high) == 0
    assert not page.locator("nav").is_visible()


def test_a_link_opens_a_number(page, paper_out):
    number = "document.querySelector('#numbers-table a.number')"
    place = page.evaluate(f"{number}.getAttribute('href')")
    page.evaluate(f"location.hash = {json.dumps(place)}")
    page.wait_for_function("document.getElementById('detail').open")
    shown = page.evaluate(f"{number}.textContent").split(" ")[0]
    assert shown in page.text_content("#detail")
