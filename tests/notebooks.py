"""Notebooks, run without Jupyter: code cells in order, the last expression of each shown.

`python -m tests.notebooks FILE.ipynb` runs a notebook and stores what its cells show.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
from pathlib import Path
import re
import sys
import tempfile


def code_cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run_cells(notebook):
    """Runs the code cells in one namespace; yields each with what it shows, as nbformat has it."""
    names = {"__name__": "__main__"}
    for number, cell in enumerate(code_cells(notebook), start=1):
        tree = ast.parse("".join(cell["source"]), f"cell {number}")
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, f"cell {number}", "exec"), names)
            value = last and eval(compile(ast.Expression(last.value), "cell", "eval"), names)
        outputs = []
        if printed.getvalue():
            text = printed.getvalue().splitlines(keepends=True)
            outputs.append({"output_type": "stream", "name": "stdout", "text": text})
        if value is not None:
            outputs.append(
                {
                    "output_type": "execute_result",
                    "execution_count": number,
                    "metadata": {},
                    "data": shown(value),
                }
            )
        yield cell, outputs


def shown(value):
    """Returns what a notebook shows of a value, by kind."""
    # Where an object is differs between runs.
    text = re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    found = {"text/plain": text.splitlines(keepends=True)}
    for kind, method in (("text/html", "_repr_html_"), ("image/svg+xml", "_repr_svg_")):
        made = getattr(value, method, None)
        if made is not None and made():
            found[kind] = made().splitlines(keepends=True)
    return found


def main(path):
    notebook = json.loads(path.read_text())
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for number, (cell, outputs) in enumerate(run_cells(notebook), start=1):
            cell["execution_count"], cell["outputs"] = number, outputs
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
