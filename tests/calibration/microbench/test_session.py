from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
import json

import pytest

from dse.calibration.microbench import (
    PLAN_VERSION,
    HostMeasurement,
    MachineInfo,
    make_plan,
    read_session,
    run_session,
)
from dse.calibration.microbench.plan import Sample
from dse.calibration.microbench.ranks import RefusedCollectiveError
from dse.errors import CalibrationError

MACHINE = MachineInfo(
    device="cpu",
    device_name="test processor",
    device_count=1,
    compute_units=4,
    driver="",
    cores=4,
    memory_bytes=2**34,
    last_level_cache_bytes=2**25,
    operating_system="Linux",
    libraries=(("python", "3.11"), ("torch", "2.13.0")),
)
HOST = HostMeasurement(1e-6, 2e-6, 0.0, 3e-6, 1e-6, None, 1e-8)
PLAN = make_plan(local_ranks=4, threads=1, points=4)


class FakeMeasurer:
    """Every point takes a second of the clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.measured: list[object] = []
        self.groups: list[int] = []
        self.open_groups = 0
        self.failing: dict[str, BaseException] = {}

    def clock(self) -> float:
        return self.now

    def kernel(self, point) -> Sample:
        return self._sample(point)

    @contextmanager
    def collectives(self, ranks):
        self.groups.append(ranks)
        self.open_groups += 1
        try:
            yield self._sample
        finally:
            self.open_groups -= 1

    def host(self) -> HostMeasurement:
        self.now += 1
        self.measured.append("host")
        return HOST

    def _sample(self, point) -> Sample:
        self.now += 1
        if point.op in self.failing:
            raise self.failing[point.op]
        self.measured.append(point)
        return Sample(1e-3, 1e-5, 10)


def session(path, measurer, budget_s=1e9, plan=PLAN, machine=MACHINE, on_progress=None):
    return run_session(
        plan,
        path,
        budget_s,
        on_progress,
        measurer=measurer,
        machine=machine,
        clock=measurer.clock,
    )


def points_of(measurer):
    return [point for point in measurer.measured if point != "host"]


def test_everything_is_measured_once_and_read_back(tmp_path):
    fake = FakeMeasurer()
    result = session(tmp_path / "log.jsonl", fake)
    planned = len(PLAN.kernels) + len(PLAN.collectives) + 1
    assert len(fake.measured) == result.done == result.planned == planned
    assert set(points_of(fake)) == {*PLAN.kernels, *PLAN.collectives}
    assert fake.groups == [2, 4]
    assert result == read_session(tmp_path / "log.jsonl")
    assert result.machine == MACHINE
    assert result.host == HOST
    assert (result.threads, result.collectives_backend) == (1, "gloo")
    assert result.busy_devices == PLAN.busy_devices == 4
    first = result.kernels[0]
    assert (first.op, first.sizes, first.purpose) == (
        PLAN.kernels_in_order()[0].op,
        PLAN.kernels_in_order()[0].sizes,
        PLAN.kernels_in_order()[0].purpose,
    )
    assert (first.time_s, first.half_width_s, first.repeats) == (1e-3, 1e-5, 10)


def test_budget_is_split(tmp_path):
    fake = FakeMeasurer()
    # Two thirds are enough for one turn of all operators, those of fbgemm included.
    result = session(tmp_path / "log.jsonl", fake, budget_s=96)
    assert fake.now == 96
    assert result.host == HOST
    assert len(result.kernels) == 63
    assert [sum(c.ranks == ranks for c in result.collectives) for ranks in (2, 4)] == [16, 16]
    ops = {kernel.op for kernel in result.kernels}
    assert ops == {point.op for point in PLAN.kernels}


def test_without_collectives_operators_have_the_budget(tmp_path):
    fake = FakeMeasurer()
    plan = replace(PLAN, collectives=())
    result = session(tmp_path / "log.jsonl", fake, budget_s=60, plan=plan)
    assert len(result.kernels) == 59


def test_what_collectives_leave_over_goes_to_operators(tmp_path):
    fake = FakeMeasurer()
    plan = replace(PLAN, collectives=PLAN.collectives[:2])
    session(tmp_path / "log.jsonl", fake, budget_s=60, plan=plan)
    assert fake.now == 60


def test_sessions_go_on_where_the_last_one_ended(tmp_path):
    path = tmp_path / "log.jsonl"
    first, second = FakeMeasurer(), FakeMeasurer()
    session(path, first, budget_s=50)
    progress = []
    result = session(path, second, on_progress=progress.append)
    assert not set(points_of(first)) & set(points_of(second))
    assert set(points_of(first)) | set(points_of(second)) == {*PLAN.kernels, *PLAN.collectives}
    assert "host" not in second.measured
    assert result.done == result.planned
    assert [step.done for step in progress] == list(range(51, result.planned + 1))
    nothing_left = FakeMeasurer()
    session(path, nothing_left)
    assert nothing_left.measured == nothing_left.groups == []


def test_a_torn_last_line_is_cut_off_and_measured_again(tmp_path):
    path = tmp_path / "log.jsonl"
    session(path, FakeMeasurer(), budget_s=50)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert read_session(path).done == 49
    again = FakeMeasurer()
    result = session(path, again, budget_s=1)
    assert result.done == 50
    assert len(again.measured) == 1
    for line in path.read_text().splitlines():
        json.loads(line)


def test_a_torn_header_is_written_again(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"kind": "hea')
    assert session(path, FakeMeasurer(), budget_s=3).done == 3


def test_damage_in_the_middle_is_refused(tmp_path):
    path = tmp_path / "log.jsonl"
    session(path, FakeMeasurer(), budget_s=5)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:2], "rubbish\n", *lines[2:]]))
    with pytest.raises(CalibrationError, match="line 3 is damaged"):
        session(path, FakeMeasurer())


def other_plan(**changes):
    return make_plan(**({"local_ranks": 4, "threads": 1, "points": 4} | changes))


@pytest.mark.parametrize(
    ("plan", "machine", "message"),
    [
        (PLAN, replace(MACHINE, device_name="other"), "device_name was test processor, now other"),
        (
            PLAN,
            replace(MACHINE, libraries=(("python", "3.11"), ("torch", "2.14.0"))),
            "libraries was",
        ),
        (
            other_plan(threads=2),
            MACHINE,
            "--threads was 1, now 2; .*with --threads 1,",
        ),
        (
            other_plan(seed=3, local_ranks=2),
            MACHINE,
            "--ranks was 4, now 2; --busy-devices was 4, now 2; --seed was 0, now 3; .*: "
            "continue with --ranks 4 --busy-devices 4 --seed 0,",
        ),
        (other_plan(busy_devices=1), MACHINE, "--busy-devices was 4, now 1; .*-devices 4,"),
        (other_plan(points=5), MACHINE, "points of an operator was 4, now 5"),
        (other_plan(operators=["gemm"]), MACHINE, "operators was gemm, elementwise.*, now gemm"),
        (
            make_plan("cuda", local_ranks=4, threads=1, points=4),
            replace(MACHINE, device="cuda"),
            "--device was cpu, now cuda",
        ),
        (replace(PLAN, collectives_backend="nccl"), MACHINE, "--collectives was gloo, now nccl"),
        (
            replace(PLAN, version=PLAN_VERSION + 1),
            MACHINE,
            f"version {PLAN_VERSION} of the plan, now",
        ),
        (replace(PLAN, kernels=PLAN.kernels[1:]), MACHINE, "other sizes of operators"),
        (replace(PLAN, collectives=PLAN.collectives[1:]), MACHINE, "other sizes of collectives"),
    ],
)
def test_a_log_of_something_else_is_refused(tmp_path, plan, machine, message):
    path = tmp_path / "log.jsonl"
    session(path, FakeMeasurer(), budget_s=5)
    before = path.read_bytes()
    with pytest.raises(CalibrationError, match=message):
        session(path, FakeMeasurer(), plan=plan, machine=machine)
    assert path.read_bytes() == before


def test_collectives_can_be_added_and_left_out_again(tmp_path):
    path = tmp_path / "log.jsonl"
    without = other_plan(collectives=False)
    assert without.collectives == ()
    alone, added = FakeMeasurer(), FakeMeasurer()
    first = session(path, alone, plan=without)
    assert first.done == first.planned == len(PLAN.kernels) + 1
    second = session(path, added, budget_s=20)
    assert {point.ranks for point in points_of(added)} == {2, 4}
    assert set(points_of(added)) < set(PLAN.collectives)
    assert (second.planned, second.done) == (
        first.planned + len(PLAN.collectives),
        first.done + 20,
    )
    # Without them nothing is left to do, and what was measured stays.
    nothing = FakeMeasurer()
    third = session(path, nothing, plan=without)
    assert nothing.measured == []
    assert third == second == read_session(path)
    assert session(path, FakeMeasurer()).done == second.planned


def test_a_session_with_collectives_goes_on_without(tmp_path):
    path = tmp_path / "log.jsonl"
    first, second = FakeMeasurer(), FakeMeasurer()
    session(path, first, budget_s=30)
    result = session(path, second, plan=other_plan(collectives=False))
    assert set(points_of(first)) | set(points_of(second)) >= set(PLAN.kernels)
    assert not set(points_of(first)) & set(points_of(second))
    assert len(result.collectives) == 10
    assert result.planned == len(PLAN.kernels) + len(PLAN.collectives) + 1


def test_the_backend_is_free_until_collectives_are_measured(tmp_path):
    path = tmp_path / "log.jsonl"
    options = {"device": "cuda", "local_ranks": 2, "threads": 1, "points": 1}
    machine = replace(MACHINE, device="cuda")
    session(path, FakeMeasurer(), plan=make_plan(**options, collectives=False), machine=machine)
    result = session(
        path,
        FakeMeasurer(),
        plan=make_plan(**options, collectives_backend="gloo"),
        machine=machine,
    )
    assert result.collectives_backend == "gloo"


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"kind": "kernel"}\n')
    with pytest.raises(CalibrationError, match="no header"):
        session(path, FakeMeasurer())
    path.write_text('{"kind": "header", "schema_version": 99}\n')
    with pytest.raises(CalibrationError, match="schema version 99"):
        read_session(path)
    path.write_text("")
    with pytest.raises(CalibrationError, match="empty"):
        read_session(path)
    with pytest.raises(CalibrationError, match="cannot read"):
        read_session(tmp_path / "missing.jsonl")


def test_points_that_raise_are_recorded_and_not_tried_again(tmp_path):
    path = tmp_path / "log.jsonl"
    fake = FakeMeasurer()
    fake.failing = {
        "gemm": RuntimeError("out of memory\nlong story"),
        "send_recv": RefusedCollectiveError("no such thing"),
    }
    result = session(path, fake)
    skipped = [
        point
        for point in (*PLAN.kernels_in_order(), *PLAN.collectives)
        if point.op in fake.failing
    ]
    assert [entry.point for entry in result.skipped] == skipped
    assert {entry.reason for entry in result.skipped} == {
        "RuntimeError: out of memory",
        "RefusedCollectiveError: no such thing",
    }
    assert result.done == result.planned
    again = FakeMeasurer()
    session(path, again)
    assert again.measured == []


def test_an_interrupt_leaves_a_log_that_can_be_continued(tmp_path):
    path = tmp_path / "log.jsonl"
    fake = FakeMeasurer()
    fake.failing = {"all_reduce": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        session(path, fake, budget_s=60)
    assert fake.open_groups == 0
    assert read_session(path).done == len(fake.measured) == 40
    assert session(path, FakeMeasurer()).done == read_session(path).planned


def test_a_dead_rank_ends_the_session_but_not_the_log(tmp_path):
    path = tmp_path / "log.jsonl"
    fake = FakeMeasurer()
    fake.failing = {"broadcast": CalibrationError("a rank of a collective has failed")}
    with pytest.raises(CalibrationError, match="has failed"):
        session(path, fake)
    assert read_session(path).done == len(fake.measured)


def test_a_log_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CalibrationError, match=r"cannot (open|write)"):
        session(tmp_path / "file" / "log.jsonl", FakeMeasurer())
