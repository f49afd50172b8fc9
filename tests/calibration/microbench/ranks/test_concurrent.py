"""Operators on several ranks at once: that they overlap, what counts, and one rank as before."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
import itertools
import threading
import time

import pytest

from dse.calibration.microbench import (
    HostMeasurement,
    MeasureSettings,
    Purpose,
    make_plan,
    torch_measurer,
)
from dse.calibration.microbench.operators._operands import ColdCaches
from dse.calibration.microbench.plan import KernelPoint
from dse.calibration.microbench.ranks import ConcurrentRanks, RefusedKernelError, concurrent_ranks
from dse.calibration.microbench.ranks._barrier import SharedBarrier, shared_counters
from dse.calibration.microbench.ranks._concurrent import (
    MeasureHost,
    Prepared,
    PrepareKernel,
    Release,
    TakeSamples,
    _KernelWorker,
)
from dse.calibration.microbench.timing import CpuTimer, measure
from dse.errors import CalibrationError

torch = pytest.importorskip("torch")

#: Time for what takes milliseconds on a free machine, in seconds.
PATIENCE_S = 60.0

READY = Prepared()
POINT = KernelPoint("elementwise", (("traffic_bytes", 4096),), "fp32", Purpose.FIT)
LOOKUP = KernelPoint(
    "embedding_forward",
    (("rows", 50), ("dim", 8), ("batch", 4), ("pooling", 2), ("alpha", 0.0), ("value_bytes", 4)),
    "fp32",
    Purpose.FIT,
)
SETTINGS = MeasureSettings(min_repeats=12, max_repeats=12, warm_up_s=0.0)


class MadeUpRanks:
    """Ranks whose calls take given seconds; remembers the orders."""

    def __init__(self, *call_s, answer=READY):
        self.world_size = len(call_s)
        self.orders = []
        self._call_s = [itertools.cycle(one) for one in call_s]
        self._answer = answer

    def ask(self, order):
        self.orders.append(order)
        if isinstance(order, TakeSamples):
            return [
                [order.calls * next(one) for _ in range(order.samples)] for one in self._call_s
            ]
        return [self._answer] * self.world_size

    def calls(self):
        return {order.calls for order in self.orders if isinstance(order, TakeSamples)}


def test_a_sample_is_the_mean_over_the_ranks():
    ranks = MadeUpRanks([1e-3], [3e-3])
    sample = ConcurrentRanks(ranks).kernel(POINT, SETTINGS)
    assert (sample.time_s, sample.repeats) == (pytest.approx(2e-3), 12)
    assert sample.half_width_s == pytest.approx(0.0, abs=1e-12)
    assert ranks.orders[0] == PrepareKernel(POINT)
    assert ranks.calls() == {1}


def test_short_calls_are_repeated_alike_on_all_ranks():
    ranks = MadeUpRanks([1e-6], [2e-6])
    assert ConcurrentRanks(ranks).kernel(POINT, SETTINGS).time_s == pytest.approx(1.5e-6)
    # 1, 10, 100 calls are too short; 1.2 × 1 ms / 1.5 µs = 800 are enough, rounded up.
    *short, enough = sorted(ranks.calls())
    assert short == [1, 10, 100]
    assert enough in (800, 801)


def test_samples_with_cold_caches_are_one_call():
    ranks = MadeUpRanks([1e-6], [1e-6], answer=Prepared(one_call=True))
    ConcurrentRanks(ranks).kernel(LOOKUP, SETTINGS)
    assert ranks.calls() == {1}


def test_one_rank_measures_what_is_measured_without_ranks():
    """The same stream of times gives the same sample either way."""
    times_s = [(1.0 + 0.1 * (number % 7)) * 1e-3 for number in range(40)]

    class Listed:
        def sampler(self, call):
            given = iter(times_s)
            next(given)  # the one from which the number of calls is found
            return lambda: next(given)

    settings = MeasureSettings(min_repeats=6, max_repeats=12, warm_up_s=0.0, time_limit_s=1e9)
    alone = measure(Listed(), lambda: None, settings)
    assert ConcurrentRanks(MadeUpRanks(times_s)).kernel(POINT, settings) == alone


def test_a_point_that_a_rank_refuses_is_named():
    ranks = MadeUpRanks([1e-3], answer=Prepared(refusal="RuntimeError: no memory"))
    with pytest.raises(RefusedKernelError, match="no memory"):
        ConcurrentRanks(ranks).kernel(POINT, SETTINGS)
    assert [type(order) for order in ranks.orders] == [PrepareKernel]


def test_host_figures_are_means_with_the_widest_interval():
    class Hosts:
        world_size = 2

        def ask(self, order):
            assert order == MeasureHost(SETTINGS)
            return [
                HostMeasurement(1e-6, 2e-6, 0.0, 3e-6, 1e-6, None, 1e-8),
                HostMeasurement(3e-6, 2e-6, 0.0, 5e-6, 2e-6, None, 4e-8),
            ]

    found = ConcurrentRanks(Hosts()).host(SETTINGS)
    assert found.between_operators_s == pytest.approx(2e-6)
    assert found.launch_s == pytest.approx(4e-6)
    assert found.between_launches_s == pytest.approx(1.5e-6)
    assert (found.graph_launch_s, found.half_width_s) == (None, 4e-8)


@contextmanager
def meetings(count):
    with shared_counters(count) as path:
        yield path, [SharedBarrier(path, number, count, PATIENCE_S) for number in range(count)]


def together(*functions):
    """Runs functions in threads; returns their results, or raises what one raised."""
    results = [None] * len(functions)

    def run(number, function):
        try:
            results[number] = function()
        except BaseException as error:
            results[number] = error

    threads = [
        threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(functions)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE_S)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def test_nobody_goes_on_before_all_have_come():
    order, lock = [], threading.Lock()

    def process(number, meeting):
        for turn in range(20):
            with lock:
                order.append(("came", turn))
            meeting.wait()
            with lock:
                order.append(("went", turn))

    with meetings(3) as (_, steps):
        together(*(partial(process, number, step) for number, step in enumerate(steps)))
    for turn in range(20):
        last_came = max(place for place, one in enumerate(order) if one == ("came", turn))
        first_went = order.index(("went", turn))
        assert last_came < first_went


def test_one_that_does_not_come_is_an_error():
    with shared_counters(2) as path, pytest.raises(TimeoutError, match=r"within 0\.01 s"):
        SharedBarrier(path, 0, 2, timeout_s=0.01).wait()


def test_the_file_is_gone_and_the_memory_stays():
    with meetings(2) as (path, steps):
        assert path.exists()
    assert not path.exists()
    together(*(step.wait for step in steps))


def test_work_goes_on_while_one_waits():
    calls = []
    with meetings(2) as (_, steps):

        def late():
            while len(calls) < 5:
                time.sleep(1e-3)
            steps[1].wait()

        together(lambda: steps[0].wait(lambda: calls.append(1)), late)
    assert len(calls) >= 5


def workers(steps):
    """Ranks as threads, with a clock on which every call takes a second."""
    return [
        _KernelWorker(torch, step, ColdCaches(0), 0, itertools.count(0, 10**9).__next__)
        for step in steps
    ]


def test_every_call_runs_while_that_of_the_companion_runs():
    """A call returns only when the companion's has begun: one after the other, none would."""
    both, seen = threading.Barrier(2), []

    def call():
        both.wait(PATIENCE_S)
        seen.append(threading.get_ident())
        both.wait(PATIENCE_S)

    with meetings(2) as (_, steps):
        pair = workers(steps)
        together(*(partial(one.answer, PrepareKernel(POINT)) for one in pair))
        for one in pair:
            one._call = call
        times_s = together(*(partial(one.answer, TakeSamples(5, 2)) for one in pair))
    assert times_s == [[1.0] * 5] * 2
    # Five samples of two calls, each after one that is not timed.
    assert [len(set(seen[turn : turn + 2])) for turn in range(0, 30, 2)] == [2] * 15


