"""Pages of estimators' results in a real browser; see `tests/report/browser.py` for how it is found and started."""

import pytest

from tests.report.browser import NAMES, chromium, find_browser, open_page

pytestmark = pytest.mark.skipif(
    find_browser() is None,
    reason=f"needs Playwright (the extra browser) and Chromium: $CHROME, or one of {', '.join(NAMES)} on the path",
)


@pytest.fixture(scope="module")
def browser():
    with chromium() as one:
        yield one


def test_a_forecast_can_be_read_zoomed_and_its_columns_turned_off(browser, forecast_page):
    model, path = forecast_page
    seen: list[str] = []
    page = open_page(browser, path, seen=seen)
    charts = page.locator(".chart svg")
    assert charts.count() == 3
    assert page.locator(".chart h3").all_text_contents() == list(model.columns_)
    # the last row, then one to the left
    charts.first.focus()
    page.keyboard.press("ArrowRight")
    last = page.locator(".readout").first.inner_text()
    assert last.startswith("2024-03-09 19:00: seasonal naive ")
    assert "80% interval " in last
    assert "drift" not in last
    page.keyboard.press("ArrowLeft")
    assert page.locator(".readout").first.inner_text().startswith("2024-03-09 18:00: ")
    # a line is turned on, and not the column of that name
    page.get_by_role("checkbox", name="drift").last.check()
    assert page.locator(".chart svg").first.locator("polyline[data-name=drift]").count() == 1
    page.locator(".chart svg").first.hover(position={"x": 600, "y": 60})
    assert page.locator(".readout").first.inner_text() != last
    # dragging shows a shorter time
    labels = page.locator(".chart svg").first.locator("text.when")
    before = labels.all_text_contents()
    page.mouse.down()
    page.locator(".chart svg").first.hover(position={"x": 800, "y": 60})
    page.mouse.up()
    assert labels.all_text_contents() != before
    page.get_by_role("button", name="Show all").click()
    assert labels.all_text_contents()[0].startswith("2024-03-0")
    assert len(labels.all_text_contents()) > len(before)
    page.get_by_role("checkbox", name="drift").first.uncheck()
    assert page.locator(".chart h3").count() == 2
    assert page.locator("#heat").count() == 1
    assert seen == []


def test_an_event_is_shown_by_its_button(browser, event_page):
    seen: list[str] = []
    page = open_page(browser, event_page[-1], seen=seen)
    page.locator(".chart select").select_option("1")
    before = page.locator(".chart svg").first.get_attribute("aria-label")
    page.get_by_role("button", name="1", exact=True).click()
    assert (before, page.locator(".chart svg").first.get_attribute("aria-label")) == ("p, score", "q, score")
    labels = page.locator(".chart svg").first.locator("text.when").all_text_contents()
    assert all("2023-03-01" < label < "2023-05-31" for label in labels)
    for kind in ("event", "known"):
        assert page.locator(f".chart svg >> nth=0 >> rect.{kind}").count() >= 1
    assert seen == []


def test_a_cell_shows_the_cases_behind_it(browser, case_page):
    seen: list[str] = []
    page = open_page(browser, case_page[-1], seen=seen)
    cell = page.locator(".matrix button").first
    cell.click()
    assert page.locator(".cases h3").first.inner_text() == cell.get_attribute("aria-label")
    assert page.locator(".cases tbody tr").count() == int(cell.inner_text())
    last = page.locator(".cases tbody button").last
    last.click()
    assert page.get_by_role("heading", name=f"case {last.inner_text()}", exact=True).count() == 1
    assert page.locator(".cases svg").count() == 2
    assert seen == []


@pytest.mark.parametrize(("name", "dark"), [("forecast_page", False), ("event_page", True), ("case_page", True)])
def test_no_page_scrolls_sideways_on_a_phone(browser, request, name, dark):
    seen: list[str] = []
    page = open_page(browser, request.getfixturevalue(name)[-1], width=360, height=740, dark=dark, seen=seen)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    wide = "[...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth).length"
    assert page.evaluate(wide) == 0
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, colour.strip("rgb()").split(","))) < 200) is dark
    assert seen == []
