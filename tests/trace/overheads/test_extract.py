"""T1 to T5 of traces made by hand; times in µs."""

from __future__ import annotations

import pytest

from dse.errors import ConfigError
from dse.trace import link, read_kineto
from dse.trace.overheads import check_host_time, extract_overheads
from dse.trace.overheads._observe import observe
from dse.trace.overheads._robust import far_out_ns, figure_of
from tests.trace.helpers import call, kernel, operator, span, write


def trace_of(path, events):
    (trace,) = read_kineto(write(path / "t.json", events))
    return trace, link(trace)


def profile_of(path, events, step=None):
    trace, links = trace_of(path, events)
    return extract_overheads([trace], [links], step)


def sync(ts, dur, correlation, name="cudaStreamSynchronize"):
    return call(ts, dur, correlation, name=name)


#: `a` launches two kernels, `b` none, `c` one.
PLAIN = [
    operator("a", 0, 40),
    call(10, 5, 1),
    kernel("k", 20, 3, 1),
    call(22, 6, 2),
    kernel("k", 30, 3, 2),
    operator("b", 47, 9),
    operator("c", 60, 20),
    operator("inner", 61, 18),
    call(64, 4, 3),
    kernel("k", 70, 3, 3),
]


def operator_of(profile, name):
    return {known.name: known for known in profile.operators}.get(name)


def us(figure):
    return None if figure is None else round(1e6 * figure.mean_s, 6)


def test_five_overheads_by_hand(tmp_path):
    profile = profile_of(tmp_path, PLAIN)
    a, b, c = (operator_of(profile, name) for name in "abc")
    assert (us(a.before_launch), us(a.between_launches), us(a.after_launch)) == (10, 7, 12)
    assert (a.calls, a.launches, a.without_launches) == (1, 2, None)
    assert (us(b.without_launches), b.calls, b.launches, b.before_launch) == (9, 0, 0, None)
    # Launches belong to the outermost operator, which alone is known.
    assert (us(c.before_launch), us(c.after_launch)) == (4, 12)
    assert operator_of(profile, "inner") is None
    shared = profile.shared
    # T1: 40 → 47 and 56 → 60; T2: 10 and 4; T3: 12 and 12; T4: 5, 6 and 4; T5: 7.
    assert us(shared.between_operators) == 5.5
    assert (us(shared.before_launch), us(shared.after_launch)) == (7, 12)
    assert (us(shared.launch), us(shared.between_launches)) == (5, 7)
    assert us(shared.without_launches) == 9
    assert shared.graph_launch is None
    assert us(profile.launch("cudaLaunchKernel")) == 5
    counts = (shared.between_operators.count, shared.launch.count, shared.before_launch.count)
    assert counts == (2, 3, 2)


def test_the_walk_gives_the_time_back(tmp_path):
    trace, links = trace_of(tmp_path, PLAIN)
    profile = extract_overheads([trace], [links])
    (check,) = check_host_time([trace], [links], profile)
    assert check.measured_s == pytest.approx(80e-6)
    assert check.error == pytest.approx(0, abs=1e-12)
    assert check.far_out_s == 0


def test_synchronisations_take_no_time_of_an_operator(tmp_path):
    waiting = [
        operator("a", 0, 1020),
        call(10, 5, 1),
        kernel("k", 20, 900, 1),
        sync(18, 1000, 2),
        # Between two operators.
        sync(1024, 500, 3, "cudaDeviceSynchronize"),
        operator("b", 1530, 206),
        call(1533, 4, 4, name="cudaMemcpy"),
        sync(1538, 190, 5, "cudaEventSynchronize"),
    ]
    profile = profile_of(tmp_path, waiting)
    a, b = operator_of(profile, "a"), operator_of(profile, "b")
    assert (us(a.before_launch), us(a.after_launch)) == (10, 5)
    assert us(profile.shared.between_operators) == 10
    assert us(b.without_launches) == 206 - 4 - 190


@pytest.mark.parametrize(
    ("name", "ends", "waits"),
    [
        ("Memcpy DtoH (Device -> Pageable)", 300, True),
        ("Memcpy HtoD (Pageable -> Device)", 330, False),
        ("Memcpy HtoD (Pinned -> Device)", 300, False),
    ],
)
def test_pageable_copies_that_wait_are_no_launches_of_usual_length(tmp_path, name, ends, waits):
    events = [
        operator("aten::item", 0, 320),
        call(6, 300, 1, name="cudaMemcpyAsync"),
        kernel(name, 200, ends - 200, 1, cat="gpu_memcpy"),
    ]
    profile = profile_of(tmp_path, events)
    item = operator_of(profile, "aten::item")
    assert (us(item.before_launch), us(item.after_launch)) == (6, 14)
    assert us(profile.launch("cudaMemcpyAsync")) == (None if waits else 300)
    # Copies are no kernels.
    assert profile.shared.launch is None


