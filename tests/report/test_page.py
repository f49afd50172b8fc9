"""The page in a browser: what it loads, what it says, and what keys and buttons do."""

from __future__ import annotations

import importlib.util
import re
from typing import TYPE_CHECKING

import pytest

from dse.report import write_report
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install it")
# Benchmarks are scripts, not a package.
_spec = importlib.util.spec_from_file_location(
    "report_benchmark", ROOT / "benchmarks" / "report.py"
)
assert _spec is not None
assert _spec.loader is not None
_benchmark = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_benchmark)
chromium, synthetic_study = _benchmark.chromium, _benchmark.synthetic_study
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(chromium() is None, reason="no Chromium or Chrome on the PATH"),
]

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
def browser() -> Iterator[Browser]:
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield running
        running.close()


class Opened:
    """A page with what it asked for and what it complained about."""

    def __init__(self, browser: Browser, address: str, **options) -> None:
        options.setdefault("viewport", {"width": 1400, "height": 900})
        self.context = browser.new_context(**options)
        self.page: Page = self.context.new_page()
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.context.route(re.compile("^(?!file:)"), lambda route: route.abort())
        self.go(address)

    def go(self, address: str) -> None:
        self.page.goto(address)
        ready = 'html[data-ready="1"]'
        try:
            self.page.wait_for_selector(ready, state="attached", timeout=20_000)
        except playwright.TimeoutError:
            pytest.fail(f"the page is not there after 20 s: {self.complaints}")

    def texts(self, selector: str) -> list[str]:
        return self.page.locator(selector).all_inner_texts()

    def count_line(self) -> str:
        return self.page.locator("#page").inner_text()

    def see_all(self) -> None:
        """Scrolls through, so that every plot is drawn."""
        for plot in self.page.locator(".plot").all():
            if plot.is_visible():
                plot.scroll_into_view_if_needed()
                plot.locator(".main-svg").first.wait_for(state="attached")


@pytest.fixture
def opened(browser, address) -> Iterator[Opened]:
    seen = Opened(browser, address)
    yield seen
    complaints = seen.complaints
    seen.context.close()
    assert complaints == []


def test_the_page_asks_for_nothing_but_itself(opened, address):
    opened.see_all()
    # Plotly draws through `blob:` or `data:` at most; neither leaves the page.
    assert [url for url in opened.requests if url.split(":")[0] not in ("blob", "data")] == [
        address
    ]


def test_all_plots_are_drawn_when_seen_and_not_before(opened):
    plots = opened.page.locator(".plot")
    drawn = opened.page.locator(".plot.js-plotly-plot")
    assert 1 <= drawn.count() < plots.count()
    opened.see_all()
    visible = [plot for plot in plots.all() if plot.is_visible()]
    assert all("js-plotly-plot" in (plot.get_attribute("class") or "") for plot in visible)


def test_every_plot_has_a_name(opened):
    plots = opened.page.locator(".plot").all()
    assert plots
    for plot in plots:
        assert plot.get_attribute("aria-label") or plot.get_attribute("aria-labelledby")


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
    assert order[1] in opened.page.locator("#said").inner_text()
    opened.page.keyboard.press("ArrowUp")
    opened.page.keyboard.press(" ")
    assert opened.page.input_value("#candidate") == order[0]


def test_a_row_without_details_says_so(opened, study):
    numbers = {record.number for record in study.records if not record.values}
    number = min(numbers)
    opened.page.locator(f'#all-table tr[data-trial="{number}"]').click()
    assert "no details" in opened.page.locator("#said").inner_text()


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


#: Contrast of every visible text against what lies under it (WCAG 2.2, relative luminance). A
#: canvas of one pixel mixes the colours as the browser does.
CONTRAST = """() => {
  const context = Object.assign(document.createElement("canvas"), { width: 1, height: 1 })
    .getContext("2d", { willReadFrequently: true });
  const paint = (colours) => {
    context.fillStyle = "#fff";
    context.fillRect(0, 0, 1, 1);
    for (const colour of colours) { context.fillStyle = colour; context.fillRect(0, 0, 1, 1); }
    const [r, g, b] = [...context.getImageData(0, 0, 1, 1).data].map((v) => v / 255)
      .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = new Map();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || element.closest("svg, script, noscript")) continue;
    if (!element.checkVisibility()) continue;
    const under = [];
    for (let at = element; at; at = at.parentElement) {
      under.unshift(getComputedStyle(at).backgroundColor);
    }
    const ink = getComputedStyle(element).color, key = [...under, ink].join("|");
    if (found.has(key)) continue;
    const a = paint(under), b = paint([...under, ink]);
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    found.set(key, [ratio, element.outerHTML.slice(0, 90)]);
  }
  return [...found.values()];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out(browser, address, scheme):
    seen = Opened(browser, address, color_scheme=scheme)
    ratios = seen.page.evaluate(CONTRAST)
    seen.context.close()
    assert len(ratios) > 5
    assert [found for found in ratios if found[0] < 4.5] == []


#: What reaches over the right edge of the window, but for what scrolls in a box of its own.
OUTSIDE = """() => [...document.querySelectorAll("body *")].filter((element) =>
  !element.closest(".scroll, pre, .hidden, .skip, svg") && element.checkVisibility() &&
  element.getBoundingClientRect().right > innerWidth + 1)
  .map((element) => element.outerHTML.slice(0, 90))"""


@pytest.mark.parametrize("width", [1400, 390])
def test_nothing_is_wider_than_the_window(browser, address, width):
    seen = Opened(browser, address, viewport={"width": width, "height": 900})
    seen.see_all()
    widest = seen.page.evaluate("document.documentElement.scrollWidth")
    outside = seen.page.evaluate(OUTSIDE)
    seen.context.close()
    assert outside == []
    assert widest <= width


def test_paper(opened, tmp_path):
    page = opened.page
    path = tmp_path / "report.pdf"
    page.emulate_media(color_scheme="dark")
    page.pdf(path=path, prefer_css_page_size=True)
    data = path.read_bytes()
    assert data.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", data)) >= 2
    assert len(data) > 20_000
    # Controls and the table of all trials are not on it.
    page.emulate_media(media="print")
    assert not page.locator("#all-table").is_visible()
    assert not page.locator("#theme").is_visible()
    assert page.locator("#front-table").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_plots_are_drawn_for_paper_and_afterwards_again(opened):
    page = opened.page
    opened.see_all()
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    visible = [plot for plot in page.locator(".plot.js-plotly-plot").all() if plot.is_visible()]
    assert all(plot.evaluate("p => p._fullLayout.width") <= 680 for plot in visible)
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    page.wait_for_timeout(500)
    page.locator("#scatter").scroll_into_view_if_needed()
    page.wait_for_timeout(500)
    assert page.locator("#scatter").evaluate("p => p._fullLayout.width") > 680


def test_a_browser_that_cannot_unpack_says_so(browser, address):
    context = browser.new_context()
    page = context.new_page()
    page.add_init_script("delete window.DecompressionStream")
    page.goto(address)
    assert page.locator("#too-old").is_visible()
    context.close()


def test_5000_trials_are_small_and_all_there(browser, tmp_path):
    path = tmp_path / "large.html"
    write_report(synthetic_study(5_000), path)
    assert path.stat().st_size < 5e6
    seen = Opened(browser, path.as_uri())
    assert seen.count_line() == "5,000 configurations, page 1 of 100"
    assert len(seen.texts(ROWS)) == 50
    seen.page.fill("#filter", "4321")
    assert "4321" in seen.texts(ROWS)[0].replace(",", "")
    assert seen.complaints == []
    seen.context.close()
