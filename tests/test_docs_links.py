"""Links between pages lead somewhere, and the index lists every page."""

from __future__ import annotations

import re
from urllib.parse import unquote

import pytest

from tests.conftest import ROOT

PAGES = sorted(
    {
        ROOT / "README.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
        *(ROOT / "results").glob("*.md"),
    }
)

_FENCED = re.compile(r"^```.*?^```\s*?$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*$", re.MULTILINE)


def name(path):
    return str(path.relative_to(ROOT))


def links(page):
    text = _FENCED.sub("", page.read_text())
    # The words of a link may be code, its target is none.
    return _LINK.findall(_CODE.sub("", text))


def anchors(page):
    """Returns the anchors of a page's headings, as GitHub makes them."""
    found = set()
    for heading in _HEADING.findall(_FENCED.sub("", page.read_text())):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        plain = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        number = 1
        anchor = plain
        while anchor in found:
            anchor = f"{plain}-{number}"
            number += 1
        found.add(anchor)
    return found


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_relative_links_lead_somewhere(page):
    wrong = []
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or not target.is_relative_to(ROOT):
            wrong.append(f"{link}: there is no such file")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            wrong.append(f"{link}: there is no such heading")
    assert not wrong, "\n".join(wrong)


def test_the_index_lists_every_page():
    index = ROOT / "docs" / "README.md"
    listed = {(index.parent / link).resolve() for link in links(index)}
    missing = {page for page in (ROOT / "docs").glob("*.md") if page not in listed}
    assert missing == {index}, sorted(map(name, missing - {index}))


def test_links_are_found():
    # A test of links that finds none would pass on any page.
    assert sum(len(links(page)) for page in PAGES) > 80
    assert "lower-bound" in anchors(ROOT / "docs" / "method.md")


def named_files(page):
    """Returns the files and folders of the repository that a page names as code."""
    spans = (span.strip("`") for span in _CODE.findall(_FENCED.sub("", page.read_text())))
    return [span for span in spans if re.fullmatch(r"[\w./-]+(?:\.(?:py|json|ipynb)|/)", span)]


@pytest.mark.parametrize("page", ["architecture.md", "CONTRIBUTING.md"])
def test_files_that_are_named_exist(page):
    """In full, or by their end: `_fabric.py` after the folder that it is in."""
    patterns = ("*", ".ci/*", "docs/*", "examples/*", "platforms/*", "dse/**/*", "tests/**/*")
    known = {
        path.relative_to(ROOT).as_posix() for pattern in patterns for path in ROOT.glob(pattern)
    }
    found = named_files(ROOT / "docs" / page)
    ends = {one.rstrip("/") for one in found} - {"dist"}  # what a build writes
    wrong = {end for end in ends if not any(f"/{path}".endswith(f"/{end}") for path in known)}
    assert not wrong
    assert ends
