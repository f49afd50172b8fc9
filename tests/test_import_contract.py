"""Packages may only import what lies below them; see docs/architecture.md."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: From the bottom up; a package imports from earlier lines only.
ORDER = (
    {"errors", "_median", "_text"},
    {"_process", "_torch"},
    {"_io"},
    {"ranking", "indices"},
    {"config", "graph"},
    {"launch", "machine"},
    {"simulate", "model"},
    {"calibration", "explanation", "sharding"},
    {"trace"},
    {"workload"},
    {"search"},
    {"report", "validation", "doctor"},
    {"api"},
    {"torchrec"},
    {"cli"},
)
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}

#: Only these may be imported when a module is loaded; others are imported inside functions.
HEAVY = {"arro3", "optuna", "plotly", "pandas", "pyarrow", "torch", "ray", "xgboost", "jinja2"}
HEAVY |= {"fbgemm_gpu", "torchrec"}


@pytest.fixture(scope="module")
def files():
    return {
        path: ast.parse(path.read_text())
        for path in (ROOT / "dse").rglob("*.py")
        if path.parent.name != "dse"
    }


def package_of(path: Path) -> str:
    return path.relative_to(ROOT / "dse").parts[0]


def imports(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def faults(path: Path, tree: ast.AST) -> Iterator[str]:
    own = package_of(path)
    for name in imports(tree):
        if not name.startswith("dse."):
            continue
        other = name.split(".")[1]
        if other == own:
            continue
        if LEVEL[other] >= LEVEL[own]:
            yield f"{path.relative_to(ROOT)} imports {name}, which is not below it"
        if any(part.startswith("_") for part in name.split(".")[2:]):
            yield f"{path.relative_to(ROOT)} imports the private {name}"


def test_imports_point_downwards(files):
    assert [fault for path, tree in files.items() for fault in faults(path, tree)] == []


def test_heavy_packages_are_imported_late(files):
    found = {}
    for path, tree in files.items():
        at_load = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        names = imports(ast.Module(at_load, []))
        if heavy := {name.split(".")[0] for name in names} & HEAVY:
            found[path.relative_to(ROOT)] = heavy
    assert found == {}


def test_every_package_has_a_level():
    packages = {path.parent.name for path in (ROOT / "dse").glob("*/__init__.py")}
    assert packages == {name for name in LEVEL if (ROOT / "dse" / name).is_dir()}