def test_a_copy_that_waits_is_told_where_it_begins_the_trace(tmp_path):
    events = [
        call(0, 300, 1, name="cudaMemcpyAsync"),
        kernel("Memcpy DtoH (Device -> Pageable)", 100, 150, 1, cat="gpu_memcpy"),
        call(310, 5, 2),
        kernel("k", 320, 3, 2),
    ]
    profile = profile_of(tmp_path, events)
    assert profile.launch("cudaMemcpyAsync") is None
    assert us(profile.shared.launch) == 5


def test_allocations_are_left_out(tmp_path):
    events = [
        operator("a", 0, 500),
        call(5, 400, 1, name="cudaMalloc"),
        call(410, 5, 2),
        kernel("k", 420, 3, 2),
    ]
    assert us(operator_of(profile_of(tmp_path, events), "a").before_launch) == 10


def test_gaps_of_a_thread_that_handed_over_are_no_overhead(tmp_path):
    forward = {"Sequence number": 7, "Fwd thread id": 0}
    backward = {"Sequence number": 7, "Fwd thread id": 1}
    events = [
        operator("a", 0, 20, **forward),
        call(5, 5, 1),
        kernel("k", 20, 3, 1),
        operator("autograd::engine::evaluate_function: ABackward0", 50, 20, tid=12, **backward),
        operator("AccumulateGrad", 76, 4, tid=12),
        operator("optimizer", 100, 10),
        operator("optimizer", 112, 10),
    ]
    profile = profile_of(tmp_path, events)
    # 70 → 76 on the one thread and 110 → 112 on the other, but not 20 → 100.
    assert us(profile.shared.between_operators) == 4
    assert profile.shared.between_operators.count == 2
    assert operator_of(profile, "ABackward0") is not None


def test_gaps_end_with_the_step_and_with_the_loading_of_data(tmp_path):
    def step(number, ts, dur):
        return span("user_annotation", f"ProfilerStep#{number}", ts, dur)

    loading = span("user_annotation", "enumerate(DataLoader)#Iter.__next__", 130, 60)
    events = [
        step(3, 0, 100),
        operator("a", 10, 20),
        call(12, 5, 1),
        kernel("k", 20, 3, 1),
        operator("a", 33, 20),
        step(4, 100, 200),
        operator("a", 110, 15),
        loading,
        operator("a", 195, 20),
        operator("b", 220, 20),
        call(222, 5, 2),
        kernel("k", 230, 3, 2),
    ]
    trace, links = trace_of(tmp_path, events)
    assert [one.gap_ns for one in observe(trace, links)] == [-1, 3000, -1, -1, 5000]
    assert [one.gap_ns for one in observe(trace, links, 4)] == [-1, -1, 5000]
    assert us(extract_overheads([trace], [links], 3).shared.between_operators) == 3
    with pytest.raises(ConfigError, match="no profiler step 7; steps in this trace: 3, 4"):
        observe(trace, links, 7)


def test_launches_outside_of_operators_and_calls_of_the_driver_inside(tmp_path):
    events = [
        operator("a", 0, 10),
        call(12, 6, 1),
        span("cuda_driver", "cuLaunchKernel", 13, 3, pid=10, tid=11, args={"correlation": 1}),
        kernel("triton", 20, 3, 1),
        operator("b", 25, 10),
        call(26, 9, 2, name="cudaGraphLaunch"),
        kernel("k", 40, 3, 2),
        kernel("k", 44, 3, 2),
    ]
    trace, links = trace_of(tmp_path, events)
    profile = extract_overheads([trace], [links])
    # 10 → 25 without the launch in it.
    assert us(profile.shared.between_operators) == 9
    assert us(profile.shared.graph_launch) == 9
    assert us(profile.shared.launch) == 6
    (check,) = check_host_time([trace], [links], profile)
    assert check.measured_s == pytest.approx(35e-6)


def test_a_trace_of_the_host_alone_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no call launched device work"):
        profile_of(tmp_path, [operator("aten::mm", 0, 900), operator("aten::mm", 910, 900)])


def test_far_out_samples_change_nothing_but_the_count():
    usual = [4000, 5000, 6000, 7000, 8000] * 8
    alone, spoiled = figure_of(usual), figure_of([*usual, 700_000_000])
    assert spoiled.mean_s == pytest.approx(alone.mean_s)
    assert spoiled.spread == pytest.approx(alone.spread)
    assert (alone.count, spoiled.count) == (40, 41)
    assert far_out_ns(usual) == 0
    assert far_out_ns([*usual, 700_000_000]) == pytest.approx(700_000_000 - 6000)


def test_a_skewed_distribution_keeps_its_tail():
    # A tenth of all takes half of the time and belongs to it: 2, 4, … 36 µs and 180 µs.
    samples = [2000 * (1 + i) for i in range(18)] + [180_000] * 2
    assert figure_of(samples).mean_s == pytest.approx(sum(samples) / len(samples) * 1e-9)


def test_spread_by_hand():
    figure = figure_of([10_000, 30_000])
    assert figure.mean_s == pytest.approx(20e-6)
    assert figure.variance_s2 == pytest.approx(100e-12)
    assert figure_of([]) is None
    nothing = figure_of([0, 0])
    assert (nothing.mean_s, nothing.spread, nothing.count) == (0, 0, 2)
