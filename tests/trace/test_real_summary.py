"""Figures of published traces."""

from __future__ import annotations

import numpy as np
import pytest

from dse.simulate import critical_path, simulate
from dse.trace import compare_with_measured, summarise, summarise_path
from tests.trace.published import needs_published_traces, published, published_graph

pytestmark = needs_published_traces


@pytest.fixture(scope="session")
def summary():
    return summarise(*published("dlrm"))


def test_steps_agree_with_resimulation(summary):
    """Two ways to the same figures: events cut to the step, and a simulation of its graph."""
    made = published_graph("dlrm")
    ranks = compare_with_measured(made, simulate(made.graph))
    for rank, one in zip(summary.ranks, ranks, strict=True):
        last = rank.last_step
        assert [step.number for step in rank.steps] == [10]
        assert last.measured_s == one.measured_s
        assert last.compute_s == pytest.approx(one.compute_s, abs=10e-6)
        assert last.exposed_communication_s == pytest.approx(
            one.exposed_communication_s, abs=10e-6
        )
        assert last.wait_s == pytest.approx(one.wait_s, abs=10e-6)
        assert last.communication_s >= last.exposed_communication_s
        parts = last.compute_s + last.exposed_communication_s + last.idle_s
        assert parts == pytest.approx(last.measured_s)


def test_waits_of_collectives_add_up(summary):
    assert len(summary.collectives) == 8
    for one in summary.collectives:
        assert one.whole
        assert max(one.waits_s) == one.longest_wait_s
        assert one.waits_s[one.ranks.index(one.last_rank)] == 0
        # NVLink of a V100 carries 150 GB/s one way.
        assert 0 < one.bus_bandwidth_bytes_per_s < 150e9
    # Ranks 7, 5 and 4 come last 5 times, twice and once.
    assert [(one.rank, one.times_last) for one in summary.stragglers[:3]] == [
        (7, 5),
        (5, 2),
        (4, 1),
    ]
    waited = sum(one.waited_s for one in summary.stragglers)
    assert waited == pytest.approx(sum(one.others_waited_s for one in summary.stragglers))


def test_the_host_decides_the_step_and_kernels_have_slack():
    made = published_graph("dlrm")
    times = simulate(made.graph)
    ends = [task for tasks in made.end_tasks for task in tasks]
    path = critical_path(times, ends)
    found = summarise_path(made, path)
    latest = max(part.offset_s + part.measured_s for part in made.steps)
    assert found.length_s == pytest.approx(latest, rel=1e-6)
    for parts in (found.parts, found.ranks):
        assert sum(part.seconds for part in parts) == pytest.approx(found.length_s)
    seconds = {part.part: part.seconds for part in found.parts}
    host = seconds["host operators"] + seconds["host gaps"] + seconds["calls"]
    assert host > 0.95 * (found.length_s - seconds["later start"])
    # Half as long kernels beside the path change nothing.
    beside = np.setdiff1d(np.arange(made.graph.task_count), path.tasks)
    shorter = made.graph.duration_s.copy()
    shorter[beside] /= 2
    assert simulate(made.graph, shorter).end_s[ends].max() == path.length_s
