"""Re-simulation of published traces."""

from __future__ import annotations

import numpy as np
import pytest

from dse.graph import collective_members
from dse.simulate import simulate
from dse.trace import (
    TaskRole,
    compare_with_measured,
)
from tests.trace.helpers import resimulated
from tests.trace.published import needs_published_traces, published, published_graph

pytestmark = needs_published_traces


@pytest.fixture(scope="session")
def dlrm():
    return published("dlrm")[0]


@pytest.fixture(scope="session")
def together():
    return published_graph("dlrm")


def starts_as_measured(made, times):
    """Deviations of all starts in µs; gaps on streams may begin earlier, with their stream."""
    deviation = times.start_s * 1e6 - made.measured_start_ns / 1e3
    return np.abs(deviation[made.role != TaskRole.STREAM_GAP])


def test_dlrm_ranks_alone(dlrm):
    result = resimulated(dlrm, together=False)
    assert [round(one.measured_s * 1e6) for one in result] == [
        14455,
        19901,
        13017,
        19313,
        17979,
        17797,
        13091,
        12509,
    ]
    for one in result:
        assert abs(one.error) <= 0.02
        # Ranks 1 and 3 begin with kernels that were launched before the trace.
        assert one.unexplained_share <= (0.06 if one.rank in (1, 3) else 0.01)


def test_dlrm_ranks_together(together):
    assert {part.cut_by for part in together.steps} == {"profiler step 10"}
    times = simulate(together.graph)
    for one in compare_with_measured(together, times):
        assert abs(one.error) <= 0.03
        # Alone they seem to communicate for 1.6 to 11 ms, nearly all of which is waiting.
        assert 1.7e-4 < one.exposed_communication_s < 2.2e-4
        assert 1.0e-3 < one.compute_s < 1.3e-3
    assert starts_as_measured(together, times).max() < 1


def test_dlrm_transfers_agree_over_ranks(together):
    members = collective_members(together.graph)
    assert [len(tasks) for tasks in members.values()] == [8] * 8
    for tasks in members.values():
        transfer_us = together.graph.duration_s[tasks] * 1e6
        middle = np.median(transfer_us)
        # The clocks of the ranks agree to a few µs only, and times are whole µs.
        assert np.abs(transfer_us - middle).max() <= max(0.1 * middle, 4)


def test_dlrm_transfers_do_not_contain_waiting(together):
    """A rank that starts 1 ms later holds up the others, whose transfers stay."""
    graph = together.graph
    before = simulate(graph)
    late = next(part.rank for part in together.steps if part.offset_s == 0)
    first = int(np.flatnonzero((together.rank == late) & (together.role == TaskRole.HOST_WORK))[0])
    duration_s = graph.duration_s.copy()
    duration_s[first] += 20e-3
    after = simulate(graph, duration_s)
    collectives = together.role == TaskRole.COLLECTIVE
    assert (after.start_s[collectives] > before.start_s[collectives] + 5e-3).all()
    assert np.allclose(
        (after.end_s - after.start_s)[collectives], (before.end_s - before.start_s)[collectives]
    )


@pytest.mark.parametrize(("name", "handovers"), [("linear", 40), ("resnet", 30)])
def test_one_rank(name, handovers):
    made = published_graph(name)
    times = simulate(made.graph)
    (one,) = compare_with_measured(made, times)
    assert made.steps[0].cut_by == "whole trace"
    assert abs(one.error) <= 0.02
    assert one.unexplained_share < 0.001
    assert starts_as_measured(made, times).max() < 1
    # One hand-over to the thread of the backward pass in each iteration.
    assert made.graph.names.count("wake") == handovers
    # Kernels of no length and a host of no length: what is left are delays and gaps.
    fast = made.graph.duration_s.copy()
    fast[np.isin(made.role, (TaskRole.KERNEL, TaskRole.HOST_WORK, TaskRole.CALL))] = 0
    (faster,) = compare_with_measured(made, simulate(made.graph, fast))
    assert faster.simulated_s < 0.75 * one.simulated_s
