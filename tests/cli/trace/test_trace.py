"""`dse trace` from the command line."""

from __future__ import annotations

import gzip
import json

import pytest

from tests.cli.running import answer, dse
from tests.trace.analyse.test_summary import two_ranks
from tests.trace.helpers import call, kernel, operator, span, write


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
    assert "stragglers" in shown.stdout
    assert "critical path of the last step: 0.090 ms" in shown.stdout


def test_info_prints_the_contract(folder):
    summary = answer("trace", "info", folder)
    assert set(summary) == {
        "ranks",
        "collectives",
        "stragglers",
        "compute_imbalance",
        "critical_path",
        "notes",
    }
    first = summary["ranks"][0]
    assert set(first["last_step"]) == {
        "cut_by",
        "measured_s",
        "compute_s",
        "communication_s",
        "exposed_communication_s",
        "idle_s",
        "wait_s",
    }
    assert summary["stragglers"][0]["rank"] == 1
    path = summary["critical_path"]
    assert path["length_s"] == pytest.approx(90e-6)
    assert sum(part["seconds"] for part in path["parts"]) == pytest.approx(90e-6)
    assert {"name", "part", "count", "seconds", "share"} == set(path["contributors"][0])
    assert summary["notes"] == []


def test_info_and_simulation_split_the_step_alike(folder):
    # Rank 0 waits 30 µs in the all-reduce, which then takes 20 µs on both.
    for info, replay in zip(
        answer("trace", "info", folder)["ranks"],
        answer("trace", "simulate", folder)["ranks"],
        strict=True,
    ):
        for name in ("compute_s", "exposed_communication_s", "idle_s", "wait_s"):
            assert info["last_step"][name] == pytest.approx(replay[name], abs=1e-9), name
        assert info["last_step"]["wait_s"] == pytest.approx(30e-6 * (info["rank"] == 0))


def test_streams_and_sizes_on_demand(tmp_path):
    shapes = {"Input Dims": [[64, 32], [32, 16]], "Input type": ["float", "float"]}
    write(
        tmp_path / "t.json",
        [operator("aten::mm", 0, 20, **shapes), call(5, 5, 1), kernel("gemm", 12, 8, 1)],
    )
    plain = answer("trace", "info", tmp_path / "t.json")
    assert {"lanes", "sizes"}.isdisjoint(plain)
    found = answer("trace", "info", tmp_path / "t.json", "--streams", "--shapes")
    assert {one["lane"] for one in found["lanes"]} == {"thread 11", "device 0 stream 7"}
    assert [one["size"] for one in found["sizes"]] == [16, 32, 64]
    assert found["sizes"][0]["operators"] == ["aten::mm"]
    assert found["sizes"][0]["seconds"] == pytest.approx(8e-6)
    shown = dse("trace", "info", tmp_path / "t.json", "--lanes", "--shapes")
    assert "device 0 stream 7" in shown.stdout
    assert "sizes of dimensions" in shown.stdout


def test_a_step_may_be_an_annotation(tmp_path):
    write(
        tmp_path / "t.json",
        [
            span("user_annotation", "ProfilerStep#3", 0, 60),
            span("user_annotation", "## forward ##", 10, 30),
            operator("aten::mm", 10, 20),
            operator("aten::mm", 45, 10),
        ],
    )
    for step, seconds in (("3", 60e-6), ("## forward ##", 30e-6)):
        (rank,) = answer("trace", "simulate", tmp_path / "t.json", "--step", step)["ranks"]
        assert rank["measured_s"] == pytest.approx(seconds)
        found = answer(
            "trace", "whatif", tmp_path / "t.json", "--step", step, "-O", "amp=2,other=2"
        )
        assert found["before_s"] == pytest.approx(seconds)


def test_info_of_a_trace_without_device_work(tmp_path):
    write(tmp_path / "t.json", [operator("aten::mm", 0, 20), operator("aten::add", 30, 5)])
    summary = answer("trace", "info", tmp_path / "t.json")
    step = summary["ranks"][0]["last_step"]
    assert (step["compute_s"], step["idle_s"]) == pytest.approx((25e-6, 10e-6))
    assert summary["ranks"][0]["top_host_operators"][0]["name"] == "aten::mm"
    assert summary["compute_imbalance"] is None
    shown = dse("trace", "info", tmp_path / "t.json")
    assert shown.returncode == 0
    assert "aten::mm" in shown.stdout
    assert "the CPU is the device" in shown.stdout


def test_info_of_a_trace_without_a_path_says_why(tmp_path):
    write(tmp_path / "t.json", [span("user_annotation", "setup", 0, 20)])
    summary = answer("trace", "info", tmp_path / "t.json")
    assert summary["critical_path"] is None
    (note,) = summary["notes"]
    assert note.startswith("no critical path: ")
    assert "nothing to simulate" in note


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


def test_simulate_tells_what_is_missing(folder):
    note = "1 collectives lack members: their time includes the wait for these ranks"
    document = answer("trace", "simulate", folder, "--alone")
    assert [text for text in document["notes"] if note in text] == [
        f"rank {rank} alone: {note}" for rank in (0, 1)
    ]
    assert answer("trace", "simulate", folder)["notes"] == []
    alone = folder / "rank0.json"
    assert note in answer("trace", "simulate", alone)["notes"]
    assert f"note: {note}" in dse("trace", "simulate", alone).stdout


def test_simulate_writes_a_time_line(folder):
    file = folder / "timeline.json.gz"
    plain = answer("trace", "simulate", folder)
    assert answer("trace", "simulate", folder, "--timeline", file) == plain
    with gzip.open(file, "rt") as opened:
        document = json.load(opened)
    names = {
        event["args"]["name"]
        for event in document["traceEvents"]
        if event["ph"] == "M" and event["name"] == "process_name"
    }
    assert names == {"rank 0", "rank 1", "critical path"}
    assert document["otherData"]["makespan_us"] == pytest.approx(90)
    waits = [event for event in document["traceEvents"] if event.get("cat") == "wait"]
    assert [event["dur"] for event in waits] == [pytest.approx(30, abs=2)]


def test_a_time_line_of_ranks_by_themselves_is_refused(folder):
    done = dse("trace", "simulate", folder, "--alone", "--timeline", folder / "t.json")
    assert done.returncode == 2
    assert "no common time line" in done.stderr
    assert not (folder / "t.json").exists()
    one = folder / "rank0.json"
    done = dse("trace", "simulate", one, "--alone", "--timeline", folder / "t.json")
    assert done.returncode == 0
    assert (folder / "t.json").exists()


def test_the_same_rank_twice_is_refused(folder):
    done = dse("trace", "info", folder / "rank0.json", folder / "rank0.json")
    assert done.returncode == 2
    assert "rank 0 again" in done.stderr


def test_without_device_work_the_cpu_is_the_device(tmp_path):
    write(tmp_path / "t.json", [operator("aten::mm", 0, 20), operator("aten::relu", 25, 5)])
    (rank,) = answer("trace", "simulate", tmp_path / "t.json")["ranks"]
    assert rank["simulated_s"] == pytest.approx(30e-6)
    assert rank["compute_s"] == pytest.approx(25e-6)
    assert rank["idle_s"] == pytest.approx(5e-6)


def test_an_unknown_step_is_refused(tmp_path):
    write(tmp_path / "t.json", [call(0, 5, 1), kernel("a", 8, 10, 1)])
    done = dse("trace", "simulate", tmp_path / "t.json", "--step", 9)
    assert done.returncode == 2
    assert "step" in done.stderr
