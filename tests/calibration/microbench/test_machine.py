from __future__ import annotations

from dataclasses import replace
import multiprocessing

import pytest

from dse._process.system import available_cores
from dse.calibration.microbench import (
    MeasureSettings,
    Purpose,
    describe_machine,
    make_plan,
    run_session,
)
from dse.calibration.microbench._machine import _last_level_cache_bytes
from dse.calibration.microbench.plan import CollectivePoint
from dse.calibration.microbench.ranks import RefusedCollectiveError, collective_ranks
from dse.calibration.microbench.timing import measure_host
from dse.errors import CalibrationError

torch = pytest.importorskip("torch")

QUICK = MeasureSettings(time_limit_s=0.02, min_repeats=6, max_repeats=20, warm_up_s=0.0)


def test_this_machine_is_described():
    machine = describe_machine("cpu")
    assert machine.device_name
    assert machine.cores == machine.compute_units == available_cores() >= 1
    assert machine.memory_bytes > 2**20
    assert dict(machine.libraries)["torch"] == torch.__version__


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_is_said():
    with pytest.raises(CalibrationError, match="no CUDA device"):
        describe_machine("cuda")


def test_last_level_cache_is_the_highest_level(tmp_path):
    for index, (level, size) in enumerate([("1", "48K"), ("2", "2048K"), ("3", "32M")]):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        (folder / "level").write_text(level + "\n")
        (folder / "size").write_text(size + "\n")
    assert _last_level_cache_bytes(tmp_path) == 32 * 2**20
    assert _last_level_cache_bytes(tmp_path / "missing") == 0


def test_host_overheads_on_a_cpu():
    host = measure_host("cpu", QUICK)
    assert host.between_operators_s > 0
    assert host.before_launch_s > 0
    assert host.after_launch_s == 0
    assert host.launch_s >= 0
    assert host.between_launches_s >= 0
    assert host.graph_launch_s is None


@pytest.mark.slow
def test_a_session_on_two_ranks(tmp_path):
    whole = make_plan(local_ranks=2, threads=1, points=4)
    small = [point for point in whole.collectives if point.size_bytes in (512, 768)]
    plan = make_plan(local_ranks=1, threads=1, points=1, operators=["gemm"])
    plan = replace(plan, ranks=2, kernels=plan.kernels[:1], collectives=tuple(small))
    threads = torch.get_num_threads()
    result = run_session(plan, tmp_path / "log.jsonl", 60.0, settings=QUICK)
    assert torch.get_num_threads() == threads
    assert result.skipped == ()
    assert len(result.collectives) == len(small) == 12
    assert {entry.op for entry in result.collectives} == {point.op for point in small}
    for entry in (*result.kernels, *result.collectives):
        assert entry.time_s > 0
        assert entry.half_width_s >= 0
        assert entry.repeats >= 6


@pytest.mark.slow
def test_ranks_go_on_after_a_refusal_and_end_with_a_failure():
    def point(op: str, size_bytes: int) -> CollectivePoint:
        return CollectivePoint(op, 2, size_bytes, Purpose.FIT)

    def refusals_then_failure() -> None:
        with collective_ranks("gloo", 2, 1, timeout_s=30.0) as ranks:
            with pytest.raises(RefusedCollectiveError, match="sing_along"):
                ranks.measure(point("sing_along", 64), QUICK)
            with pytest.raises(RefusedCollectiveError, match="memory"):
                ranks.measure(point("all_reduce", 2**60), QUICK)
            assert ranks.measure(point("broadcast", 64), QUICK).time_s > 0
            ranks.ask("nonsense")

    with pytest.raises(CalibrationError, match=r"TypeError.*nonsense") as caught:
        refusals_then_failure()
    (note,) = caught.value.__cause__.__notes__
    assert "Traceback" in note
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_a_killed_rank_leaves_no_process_behind():
    def kill_one() -> None:
        with collective_ranks("gloo", 2, 1, timeout_s=30.0) as ranks:
            victim = multiprocessing.active_children()[0]
            victim.kill()
            ranks.measure(CollectivePoint("broadcast", 2, 64, Purpose.FIT), QUICK)

    with pytest.raises(CalibrationError, match="rank of a collective"):
        kill_one()
    assert multiprocessing.active_children() == []
