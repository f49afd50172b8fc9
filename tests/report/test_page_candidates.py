"""The candidates on the page in a browser: what switches and menus do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dse.report import build_view, write_report
from dse.search.analyse import recommended_trial
from tests.report.browser import Opened
from tests.search.revise.studies import GPT_SPACE, SPACE, study_of

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser


@pytest.fixture(scope="module", params=[SPACE, GPT_SPACE], ids=["dlrm", "gpt"])
def result(request):
    return study_of(request.param).result


@pytest.fixture(scope="module")
def tab(result, browser: Browser, tmp_path_factory) -> Iterator[Opened]:
    """One tab for the tests of a study."""
    path: Path = tmp_path_factory.mktemp("page") / "report.html"
    write_report(result, path)
    seen = Opened(browser, path.as_uri())
    yield seen
    seen.context.close()


@pytest.fixture
def opened(tab: Opened) -> Iterator[Opened]:
    """The page as it opens."""
    tab.go(tab.page.url.split("#")[0])
    yield tab
    complaints, tab.complaints = tab.complaints, []
    assert complaints == []


#: The line through the front in the two objectives of the axes.
BEST = "best in these two objectives"


def traces_of(opened: Opened, plot: str) -> list[dict[str, object]]:
    """Name, number of marks and whether there are error bars of each trace that is drawn."""
    opened.page.locator(f"#{plot}").scroll_into_view_if_needed()
    opened.page.locator(f"#{plot} .main-svg").first.wait_for(state="attached")
    opened.page.wait_for_timeout(200)
    return opened.page.locator(f"#{plot}").evaluate(
        "p => p.data.map(t => ({name: t.name, count: t.x.length, bars: !!t.error_x,"
        " scale: t.marker?.showscale ?? false}))"
    )


def test_switches_of_the_front(opened, result):
    feasible = sum(record.status.value == "feasible" for record in result.records)
    front = len(result.front)
    marks = [
        trace
        for trace in traces_of(opened, "scatter")
        if trace["name"] not in ("not feasible", "90 % interval", BEST)
    ]
    assert sum(trace["count"] for trace in marks) == feasible
    assert any(trace["bars"] for trace in traces_of(opened, "scatter"))
    opened.page.check("#only-front")
    traces = traces_of(opened, "scatter")
    marks = [trace for trace in traces if trace["name"] not in ("90 % interval", BEST)]
    assert sum(trace["count"] for trace in marks) == front
    opened.page.select_option("#axis-z", "0")
    assert sum(trace["scale"] for trace in traces_of(opened, "scatter")) == 1
    # The ends of the scale are the best and the worst.
    colours = opened.page.locator("#scatter").evaluate(
        "p => p.data.filter(t => t.customdata && Array.isArray(t.marker.color))"
        ".flatMap(t => t.customdata.map((number, i) => [number, t.marker.color[i]]))"
    )
    assert len(colours) == front
    highest = max(
        (record for record in result.records if record.status.value == "feasible"),
        key=lambda record: record.values[0],
    )
    assert dict(colours)[highest.number] == "rgb(253,231,37)"


def test_every_candidate_on_the_front_has_a_time_line(opened, result):
    view = build_view(result)
    for one in view.timeline.candidates:
        opened.page.select_option("#candidate", str(one.number))
        drawn = traces_of(opened, "timeline")
        assert drawn[0] == {
            "name": "Idle",
            "count": len(one.streams),
            "bars": False,
            "scale": False,
        }
        bars = sum(len(stream.start) for stream in one.streams)
        assert sum(trace["count"] for trace in drawn[1:]) == bars
    others = {detail.number for detail in view.details} - {
        one.number for one in view.timeline.candidates
    }
    for number in sorted(others)[:1]:
        opened.page.select_option("#candidate", str(number))
        assert f"no time line of #{number}" in opened.page.locator("#timeline-note").inner_text()
        assert not opened.page.locator("#timeline").is_visible()


def test_side_by_side(opened, result):
    page = opened.page
    first, second = (record.number for record in result.front[:2])
    page.select_option("#side-a", str(first))
    page.select_option("#side-b", str(first))
    assert opened.texts("#sides-table tbody tr") == []
    page.select_option("#side-b", str(second))
    figures = build_view(result).figures
    values = dict(figures.values)
    rows = dict(
        row.split("\t")[:: row.count("\t")] for row in opened.texts("#sides-table tbody tr")
    )
    equal = page.locator("#sides-equal").inner_text()
    for figure, before, after in zip(figures.figures, values[first], values[second], strict=True):
        if before == after:
            assert before is None or figure.noun in equal
            continue
        # A share of a share would be misread.
        points = figure.unit == "%"
        change = after - before if points else 100 * (after / before - 1)
        sign = "+" if after > before else "−"
        assert rows[figure.title] == f"{sign}{abs(change):.1f} {'points' if points else '%'}"
    assert [trace["count"] for trace in traces_of(opened, "sides")] == [2] * 4


def test_axes_are_labelled(opened, result):
    opened.see_all()
    titles = opened.page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll(".plot.js-plotly-plot")]
          .map(p => [p.id, ["xaxis", "yaxis"].map(a => p._fullLayout[a].title.text)]))"""
    )
    throughput, cost = build_view(result).axes
    assert titles["scatter"] == [cost.title, throughput.title]
    assert all(any(pair) for pair in titles.values())
    # Logarithmic axes have their values written out: 1, 2, 5, 10, 20, 50 …
    assert opened.page.locator("#scaling").evaluate("p => p.layout.yaxis.type") == "log"
    labels = opened.page.locator("#scaling .ytick text").all_text_contents()
    marks = [float(label.replace(",", "")) for label in labels]
    assert len(marks) > 1
    assert marks == sorted(set(marks))
    assert {f"{mark:e}".split("e")[0].rstrip("0.") for mark in marks} <= {
        *("1", "1.5", "2", "3", "4", "5", "7")
    }