def test_a_rank_answers_every_order(monkeypatch):
    monkeypatch.setattr(
        "dse.calibration.microbench.operators._operands.describe_machine", lambda _: TinyCache()
    )
    with meetings(1) as (_, steps):
        (one,) = workers(steps)
        assert one.answer(PrepareKernel(POINT)) == Prepared()
        assert one.answer(TakeSamples(2, 3)) == [1.0, 1.0]
        assert one.answer(PrepareKernel(LOOKUP)) == Prepared(one_call=True)
        assert one.answer(TakeSamples(2, 1)) == [1.0, 1.0]
        unknown = KernelPoint("gemm", (("m", -1), ("n", 1), ("k", 1)), "fp32", Purpose.FIT)
        assert "RuntimeError" in one.answer(PrepareKernel(unknown)).refusal
        assert one.answer(Release()) is None
        with pytest.raises(TypeError, match="unknown order"):
            one.answer("go")


class TinyCache:
    last_level_cache_bytes = 1024


def test_lookups_and_updates_only_find_cold_caches(monkeypatch):
    monkeypatch.setattr(
        "dse.calibration.microbench.operators._operands.describe_machine", lambda _: TinyCache()
    )
    cold = ColdCaches(0)
    assert cold.before("gemm") is None
    others = cold.before("embedding_forward")
    assert others is not None
    assert cold.before("embedding_forward") is others
    others.evict()
    widths = [others.neighbour().shape[1] for _ in range(8)]
    assert widths == 2 * [32, 64, 32, 64]


