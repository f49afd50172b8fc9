"""Tables in host memory: durations, memory of device and host, physical laws."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from dse.indices import Zipf
from dse.machine import HostLinkSpec, Precision
from dse.machine.kernels import HOST_ROWS_SPREAD
from dse.model import Optimizer
from dse.sharding import ComputeKernel, ShardingPlan, ShardingType, TablePlan, table_shards
from dse.workload import predict_job
from dse.workload.dlrm import (
    DlrmJob,
    DlrmProblem,
    DlrmRuntime,
    PlanScorer,
    Slot,
    slot_durations_s,
)
from tests.conftest import make_cluster, make_device, make_model, make_table

TW, CW, RW = ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE, ShardingType.ROW_WISE
UVM, CACHING = ComputeKernel.FUSED_UVM, ComputeKernel.FUSED_UVM_CACHING
FUSED = ComputeKernel.FUSED
TABLE = make_table("a", rows=1_000_000, dim=64, pooling=10)


def problem(cluster=None, tables=(TABLE,), optimizer=Optimizer.ROWWISE_ADAGRAD, batch=4096):
    model = replace(make_model(tables), sparse_optimizer=optimizer)
    return DlrmProblem(model, cluster or make_cluster(), batch, Precision.TF32, DlrmRuntime())


def plan(kernel, kind=TW, ranks=(1,), factor=None, world_size=4) -> ShardingPlan:
    return ShardingPlan(world_size, (TablePlan("a", kind, ranks, kernel, factor),))


def slots(scorer: PlanScorer, made: ShardingPlan):
    return slot_durations_s(scorer.problem, *scorer.layout_and_features(made))


#: What FBGEMM's sort of 40,960 lookups takes longer than a plain one, at 2 TB/s.
ORDER_S = 40_960 * 410 / 0.8 / 2e12


def test_durations_of_rows_in_host_memory_by_hand():
    found = slots(PlanScorer(problem()), plan(UVM))
    # 40,960 lookups of 256 bytes at 0.8 of 25 GB/s after 10 µs, a few of them of a row that is on
    # its way already; what the device streams passes beside them.
    link_s = 10e-6 + 40_960 * 256 / 0.8 / 25e9
    assert found[Slot.POOLED_LOOKUP, 1, 0] == pytest.approx(2.5e-6 + link_s, rel=1e-3)
    assert found[Slot.POOLED_LOOKUP, 0, 0] == 0
    resident = slots(PlanScorer(problem()), plan(FUSED))
    distinct = 1e6 * -((1 - 1e-6) ** 40_960 - 1)
    # The update reads and writes rows over the link, and gradients and state meanwhile; it still
    # sorts before.
    sort_s = 40_960 * 24 * 3 / 0.8 / 2e12 + ORDER_S
    crossing_s = 10e-6 + 1.19 * distinct * 256 / 0.8 / 25e9
    assert found[Slot.POOLED_UPDATE, 1, 0] == pytest.approx(8 * 2.5e-6 + sort_s + crossing_s)
    assert np.array_equal(found[Slot.POOLED_EXCHANGE], resident[Slot.POOLED_EXCHANGE])


def test_durations_behind_a_cache_by_hand():
    scorer = PlanScorer(problem())
    found, resident = slots(scorer, plan(CACHING)), slots(scorer, plan(FUSED))
    distinct = 1e6 * -((1 - 1e-6) ** 40_960 - 1)
    missing = 0.8 * distinct
    prefetch_s = (40_960 * 24 * 3 / 0.8 + 2 * missing * 256 / (0.8 * 256 / 296)) / 2e12
    prefetch_s += ORDER_S + distinct * 0.35e-6 / 100 + 65 * 2.5e-6
    link_s = 10e-6 + missing * 256 / 0.8 / 25e9
    added = found[Slot.POOLED_LOOKUP, 1, 0] - resident[Slot.POOLED_LOOKUP, 1, 0]
    assert added == pytest.approx(prefetch_s + link_s, rel=1e-6)
    assert found[Slot.POOLED_UPDATE, 1, 0] == pytest.approx(
        resident[Slot.POOLED_UPDATE, 1, 0] + ORDER_S
    )


@pytest.mark.parametrize(
    ("optimizer", "kernel", "factor", "weights", "state", "host"),
    [
        (Optimizer.ROWWISE_ADAGRAD, FUSED, None, 256e6, 4e6, 0),
        # One state value a row stays on the device.
        (Optimizer.ROWWISE_ADAGRAD, UVM, None, 0, 4e6, 256e6),
        # Bookkeeping of a cache: 4 bytes a row, 16 a cached one.
        (Optimizer.ROWWISE_ADAGRAD, CACHING, None, 51.2e6, 4e6 + 7.2e6, 256e6),
        (Optimizer.ADAGRAD, UVM, None, 0, 0, 512e6),
        # A cache holds rows without their state.
        (Optimizer.ADAGRAD, CACHING, 0.5, 128e6, 12e6, 512e6),
        (Optimizer.SGD, CACHING, 1.0, 256e6, 20e6, 256e6),
    ],
)
def test_memory_by_hand(optimizer, kernel, factor, weights, state, host):
    scorer = PlanScorer(problem(optimizer=optimizer))
    memory = predict_job(DlrmJob.scored(scorer, plan(kernel, factor=factor))).memory
    assert memory[1].bytes_for("embedding weights") == pytest.approx(weights)
    assert memory[1].bytes_for("embedding optimizer state") == pytest.approx(state)
    assert memory[1].host_bytes == pytest.approx(host)
    assert memory[0].host_bytes == 0
    assert memory[1].total_bytes == pytest.approx(
        predict_job(DlrmJob.scored(scorer, plan(FUSED))).memory[1].total_bytes
        - 256e6
        - {Optimizer.SGD: 0, Optimizer.ADAGRAD: 256e6}.get(optimizer, 4e6)
        + weights
        + state
    )


def test_shards_of_rows_in_host_memory_share_it():
    scorer = PlanScorer(problem())
    memory = predict_job(DlrmJob.scored(scorer, plan(UVM, RW, (0, 1, 2, 3)))).memory
    assert [rank.host_bytes for rank in memory] == [64e6] * 4


def test_host_memory_limits_a_node_where_it_is_known():
    table = make_table("b", rows=1_000_000)
    two = ShardingPlan(8, (TablePlan("a", TW, (1,), UVM), TablePlan("b", TW, (2,), UVM)))
    apart = replace(two, tables=(two.tables[0], TablePlan("b", TW, (5,), UVM)))
    limited = make_cluster(8, 4, host_memory_bytes=500e6)
    scorer = PlanScorer(problem(limited, (TABLE, table)))
    full = predict_job(DlrmJob.scored(scorer, two))
    assert not full.feasible
    assert "kept on node 0 needs 0.5 GiB" in full.infeasible_reason
    assert predict_job(DlrmJob.scored(scorer, apart)).feasible
    unknown = PlanScorer(problem(make_cluster(8, 4), (TABLE, table)))
    assert predict_job(DlrmJob.scored(unknown, two)).feasible
    features = scorer.features(two)
    assert scorer.memory.host_overflow(features, limited) == pytest.approx([512 / 500 - 1])
    for shards, fits in ((two, [False]), (apart, [True])):
        found = scorer.memory.peak_and_fit(scorer.features(shards), limited)[1]
        assert found.tolist() == fits


def test_plans_on_the_device_score_the_same_beside_others_in_host_memory():
    alone, mixed = PlanScorer(problem()), PlanScorer(problem())
    mixed.score([plan(UVM)])
    first, second = (scorer.score([plan(FUSED)]) for scorer in (alone, mixed))
    assert first.iteration_time_s[0] == second.iteration_time_s[0]
    assert first.peak_memory_bytes[0] == second.peak_memory_bytes[0]


def waiting(cluster, made, tables=(TABLE,), world_size=None):
    """How much longer lookups and updates take where paths to host memory are shared."""
    shared, alone = (
        slots(PlanScorer(problem(one, tables)), made)
        for one in (
            cluster,
            replace(
                cluster,
                host_link=replace(cluster.host_link, devices=1),
                host_memory_bandwidth_bytes_per_s=None,
            ),
        )
    )
    return (shared - alone)[:, :, 0]


def test_devices_that_share_a_host_link_wait_for_each_other_by_hand():
    made = plan(UVM, RW, (0, 1, 2, 3))
    shared = make_cluster(host_link=HostLinkSpec(25e9, 10e-6, devices=2))
    # Each rank's quarter of the lookups crosses once more, for its neighbour.
    added = waiting(shared, made)[Slot.POOLED_LOOKUP + 1]
    assert added == pytest.approx([40_960 / 4 * 256 / 0.8 / 25e9] * 4, rel=1e-2)
    # A neighbour without such rows is not waited for.
    assert not waiting(shared, plan(UVM)).any()


def test_ranks_of_a_node_share_its_host_memory_by_hand():
    tables = (TABLE, make_table("b", rows=1_000_000, dim=64, pooling=10))
    made = ShardingPlan(8, (TablePlan("a", TW, (1,), UVM), TablePlan("b", TW, (2,), UVM)))
    apart = replace(made, tables=(made.tables[0], TablePlan("b", TW, (5,), UVM)))
    cluster = make_cluster(8, 4, host_memory_bandwidth_bytes_per_s=30e9)
    link_bytes = 40_960 * 256 / 0.8
    found = waiting(cluster, made, tables)[Slot.POOLED_LOOKUP]
    expected = 2 * link_bytes / 30e9 - link_bytes / 25e9
    assert found == pytest.approx([0, expected, expected, 0, 0, 0, 0, 0], rel=1e-3)
    assert not waiting(cluster, apart, tables)[Slot.POOLED_LOOKUP].any()
    # An update reads and writes, and so needs twice the memory's bandwidth even alone.
    assert waiting(cluster, apart, tables)[Slot.POOLED_UPDATE, 1] > 0


def test_copies_of_a_batch_share_host_links_and_memory():
    plain = make_cluster(host_link=HostLinkSpec(25e9, 10e-6))
    assert plain.host_link_of_all == plain.host_link
    shared = replace(plain, host_link=HostLinkSpec(25e9, 10e-6, devices=2))
    assert shared.host_link_of_all == HostLinkSpec(12.5e9, 10e-6)
    narrow = replace(shared, host_memory_bandwidth_bytes_per_s=20e9)
    assert narrow.host_link_of_all == HostLinkSpec(5e9, 10e-6)


@given(
    st.floats(1e9, 1e12),
    st.floats(1, 10),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([UVM, CACHING]),
)
def test_more_bandwidth_of_host_memory_is_never_slower(bandwidth, factor, devices, kernel):
    link = HostLinkSpec(25e9, 10e-6, devices=devices)
    made = plan(kernel, RW, (0, 1, 2, 3))
    times = [
        slots(
            PlanScorer(
                problem(make_cluster(host_link=link, host_memory_bandwidth_bytes_per_s=one))
            ),
            made,
        )
        for one in (bandwidth, bandwidth * factor, None)
    ]
    assert (times[0] >= times[1] * (1 - 1e-12)).all()
    assert (times[1] >= times[2] * (1 - 1e-12)).all()


@given(
    st.floats(10e9, 1e12),
    st.floats(1, 100),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([UVM, CACHING]),
    st.sampled_from([None, 1.05, 1.5]),
    st.booleans(),
)
def test_a_faster_link_to_shared_memory_is_never_slower(
    bandwidth, factor, devices, kernel, zipf, weighted
):
    table = replace(TABLE, weighted=weighted)
    table = table if zipf is None else replace(table, indices=Zipf(zipf))
    made = plan(kernel, RW, (0, 1, 2, 3))
    slower, faster = (
        slots(
            PlanScorer(
                problem(
                    make_cluster(
                        host_link=HostLinkSpec(one, 10e-6, devices=devices),
                        host_memory_bandwidth_bytes_per_s=100e9,
                    ),
                    (table,),
                )
            ),
            made,
        )
        for one in (bandwidth, bandwidth * factor)
    )
    assert (faster <= slower * (1 + 1e-12)).all()


def test_options_keep_kernel_and_cache():
    scorer = PlanScorer(problem())
    for kernel, factor in ((FUSED, None), (UVM, None), (CACHING, None), (CACHING, 0.5)):
        made = plan(kernel, factor=factor)
        assert scorer.placements.plan_of(scorer.placements.options_of(made)) == made


def test_host_columns_can_be_asked_for():
    scorer = PlanScorer(problem())
    narrow = scorer.features(plan(FUSED))
    scorer.placements.include_host_columns()
    wide = scorer.features(plan(FUSED))
    assert len(wide) > len(narrow)
    assert np.array_equal(wide[: len(narrow)], narrow)
    assert not wide[len(narrow) :].any()


def test_the_link_decides_how_certain_rows_in_host_memory_are():
    scorer = PlanScorer(problem())
    resident, uvm = (
        scorer.placements.lookup_spreads(scorer.placements.options_of(plan(kernel)))
        for kernel in (FUSED, UVM)
    )
    assert np.all(uvm[0] > 0)
    assert np.all(resident[0] > 0)
    assert uvm[0] == pytest.approx(HOST_ROWS_SPREAD, rel=0.05)


# --- physical laws ------------------------------------------------------------------------

PLACES = [(TW, (2,)), (CW, (0, 3)), (RW, (0, 1, 2, 3)), (ShardingType.GRID_SHARD, (0, 1, 2, 3))]


def time_s(made, link_bandwidth=25e9, **changes):
    cluster = make_cluster(host_link=HostLinkSpec(link_bandwidth, 10e-6))
    return PlanScorer(problem(cluster, **changes)).score([made]).iteration_time_s[0]


@given(
    st.sampled_from(PLACES),
    st.sampled_from([UVM, CACHING]),
    st.floats(1, 20),
    st.sampled_from([Optimizer.SGD, Optimizer.ROWWISE_ADAGRAD, Optimizer.ADAM]),
)
def test_more_host_bandwidth_is_never_slower(place, kernel, factor, optimizer):
    made = plan(kernel, *place)
    faster = time_s(made, 25e9 * factor, optimizer=optimizer)
    assert faster <= time_s(made, optimizer=optimizer) * (1 + 1e-12)


@given(
    st.sampled_from([UVM, CACHING]),
    st.floats(5e9, 500e9),
    st.floats(1, 5),
    st.floats(2, 6).map(lambda power: round(10**power)),
    st.sampled_from([1, 10, 100]),
    st.sampled_from([8, 64, 256]),
    st.floats(0.2e12, 10e12),
    st.sampled_from([None, 1.05, 1.5]),
    st.sampled_from([1, 4]),
)
def test_more_host_bandwidth_is_never_slower_whatever_binds_the_update(
    kernel, bandwidth, factor, rows, pooling, dim, l2_bandwidth, zipf, devices
):
    table = make_table("a", rows=rows, dim=dim, pooling=pooling)
    table = table if zipf is None else replace(table, indices=Zipf(zipf))
    device = make_device(l2_bandwidth_bytes_per_s=l2_bandwidth)
    made = plan(kernel, RW, (0, 1, 2, 3), 0.2 if kernel is CACHING else None)
    slower, faster = (
        slots(
            PlanScorer(
                problem(
                    make_cluster(device=device, host_link=HostLinkSpec(one, 10e-6, devices)),
                    (table,),
                )
            ),
            made,
        )
        for one in (bandwidth, bandwidth * factor)
    )
    assert (faster <= slower * (1 + 1e-12)).all()


@given(st.sampled_from(PLACES), st.floats(0.01, 1), st.floats(0.01, 1), st.booleans())
def test_a_larger_cache_is_never_slower(place, one, other, zipf):
    table = replace(TABLE, indices=Zipf(1.05)) if zipf else TABLE
    small, large = sorted((one, other))
    before, after = (
        time_s(plan(CACHING, *place, factor), tables=(table,), batch=32_768)
        for factor in (small, large)
    )
    assert after <= before * (1 + 1e-12)


@given(
    st.sampled_from(PLACES),
    st.sampled_from(list(Optimizer)),
    st.floats(0.01, 1),
    st.floats(2.1e9, 2.6e9),
)
def test_rows_in_host_memory_need_no_more_of_the_device_than_their_bookkeeping(
    place, optimizer, factor, memory
):
    cluster = make_cluster(device=make_device(memory_bytes=memory))
    scorer = PlanScorer(problem(cluster, optimizer=optimizer))
    scores = scorer.score([plan(FUSED, *place), plan(UVM, *place), plan(CACHING, *place, factor)])
    on_device, uvm, caching = scores.peak_memory_bytes
    assert uvm <= caching * (1 + 1e-12)
    assert uvm <= on_device * (1 + 1e-12)
    # Of a whole table on one rank: 4 bytes a row and 16 for each cached one.
    assert caching <= on_device * (1 + 1e-12) + 1e6 * (4 + 16 * factor) + 16
    assert scores.fits[1] >= scores.fits[0]


def test_host_memory_is_slower_and_a_cache_helps_popular_rows():
    table = replace(TABLE, indices=Zipf(1.05))
    times = [
        time_s(plan(kernel), tables=(table,), batch=32_768) for kernel in (FUSED, CACHING, UVM)
    ]
    assert times[0] < times[1] < times[2]


def test_single_simulations_agree_with_batches():
    scorer = PlanScorer(problem(make_cluster(8, 4)))
    plans = [
        plan(kernel, kind, ranks, world_size=8)
        for kernel in (UVM, CACHING)
        for kind, ranks in ((TW, (5,)), (ShardingType.TABLE_ROW_WISE, (4, 5, 6, 7)))
    ]
    scores = scorer.score(plans)
    for made, seconds in zip(plans, scores.iteration_time_s, strict=True):
        assert table_shards(made.tables[0], TABLE, 4)
        assert predict_job(DlrmJob.scored(scorer, made)).iteration_time_s == pytest.approx(
            seconds, rel=1e-12
        )