@pytest.mark.parametrize(
    "options",
    [
        {"viewport": {"width": 1400, "height": 900}},
        {"viewport": {"width": 420, "height": 860}, "has_touch": True, "is_mobile": True},
    ],
    ids=["wide", "phone"],
)
def test_nothing_overlaps_or_is_cut_off(browser, opened, options):
    seen = Opened(browser, opened.page.url, **options)
    seen.see_all()
    problems = seen.problems()
    faint = seen.faint()
    short = seen.page.evaluate(
        """() => [...document.querySelectorAll("button, select, summary, nav a")]
          .filter(e => matchMedia("(pointer: coarse)").matches && e.checkVisibility())
          .filter(e => e.getBoundingClientRect().height < 43.5 && !e.closest("table"))
          .map(e => e.outerHTML.slice(0, 80))"""
    )
    cut = seen.page.locator("#front-table").evaluate(
        "table => innerWidth > 1000 && table.scrollWidth > table.closest('.scroll').clientWidth"
    )
    headings = seen.page.evaluate(
        """() => [...document.querySelectorAll("#front-table th, #all-table th")]
          .filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)"""
    )
    seen.context.close()
    assert headings == []
    assert problems == []
    assert faint == []
    assert short == []
    assert not cut
    assert seen.complaints == []


def test_nothing_overlaps_on_paper(opened):
    opened.print_preview()
    problems = opened.problems()
    opened.page.emulate_media(media="screen")
    opened.page.set_viewport_size({"width": 1400, "height": 900})
    assert problems == []


@pytest.mark.parametrize("result", [SPACE], indirect=True, ids=["dlrm"])
def test_the_plan_is_searched_and_sorted(opened, result):
    page, plan = opened.page, recommended_trial(result).configuration.plan
    sizes = {table.name: table.size_bytes for table in build_view(result).tables}

    def names() -> list[str]:
        page.locator("#heatmap").scroll_into_view_if_needed()
        page.locator("#heatmap .main-svg").first.wait_for(state="attached")
        page.wait_for_timeout(200)
        return page.locator("#heatmap").evaluate("p => p.layout.yaxis.ticktext")

    # Only rows in view are drawn; the box scrolls to the others.
    seen = names()
    every = [table.table for table in plan.tables]
    assert 0 < len(seen) < len(every)
    assert seen == every[: len(seen)]
    cells = page.locator("#heatmap").evaluate("p => p.data[0].z")
    held = [[rank for rank, cell in enumerate(row) if cell is not None] for row in cells]
    assert held == [sorted(table.ranks) for table in plan.tables[: len(seen)]]
    page.locator("#plan-scroll").evaluate("box => { box.scrollTop = 1e6; }")
    page.wait_for_timeout(300)
    assert names() == every[-len(seen) :]
    page.select_option("#plan-order", label="size")
    largest = sorted(sizes.values(), reverse=True)[: len(seen)]
    assert [sizes[name] for name in names()] == largest
    wanted = plan.tables[0].table
    page.fill("#plan-filter", wanted)
    assert set(names()) == {name for name in sizes if wanted in name}
    page.fill("#plan-filter", "no such table")
    assert names() == []
    assert page.locator("#plan-count").inner_text() == f"0 of {len(plan.tables)} tables"


def test_the_title_of_an_axis_leaves_room_for_millions(browser, tmp_path):
    path = tmp_path / "report.html"
    space = GPT_SPACE.replace("world_size: [8, 16]", "world_size: [128, 256]")
    write_report(study_of(space).result, path)
    seen = Opened(browser, path.as_uri())
    seen.see_all()
    labels = seen.page.locator("#scatter .ytick text").all_text_contents()
    problems = [each for each in seen.problems() if "scatter" in each]
    seen.context.close()
    assert max(map(len, labels)) >= len("1,000,000")
    assert problems == []
