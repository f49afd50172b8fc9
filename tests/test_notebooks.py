"""The notebook runs, and shows what it showed when it was written."""

from __future__ import annotations

import contextlib
import json

import pytest

from tests.conftest import ROOT
from tests.documents_of_users import missing_line
from tests.notebooks import code_cells, run_cells

NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))

#: Largest difference of a number; prices and models are updated.
TOLERANCE = 0.25


def texts(outputs):
    for output in outputs:
        yield "".join(output.get("text") or output["data"]["text/plain"])


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_it_stores(path, tmp_path):
    stored = json.loads(path.read_text())
    shown = False
    with contextlib.chdir(tmp_path):
        for cell, outputs in run_cells(stored):
            assert len(outputs) == len(cell["outputs"])
            shown |= any("<svg" in json.dumps(output) for output in outputs)
            for expected, printed in zip(texts(cell["outputs"]), texts(outputs), strict=True):
                lines = "\n".join(line for line in expected.splitlines() if "…" not in line)
                assert missing_line(lines, printed, TOLERANCE) is None, printed
    assert shown, "no picture"


def test_notebooks_store_what_their_cells_show():
    assert NOTEBOOKS
    for path in NOTEBOOKS:
        cells = code_cells(json.loads(path.read_text()))
        assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
        assert all(cell["outputs"] for cell in cells)
