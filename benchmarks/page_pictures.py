"""Pictures of a study's page for the documentation: wide, dark, on a phone and on paper.

Usage: python benchmarks/page_pictures.py STUDY_DIR [--out docs/images]

Writes the page with the present code and takes its top at 1,400 pixels in light and dark, at
420 pixels as a phone shows it, and the first page of its PDF. Chromium is driven by Playwright;
the PDF is drawn by PDFium: `pip install playwright pypdfium2 pillow`.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path
import tempfile
from typing import TYPE_CHECKING

from report import chromium

from dse.report import write_report
from dse.search import load_study

if TYPE_CHECKING:
    from playwright.sync_api import Browser

#: Largest picture that the repository takes.
LIMIT_BYTES = 200_000

#: Name, width and height of the window in CSS pixels, and what else the browser pretends.
SCREENS = (
    ("report", 1400, 1320, {}),
    ("report_dark", 1400, 1320, {"color_scheme": "dark"}),
    ("report_phone", 420, 1320, {"has_touch": True, "is_mobile": True}),
)


def pictures(browser: Browser, page: Path) -> dict[str, bytes]:
    """Returns PNGs by name."""
    import pypdfium2

    found = {}
    for name, width, height, options in SCREENS:
        with browser.new_context(viewport={"width": width, "height": height}, **options) as tab:
            shown = tab.new_page()
            shown.goto(page.as_uri())
            shown.wait_for_selector('html[data-ready="1"]', state="attached")
            # Plots further down are drawn in the frames that follow.
            shown.wait_for_timeout(1000)
            found[name] = shown.screenshot()
            if name == "report":
                drawn = io.BytesIO()
                with pypdfium2.PdfDocument(shown.pdf(prefer_css_page_size=True)) as paper:
                    paper[0].render(scale=1.5).to_pil().save(drawn, "PNG")
                found["report_paper"] = drawn.getvalue()
    return found


def small(png: bytes) -> bytes:
    """Returns a picture in a palette of its own, which text and flat colours lose little by."""
    from PIL import Image

    packed = io.BytesIO()
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    palette = picture.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    palette.save(packed, "PNG", optimize=True)
    return packed.getvalue()


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        page = Path(folder) / "report.html"
        write_report(load_study(arguments.study).result, page)
        browser = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        for name, png in pictures(browser, page).items():
            data = small(png)
            if len(data) > LIMIT_BYTES:
                raise SystemExit(f"{name}: {len(data):,} bytes, more than {LIMIT_BYTES:,}")
            (arguments.out / f"{name}.png").write_bytes(data)
            print(f"{name}.png {len(data):,} bytes")
        browser.close()


if __name__ == "__main__":
    main()
