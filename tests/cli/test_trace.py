"""`dse trace` from the command line."""

from __future__ import annotations

import pytest

from tests.cli.test_cli import answer, dse
from tests.traces.helpers import call, kernel, operator, write
from tests.traces.test_summary import two_ranks


@pytest.fixture
def folder(tmp_path):
    two_ranks(tmp_path)
    return tmp_path


def test_info_counts_and_lists(folder):
    summary = answer("trace", "info", folder)
    assert [rank["rank"] for rank in summary["ranks"]] == [0, 1]
    assert summary["collectives"][0]["operation"] == "all_reduce"
    shown = dse("trace", "info", folder)
    assert shown.returncode == 0
    assert "all_reduce" in shown.stdout
    assert "gemm" in shown.stdout


def test_simulate_prints_the_contract(folder):
    document = answer("trace", "simulate", folder)
    for rank in document["ranks"]:
        assert set(rank) >= {
            "rank",
            "measured_s",
            "simulated_s",
            "compute_s",
            "exposed_communication_s",
            "idle_s",
        }
        assert rank["simulated_s"] == pytest.approx(rank["measured_s"], rel=0.02)
    assert document["together"]
    # The one that came first waits: its time is idle together, and part of the kernel alone.
    alone = answer("trace", "simulate", folder, "--alone")
    assert not alone["together"]
    assert alone["ranks"][0]["exposed_communication_s"] == pytest.approx(50e-6, abs=2e-6)
    assert document["ranks"][0]["exposed_communication_s"] == pytest.approx(20e-6, abs=2e-6)


def test_the_same_rank_twice_is_refused(folder):
    done = dse("trace", "info", folder / "rank0.json", folder / "rank0.json")
    assert done.returncode == 2
    assert "rank 0 again" in done.stderr


def test_a_trace_without_device_work_cannot_be_simulated(tmp_path):
    write(tmp_path / "t.json", [operator("aten::mm", 0, 20)])
    done = dse("trace", "simulate", tmp_path / "t.json")
    assert done.returncode == 2
    assert "nothing ran on a device" in done.stderr


def test_an_unknown_step_is_refused(tmp_path):
    write(tmp_path / "t.json", [call(0, 5, 1), kernel("a", 8, 10, 1)])
    done = dse("trace", "simulate", tmp_path / "t.json", "--step", 9)
    assert done.returncode == 2
    assert "step" in done.stderr
