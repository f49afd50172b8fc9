"""Re-simulation of training that is captured on this machine's CPUs."""

from __future__ import annotations

import numpy as np
import pytest

from dse.graph import collective_members
from dse.simulate import simulate
from dse.trace import (
    TaskRole,
    compare_with_measured,
    link,
    match_collectives,
    read_kineto,
    trace_graph,
)
from tests.trace.cpu.capturing import LARGE, WIDTH, capture_mlp, capture_ranks

pytest.importorskip("torch")


def steps_of(traces):
    links = [link(trace) for trace in traces]
    collectives = match_collectives(traces, links)
    for step in traces[0].steps:
        yield trace_graph(traces, links, collectives, step.number)


# Starting ranks takes many seconds; test_cpu_graphs.py has the same on hand-made traces.
@pytest.fixture(scope="session")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    capture_ranks(folder)
    return read_kineto(folder)


def test_each_step_of_a_network(tmp_path):
    capture_mlp(tmp_path / "mlp.json")
    traces = read_kineto(tmp_path / "mlp.json")
    graphs = list(steps_of(traces))
    assert len(graphs) == 3
    for made in graphs:
        times = simulate(made.graph)
        (result,) = compare_with_measured(made, times)
        assert abs(result.error) <= 0.02
        assert result.exposed_communication_s == 0
        assert result.compute_s + result.idle_s == pytest.approx(result.simulated_s)
        assert not made.notes
        computed = {
            name
            for name, role in zip(made.graph.names, made.role, strict=True)
            if role == TaskRole.KERNEL
        }
        # Two layers forward, and three products of matrices backward.
        assert {"aten::addmm", "aten::mm"} <= computed
        assert not computed & {"aten::linear", "AddmmBackward0"}


@pytest.mark.slow
def test_data_parallel_ranks_together(ranks):
    for made in steps_of(ranks):
        times = simulate(made.graph)
        for result in compare_with_measured(made, times):
            assert abs(result.error) <= 0.03
            assert result.compute_s > 0
        assert not made.notes
        deviation_us = np.abs(times.start_s * 1e6 - made.measured_start_ns / 1e3)
        assert deviation_us[made.role != TaskRole.STREAM_GAP].max() <= 3


@pytest.mark.slow
def test_data_parallel_ranks_exchange_all_gradients(ranks):
    links = [link(trace) for trace in ranks]
    collectives = match_collectives(ranks, links)
    assert all(
        collective.complete and collective.operation == "all_reduce" for collective in collectives
    )
    steps = [step.number for step in ranks[0].steps]
    for step in steps:
        sizes = [collective.message_bytes for collective in collectives if collective.step == step]
        assert sum(sizes) == 4 * (4 * WIDTH**2 + 3 * WIDTH + LARGE)
    for trace, linked in zip(ranks, links, strict=True):
        asking = {
            trace.name_of(int(linked.launch[event]))
            for collective in collectives
            for rank, event in zip(collective.ranks, collective.events, strict=True)
            if rank == trace.rank
        }
        assert asking == {"c10d::allreduce_"}


@pytest.mark.slow
def test_transfers_begin_together_once_the_last_rank_is_there(ranks):
    seen = 0
    for made in steps_of(ranks):
        times = simulate(made.graph)
        for members in collective_members(made.graph).values():
            began_us = times.start_s[members] * 1e6
            assert np.ptp(began_us) <= 1e-3
            arrived_us = made.measured_start_ns[members] / 1e3
            assert (began_us >= arrived_us.max() - 3).all()
            assert (made.graph.duration_s[members] > 0).all()
            seen += 1
    assert seen >= 3


@pytest.mark.slow
def test_slower_network_holds_up_every_rank(ranks):
    for made in steps_of(ranks):
        before = compare_with_measured(made, simulate(made.graph))
        collectives = made.role == TaskRole.COLLECTIVE
        slower_s = np.where(collectives, 1.0, made.graph.duration_s)
        for fast, slow in zip(
            before,
            compare_with_measured(made, simulate(made.graph, slower_s)),
            strict=True,
        ):
            assert slow.simulated_s > 1.0
            assert slow.compute_s == pytest.approx(fast.compute_s, rel=0.01)
