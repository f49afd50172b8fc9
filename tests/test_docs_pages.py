"""Pages are true: their commands and code run in order, and print what they show."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

import dse
from tests.conftest import ROOT
from tests.documents_of_users import blocks_of, run_page

#: Pages that run as they stand; the tutorial and the examples have tests of their own.
RUN = ("python", "quickstart_megatron", "quickstart_torchrec", "quickstart_trace")


#: In place of the study that the page of commands begins with: as many candidates, in seconds.
SMALL = {
    "schema_version": 1,
    "name": "first",
    "workload": {"model": "dlrm_dcnv2"},
    "parameters": {
        "platform": "h100_sxm",
        "world_size": 8,
        "global_batch_size": [8192 * factor for factor in range(1, 9)],
        "sharding_types": [["table_wise", "row_wise"]],
    },
    "objectives": [{"metric": "throughput_samples_per_s", "direction": "maximize"}],
    "search": {"sampler": "grid", "trials": 8},
}


@pytest.fixture
def folder(tmp_path):
    for name in ("examples", "platforms", "models", "search_spaces"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


@pytest.fixture
def study(folder):
    small = dse.create_study(SMALL, out=folder / "results/first", executor="serial")
    small.optimize(8)


@pytest.mark.slow
@pytest.mark.usefixtures("study")
def test_the_page_of_commands(folder):
    run_page(ROOT / "docs/commands.md", folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_every_block_in_order(name, folder):
    run_page(ROOT / "docs" / f"{name}.md", folder)


def with_entry(tree, remark, text):
    """Adds an entry to a tuple of a module: behind the line that opens it."""
    file, _, opening = remark.partition(", ")
    path = tree / file
    before, found, after = path.read_text().partition(f"\n{opening}\n")
    assert found, f"{file} has no line `{opening}`"
    path.write_text(f"{before}{found}{text.rstrip()},\n{after}")


@pytest.mark.slow
def test_the_exercises_of_contributing(folder):
    # On a copy of the package, whose commands are run with what the entries add.
    tree = folder / "tree"
    shutil.copytree(ROOT / "dse", tree / "dse")
    for name in ("platforms", "models", "search_spaces"):
        (tree / name).symlink_to(ROOT / name)
    ran = 0
    for block in blocks_of(ROOT / "docs/CONTRIBUTING.md"):
        if "entry" in block.remarks:
            with_entry(tree, block.remarks["entry"], block.text)
        elif "file" in block.remarks:
            (folder / block.remarks["file"]).write_text(block.text)
        elif block.language == "sh" and "not run" not in block.remarks:
            text = block.text.replace("dse ", f"{sys.executable} -m dse ")
            done = subprocess.run(
                ["bash", "-euc", text],
                cwd=folder,
                env=os.environ | {"PYTHONPATH": str(tree), "COLUMNS": "100"},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"line {block.line}: {done.stderr}"
            ran += 1
    assert ran == 3


def test_what_pages_leave_out_says_why():
    for page in (ROOT / "docs").glob("*.md"):
        for block in blocks_of(page):
            assert block.remarks.get("not run", "why") != "", f"{page.name}:{block.line}"
