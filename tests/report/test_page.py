"""The page in a browser: what it loads, what it says, and what keys and buttons do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from dse.report import write_report
from tests.report.browser import Opened, synthetic_study

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow

TRIALS = 300
ROWS = "#all-table tbody tr"


@pytest.fixture(scope="module")
def study():
    return synthetic_study(TRIALS)


@pytest.fixture(scope="module")
def address(study, tmp_path_factory) -> str:
    path: Path = tmp_path_factory.mktemp("page") / "report.html"
    write_report(study, path)
    return path.as_uri()


@pytest.fixture(scope="module")
def tab(browser: Browser, address: str) -> Iterator[Opened]:
    """One tab for the tests of this module."""
    seen = Opened(browser, address)
    yield seen
    seen.context.close()


@pytest.fixture
def opened(tab: Opened, address: str) -> Iterator[Opened]:
    """The page as it opens."""
    tab.page.emulate_media(media="null", color_scheme="null")
    tab.page.set_viewport_size({"width": 1400, "height": 900})
    tab.requests.clear()
    tab.go(address)
    yield tab
    complaints, tab.complaints = tab.complaints, []
    assert complaints == []


def test_plots_are_drawn_when_seen_and_the_page_asks_for_nothing(opened, address):
    plots = opened.page.locator(".plot")
    assert 1 <= opened.page.locator(".plot.js-plotly-plot").count() < plots.count()
    opened.see_all()
    for plot in plots.all():
        assert plot.get_attribute("aria-label") or plot.get_attribute("aria-labelledby")
        drawn = "js-plotly-plot" in (plot.get_attribute("class") or "")
        assert drawn or not plot.is_visible()
    # Plotly draws through `blob:` or `data:` at most; neither leaves the page.
    asked = [url for url in opened.requests if url.split(":")[0] not in ("about", "blob", "data")]
    assert asked == [address]


def test_words_filter_the_table(opened, study):
    opened.page.fill("#filter", "h100 bf16")
    wanted = [
        record
        for record in study.records
        if {("platform", "h100_sxm"), ("precision", "bf16")} <= set(record.parameters)
    ]
    assert opened.count_line().startswith(f"{len(wanted)} of {TRIALS} configurations")
    assert len(opened.texts(ROWS)) == min(50, len(wanted))
    opened.page.click("#clear")
    assert opened.count_line() == f"{TRIALS} configurations, page 1 of {-(-TRIALS // 50)}"


def test_values_and_statuses_filter_the_table(opened, study):
    opened.page.click("#parameter-box summary")
    opened.page.select_option('#parameter-filters select[data-parameter="world_size"]', "8")
    opened.page.select_option("#status", "infeasible")
    wanted = [
        record.number
        for record in study.records
        if record.status == "infeasible" and dict(record.parameters)["world_size"] == 8
    ]
    assert opened.texts(f"{ROWS} td:first-child") == [str(number) for number in wanted]


def test_columns_sort_both_ways_over_all_pages(opened, study):
    header = opened.page.locator("#all-table thead th").nth(1)
    best = sorted(record.values[0] for record in study.records if record.values)

    def first() -> float:
        return float(opened.texts(f"{ROWS} td:nth-child(2)")[0].replace(",", ""))

    assert header.get_attribute("aria-sort") == "none"
    header.locator("button").click()
    assert header.get_attribute("aria-sort") == "ascending"
    assert first() == pytest.approx(best[0] / 1e6, abs=0.006)
    header.locator("button").click()
    assert header.get_attribute("aria-sort") == "descending"
    assert first() == pytest.approx(best[-1] / 1e6, abs=0.006)
    # What was not evaluated has no value: it is last in both directions.
    for _ in range(TRIALS // 50 - 1):
        opened.page.click("#next")
    assert opened.texts(f"{ROWS} td:nth-child(2)")[-1] == "–"
    assert opened.page.locator("#next").is_disabled()


def test_the_address_keeps_what_was_chosen(opened, browser):
    opened.page.fill("#filter", "l40s & <b>")
    opened.page.fill("#filter", "l40s")
    opened.page.select_option("#status", "feasible")
    opened.page.locator("#all-table thead th button").nth(1).click()
    opened.page.click("#theme")
    opened.page.click("#theme")
    before = opened.count_line(), opened.texts(ROWS)
    again = Opened(browser, opened.page.url)
    assert (again.count_line(), again.texts(ROWS)) == before
    assert again.page.locator("html").get_attribute("data-theme") == "dark"
    assert again.page.input_value("#filter") == "l40s"
    # An address made by hand or for another study does no harm.
    strange = opened.page.url.split("#")[0] + "#sort=nothing:up&page=-7&candidate=x&theme=<b>&p.=1"
    other = Opened(browser, strange)
    assert other.count_line().startswith(f"{TRIALS} configurations, page 1")
    assert again.complaints == other.complaints == []
    again.context.close()
    other.context.close()


def test_keys_go_through_rows_and_choose(opened, study):
    rows = opened.page.locator("#front-table tbody tr")
    assert [row.get_attribute("tabindex") for row in rows.all()].count("0") == 1

    def focused() -> str:
        return opened.page.evaluate("document.activeElement.dataset.trial ?? ''")

    order = [row.get_attribute("data-trial") for row in rows.all()]
    rows.first.focus()
    opened.page.keyboard.press("End")
    assert focused() == order[-1]
    opened.page.keyboard.press("ArrowDown")
    assert focused() == order[-1]
    opened.page.keyboard.press("Home")
    opened.page.keyboard.press("ArrowDown")
    assert focused() == order[1]
    opened.page.keyboard.press("Enter")
    assert opened.page.input_value("#candidate") == order[1]
    current = opened.page.locator('#front-table tr[aria-current="true"]')
    assert current.get_attribute("data-trial") == order[1]
    assert f"#{order[1]}" in opened.texts(".said")[0]
    opened.page.keyboard.press("ArrowUp")
    opened.page.keyboard.press(" ")
    assert opened.page.input_value("#candidate") == order[0]


def test_a_row_without_details_says_so(opened, study):
    numbers = {record.number for record in study.records if not record.values}
    number = min(numbers)
    opened.page.locator(f'#all-table tr[data-trial="{number}"]').click()
    assert "no details" in opened.texts(".said")[0]


def axis_colour(page: Page) -> str:
    label = page.locator("#scatter .xtitle")
    label.wait_for(state="attached")
    return label.evaluate("label => getComputedStyle(label).fill")


def test_the_button_changes_page_and_plots(opened):
    page = opened.page

    def paper() -> str:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    light = paper(), axis_colour(page)
    page.click("#theme")
    assert (paper(), axis_colour(page)) == light
    page.click("#theme")
    page.wait_for_timeout(500)
    dark = paper(), axis_colour(page)
    assert dark[0] != light[0]
    assert dark[1] != light[1]
    page.click("#theme")
    page.emulate_media(color_scheme="dark")
    page.wait_for_timeout(500)
    assert (paper(), axis_colour(page)) == dark


def test_text_stands_out(opened):
    opened.see_all()
    assert opened.faint() == []
    opened.page.emulate_media(color_scheme="dark")
    assert opened.faint() == []


def test_the_legend_hides_marks(opened):
    page = opened.page

    def shown() -> list[bool]:
        return page.locator("#scatter").evaluate("p => p.data.map(t => t.visible !== false)")

    assert all(shown())
    entry = page.locator(".legend button", has_text="90 % interval")
    entry.click()
    assert entry.get_attribute("aria-pressed") == "false"
    assert shown().count(False) == 1
    entry.click()
    assert all(shown())


def test_contents_lead_to_sections(opened):
    page = opened.page
    links = page.locator("nav a")
    for link in links.all():
        assert page.locator(link.get_attribute("href") or "").count() == 1
    page.fill("#filter", "h100")
    before = page.evaluate("location.href")
    links.last.click()
    page.wait_for_selector("nav a:last-child[aria-current]")
    # A link within the page does not take what the address keeps.
    assert page.evaluate("location.href") == before
    assert page.evaluate("scrollY") > 1000


def test_paper(opened, tmp_path):
    page = opened.page
    path = tmp_path / "report.pdf"
    page.emulate_media(color_scheme="dark")
    page.pdf(path=path, prefer_css_page_size=True)
    data = path.read_bytes()
    assert data.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", data)) >= 2
    assert len(data) > 20_000
    opened.print_preview()
    # All that is on it is drawn; controls and the table of all trials are not on it.
    assert opened.problems() == []
    for gone in ("#all-table", "#theme", "nav"):
        assert not page.locator(gone).is_visible()
    assert page.locator("#front-table").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    # The screen is as it was.
    page.emulate_media(media="screen")
    page.set_viewport_size({"width": 1400, "height": 900})
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    opened.wait_until("document.getElementById('scatter')._fullLayout.width > 703")


def test_2000_trials_are_small_and_all_there(browser, tmp_path):
    path = tmp_path / "large.html"
    write_report(synthetic_study(2_000), path)
    assert path.stat().st_size < 2.5e6
    seen = Opened(browser, path.as_uri())
    assert seen.count_line() == "2,000 configurations, page 1 of 40"
    assert len(seen.texts(ROWS)) == 50
    seen.page.fill("#filter", "1321")
    assert "1321" in seen.texts(ROWS)[0].replace(",", "")
    assert seen.complaints == []
    seen.context.close()