@pytest.mark.slow
def test_real_ranks_measure_and_leave_nothing_behind():
    settings = MeasureSettings(min_repeats=6, max_repeats=6, time_limit_s=0.01, warm_up_s=0.0)
    plan = make_plan("cpu", local_ranks=2, threads=1, points=2)
    assert plan.busy_devices == 2
    with torch_measurer(plan, settings) as measurer:
        busy = measurer._busy
        assert busy is not None
        sample = measurer.kernel(POINT)
        processes = busy._group.process_ids
    assert sample.repeats >= 6
    assert 0 < sample.time_s < PATIENCE_S
    assert len(set(processes)) == 2
    assert not any(_alive(process) for process in processes)


@pytest.mark.slow
def test_a_rank_that_dies_is_told():
    import os
    import signal

    def run():
        with concurrent_ranks(2, 1, 0, time.perf_counter_ns, PATIENCE_S) as ranks:
            os.kill(ranks._group.process_ids[1], signal.SIGKILL)
            ranks.kernel(POINT, SETTINGS)

    with pytest.raises(CalibrationError, match="rank 1 was ended by SIGKILL"):
        run()


def _alive(process):
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_one_busy_device_is_the_plan_of_before():
    old = make_plan("cpu", local_ranks=2, threads=1, points=2, busy_devices=1)
    new = make_plan("cpu", local_ranks=2, threads=1, points=2)
    assert (old.busy_devices, new.busy_devices) == (1, 2)
    assert old.kernels == new.kernels
    with torch_measurer(old, SETTINGS) as measurer:
        assert measurer._busy is None
        assert isinstance(measurer._timer, CpuTimer)


@pytest.mark.parametrize(
    ("device", "busy", "message"),
    [
        ("cpu", 3, "expected 1 to 2; give a CPU more ranks"),
        ("cpu", 0, "expected 1 to 2"),
        ("cuda", 2, "one at a time"),
    ],
)
def test_more_busy_devices_than_share_a_memory_are_refused(device, busy, message):
    with pytest.raises(CalibrationError, match=message):
        make_plan(device, local_ranks=2, threads=1, points=2, busy_devices=busy)
    assert make_plan("cuda", local_ranks=2, threads=1, points=2).busy_devices == 1
