"""One browser for all tests of pages that a process runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.report.browser import chromium

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A running Chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install it")
    if chromium() is None:
        pytest.skip("no Chromium or Chrome on the PATH")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield running
        running.close()
