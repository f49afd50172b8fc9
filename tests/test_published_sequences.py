"""The published step of a generative recommender: parts, their sums, and files without it."""

from __future__ import annotations

import importlib
import sys

import pytest

from dse.errors import DseError
from tests.conftest import ROOT

HEAD = "what,value,unit,config,source\n"
STEP = "step time (median of 41 intervals),187.01,ms,,\n"


@pytest.fixture(scope="module")
def steps():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return importlib.import_module("sequence_steps")
    finally:
        sys.path.pop(0)


def test_parts_are_predicted_and_say_what_was_fitted(steps, tmp_path):
    path = tmp_path / "step.csv"
    path.write_text(
        f"{HEAD}{STEP}HSTU attention forward+backward,80,ms,,\nGEMM uvqk,33,ms,,\nMFU,34,%,,\n"
        "elementwise,40,ms,,\nanything else,1,ms,,\n"
    )
    rows = {row.part: row for row in steps.sequence_rows(path)}
    assert len(rows) == 4
    assert [row.part for row in rows.values() if row.fitted] == ["HSTU attention forward+backward"]
    assert rows["GEMM uvqk"].error == pytest.approx(0.06, abs=0.05)
    whole = rows.pop("step time (median of 41 intervals)")
    assert sum(row.predicted_ms for row in rows.values()) < whole.predicted_ms
    assert "GEMM uvqk" in steps.sequence_section(list(rows.values()))


def test_a_file_without_the_step_is_refused(steps, tmp_path):
    path = tmp_path / "other.csv"
    path.write_text(f"{HEAD}GEMM uvqk,33,ms,,\n")
    with pytest.raises(DseError, match="no row"):
        steps.sequence_rows(path)
