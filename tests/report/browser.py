"""A page in a browser, and what a test can see of its layout."""

from __future__ import annotations

import importlib
import re
import sys
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# Benchmarks are scripts, not a package.
sys.path.insert(0, str(ROOT / "benchmarks"))
_benchmark = importlib.import_module("report")
sys.path.pop(0)
chromium, synthetic_study = _benchmark.chromium, _benchmark.synthetic_study


class Opened:
    """A page with what it asked for and what it complained about."""

    def __init__(self, browser: Browser, address: str, **options) -> None:
        options.setdefault("viewport", {"width": 1400, "height": 900})
        self.context = browser.new_context(**options)
        # A loaded machine may stand still for a while.
        self.context.set_default_timeout(120_000)
        self.page: Page = self.context.new_page()
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.context.route(re.compile("^(?!file:)"), lambda route: route.abort())
        self.go(address)

    def go(self, address: str) -> None:
        # Addresses that differ behind their # alone would not load the page again.
        self.page.goto("about:blank")
        self.page.goto(address)
        try:
            self.page.wait_for_selector('html[data-ready="1"]', state="attached")
        except Exception as error:
            pytest.fail(f"the page never said that it is there: {self.complaints} {error}")

    def wait_until(self, condition: str) -> None:
        """Waits for an expression; the page itself evaluates no text, so Playwright cannot."""
        for _ in range(1200):
            if self.page.evaluate(condition):
                return
            self.page.wait_for_timeout(100)
        pytest.fail(f"never true: {condition}")

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

    def print_preview(self) -> None:
        """Shows the page as it is printed, on paper of A4 within its margins."""
        self.page.set_viewport_size({"width": 703, "height": 1017})
        self.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        self.page.emulate_media(media="print")

    def problems(self) -> list[str]:
        """Returns what overlaps, is cut off or reaches out of the window."""
        return self.page.evaluate(_PROBLEMS)

    def faint(self) -> list[list[object]]:
        """Returns texts whose contrast is below what WCAG 2.2 asks for, and how many were seen."""
        # The page hears of a change of the theme before the next frame.
        self.page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
        ratios = self.page.evaluate(_CONTRAST)
        assert len(ratios) > 5
        return [found for found in ratios if found[0] < found[2]]


#: What a reader would see at once: boxes over others, texts of plots over others or outside of
#: their plot, text that its box hides, and what reaches out of the window without a box that
#: scrolls.
_PROBLEMS = r"""() => {
  const found = [];
  const name = (element) => (element.id ? `#${element.id} ` : "") +
    (element.textContent || element.tagName).trim().replace(/\s+/g, " ").slice(0, 50);
  const seen = (element) => element.checkVisibility() && !element.closest(".hidden, .skip");
  const box = (element) => element.getBoundingClientRect();
  const over = (a, b, slack) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > slack &&
    Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > slack;
  const pairs = (elements, slack, words) => {
    const boxes = elements.map((element) => [element, box(element)])
      .filter(([, one]) => one.width > 0 && one.height > 0).sort((a, b) => a[1].top - b[1].top);
    boxes.forEach(([a, one], i) => {
      for (const [b, other] of boxes.slice(i + 1)) {
        if (other.top >= one.bottom) break;
        if (!a.contains(b) && !b.contains(a) && over(one, other, slack)) {
          found.push(`${words}: ${name(a)} | ${name(b)}`);
        }
      }
    });
  };
  // A plot takes what it draws: on paper its box follows it.
  const drawn = [...document.querySelectorAll(".plot .main-svg:first-child")].filter(seen);
  const flow = [...document.querySelectorAll(
    "h1, h2, h3, p, li, dt, dd, label, button, summary, .scroll, .card, .legend, .figures div")]
    .filter((element) => seen(element) && !element.closest("table"));
  pairs([...flow, ...drawn], 1.5, "boxes overlap");
  for (const plot of document.querySelectorAll(".plot")) {
    if (!seen(plot)) continue;
    if (!drawn.some((svg) => plot.contains(svg))) {
      found.push(`not drawn: ${plot.id}`);
      continue;
    }
    const texts = [...plot.querySelectorAll("svg text")]
      .filter((text) => text.textContent.trim() && box(text).width);
    // The boxes of texts have some air.
    pairs(texts, 3, `texts of ${plot.id} overlap`);
    const frame = box(plot);
    for (const text of texts) {
      const own = box(text);
      if (own.left < frame.left - 2 || own.right > frame.right + 2 ||
          own.top < frame.top - 2 || own.bottom > frame.bottom + 2) {
        found.push(`text out of ${plot.id}: ${name(text)}`);
      }
    }
  }
  for (const element of document.querySelectorAll("body *")) {
    if (element.closest("svg") || !seen(element)) continue;
    const style = getComputedStyle(element), hides = ["hidden", "clip"].includes(style.overflowX);
    const outer = element.parentElement?.closest(".scroll, pre, nav");
    if ((!outer || getComputedStyle(outer).overflowX === "visible") &&
        box(element).right > innerWidth + 1) {
      found.push(`out of the window: ${name(element)}`);
    }
    const wider = element.scrollWidth > element.clientWidth + 1;
    if (hides && wider && !element.title && !element.closest(".plot")) {
      found.push(`cut off: ${name(element)}`);
    }
    const leaf = element.children.length === 0 && element.textContent.trim();
    if (leaf && style.display !== "inline" && !hides && wider) {
      found.push(`reaches out of its box: ${name(element)}`);
    }
  }
  if (document.documentElement.scrollWidth > innerWidth) found.push("the page scrolls sideways");
  return found;
}"""

#: Contrast of every visible text against what lies under it, 4.5:1, and of every mark of a legend,
#: 3:1 (WCAG 2.2, relative luminance); idle time may recede. A canvas of one pixel mixes the
#: colours as the browser does.
_CONTRAST = """() => {
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
  const compare = (element, ink, wanted, words) => {
    const under = [];
    for (let at = element; at; at = at.parentElement) {
      under.unshift(getComputedStyle(at).backgroundColor);
    }
    const key = [...under, ink].join("|");
    if (found.has(key)) return;
    const a = paint(under), b = paint([...under, ink]);
    found.set(key, [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), words, wanted]);
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || element.closest("svg, script, noscript")) continue;
    if (!element.checkVisibility()) continue;
    compare(element, getComputedStyle(element).color, 4.5, element.outerHTML.slice(0, 90));
  }
  for (const button of document.querySelectorAll(".legend button")) {
    if (button.textContent === "Idle" || !button.checkVisibility()) continue;
    for (const part of button.querySelectorAll("svg > *")) {
      const fill = part.getAttribute("fill") ?? "none";
      compare(button, fill === "none" ? part.getAttribute("stroke") : fill, 3, button.textContent);
    }
  }
  return [...found.values()];
}"""
