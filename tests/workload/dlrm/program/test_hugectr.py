"""What sets HugeCTR apart: exchanges in two steps, one buffer of narrow gradients, evaluations."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

import dse
from dse.errors import ConfigError, PlanError
from dse.machine import Precision
from dse.machine.collectives import Group, collective_time_s
from dse.machine.kernels import elementwise_time_s
from dse.sharding import ShardingPlan, ShardingType, TablePlan
from dse.workload import find_program
from dse.workload.dlrm import (
    DLRM_PROGRAMS,
    DlrmJob,
    DlrmProblem,
    DlrmRuntime,
    ExchangeGroup,
    KeySearch,
    Slot,
    build_layout,
    slot_durations_s,
)
from dse.workload.dlrm.iteration._operators import dense_buckets
from dse.workload.dlrm.scoring._features import (
    FEATURE_COUNT,
    GroupFeature,
    RankFeature,
    group_column,
    rank_column,
)
from tests.conftest import make_cluster, make_model, make_table

NODES, LOCAL, BATCH = 3, 4, 12_000
TWO_STEPS = DlrmRuntime(hierarchical_exchange=True)


def problem(nodes: int = NODES, software: DlrmRuntime = TWO_STEPS) -> DlrmProblem:
    cluster = make_cluster(nodes * LOCAL, LOCAL)
    return DlrmProblem(make_model(), cluster, BATCH, Precision.TF32, software)


def exchange_s(given: DlrmProblem, group: ExchangeGroup, columns: np.ndarray) -> float:
    """Time of the exchange of tables of which the ranks hold so many columns."""
    features = np.zeros((FEATURE_COUNT, given.cluster.world_size, 1))
    features[group_column(group, GroupFeature.EXCHANGED), :, 0] = columns
    slot = {
        ExchangeGroup.POOLED: Slot.POOLED_EXCHANGE,
        ExchangeGroup.ROW: Slot.ROW_EXCHANGE,
    }[group]
    return float(slot_durations_s(given, 1 << group, features)[slot].max())


@pytest.mark.parametrize("group", [ExchangeGroup.POOLED, ExchangeGroup.ROW])
def test_two_steps_on_one_node_are_one(group):
    columns = np.arange(LOCAL) + 1.0
    one_step = exchange_s(problem(1, DlrmRuntime()), group, columns)
    assert exchange_s(problem(1), group, columns) == one_step


@pytest.mark.parametrize(
    ("group", "inside"),
    [(ExchangeGroup.POOLED, "all_to_all"), (ExchangeGroup.ROW, "reduce_scatter")],
)
def test_both_steps_by_hand(group, inside):
    given = problem()
    cluster = given.cluster
    held = BATCH * 4 * 10.0
    inside_s = collective_time_s(cluster, inside, held, Group.domain(cluster))
    # Ranks of one place in all nodes: each holds its node's sums, or a part of its node's vectors.
    part = held if group is ExchangeGroup.POOLED else held / LOCAL
    like = Group(NODES, 1, card_sharers=LOCAL)
    between_s = collective_time_s(cluster, "all_to_all", part, like)
    took_s = exchange_s(given, group, np.full(NODES * LOCAL, 10.0))
    assert took_s == pytest.approx(float(inside_s + between_s), rel=1e-9)


def test_the_cards_of_a_node_send_the_same():
    given, total = problem(), 64.0
    even = np.zeros((NODES, LOCAL))
    even[0] = total / LOCAL
    single = np.zeros((NODES, LOCAL))
    single[0, 0] = total
    apart_s = [
        exchange_s(problem(software=software), ExchangeGroup.POOLED, single.ravel())
        - exchange_s(problem(software=software), ExchangeGroup.POOLED, even.ravel())
        for software in (TWO_STEPS, DlrmRuntime())
    ]
    # What one rank holds costs more inside its node, but not on its way out.
    assert 0 < apart_s[0] < 0.5 * apart_s[1]
    assert given.cluster.domain_count == NODES


@given(
    st.lists(st.floats(0, 1e4), min_size=NODES * LOCAL, max_size=NODES * LOCAL),
    st.integers(0, NODES * LOCAL - 1),
    st.floats(0, 1e4),
)
def test_more_columns_are_never_exchanged_faster(columns, rank, more):
    held = np.array(columns)
    wider = held.copy()
    wider[rank] += more
    given = problem()
    before_s = exchange_s(given, ExchangeGroup.POOLED, held)
    assert exchange_s(given, ExchangeGroup.POOLED, wider) >= before_s - 1e-12


@pytest.mark.parametrize("name", ["hugectr_3_1", "hugectr_hybrid", "hugectr"])
def test_gradients_are_one_buffer_of_two_bytes(name):
    program = find_program(DLRM_PROGRAMS, name)
    wide, narrow = (
        dense_buckets(problem(software=program.software_for(precision)))
        for precision in (Precision.TF32, Precision.FP16)
    )
    assert len(wide) == len(narrow) == 1
    assert wide[0][0] == 2 * narrow[0][0]


def test_other_programs_reduce_four_bytes():
    software = find_program(DLRM_PROGRAMS, "deeplearningexamples").software_for(Precision.FP16)
    assert software.replicated_gradient_bytes == 4


def all_reduce_s(given: DlrmProblem, parameters: float) -> float:
    features = np.zeros((FEATURE_COUNT, given.cluster.world_size, 1))
    group = ExchangeGroup.REPLICATED
    features[group_column(group, GroupFeature.EXCHANGED)] = parameters
    return float(slot_durations_s(given, 1 << group, features)[Slot.REPLICATED_ALL_REDUCE].max())


def test_a_joint_buffer_costs_what_replicated_rows_add():
    apart, joint = (
        problem(software=DlrmRuntime(dense_bucket_bytes=2**62, joint_all_reduce=joint))
        for joint in (False, True)
    )
    [(dense_bytes, _)] = dense_buckets(joint)
    sizes = np.array([dense_bytes, dense_bytes + 4e6])
    dense_s, together_s = collective_time_s(joint.cluster, "all_reduce", sizes)
    assert all_reduce_s(joint, 1e6) == pytest.approx(together_s - dense_s, rel=1e-9)
    # A collective of their own has the latency once more.
    assert all_reduce_s(joint, 1e6) < all_reduce_s(apart, 1e6)
    assert all_reduce_s(joint, 0.0) == 0.0


def planned(software: DlrmRuntime) -> DlrmJob:
    given = problem(software=software)
    tables = tuple(
        TablePlan(table.name, ShardingType.TABLE_WISE, (rank,))
        for rank, table in enumerate(given.model.tables)
    )
    return DlrmJob(given).with_plan(ShardingPlan(given.cluster.world_size, tables))


def one_table(kind: ShardingType, ranks: tuple[int, ...]) -> DlrmJob:
    """The job of a single table in a program that cuts rows over some ranks."""
    software = replace(TWO_STEPS, rows_on_some=True)
    table = make_table("a", rows=120_000, pooling=12)
    given = replace(problem(software=software), model=make_model((table,)))
    placement = TablePlan("a", kind, ranks)
    return DlrmJob(given).with_plan(ShardingPlan(NODES * LOCAL, (placement,)))


def features_of(job: DlrmJob) -> np.ndarray:
    placements = job.scorer.placements
    return placements.features(placements.options_of(job.plan)[None])[..., 0]


def test_rows_over_some_ranks_are_looked_up_in_parts_and_sent_as_whole_vectors():
    whole = features_of(one_table(ShardingType.TABLE_WISE, (1,)))
    parts = features_of(one_table(ShardingType.ROW_WISE, (1, 5, 6)))
    for feature, share in ((RankFeature.WEIGHTS, 1 / 3), (RankFeature.POOLED_OUTPUT, 1.0)):
        column = rank_column(feature)
        assert parts[column, [1, 5, 6]] == pytest.approx(share * whole[column, 1])
        assert not np.delete(parts[column], [1, 5, 6]).any()
    exchanged = group_column(ExchangeGroup.POOLED, GroupFeature.EXCHANGED)
    assert parts[exchanged].sum() == 3 * whole[exchanged].sum()
    work = group_column(ExchangeGroup.POOLED, GroupFeature.BACKWARD_MEMORY)
    assert parts[work, 1] < 0.5 * whole[work, 1]


def test_rows_over_some_nodes_are_summed_inside_each():
    one, two = (
        features_of(one_table(ShardingType.TABLE_ROW_WISE, ranks))
        for ranks in ((0, 1, 2, 3), (0, 1, 2, 3, 8, 9, 10, 11))
    )
    exchanged = group_column(ExchangeGroup.NODE, GroupFeature.EXCHANGED)
    assert two[exchanged, 0] == two[exchanged, 8] == one[exchanged, 0]
    assert not two[exchanged, 4:8].any()
    weights = rank_column(RankFeature.WEIGHTS)
    assert two[weights, :4] == pytest.approx(one[weights, :4] / 2)


def test_programs_that_cut_rows_over_all_ranks_refuse_some():
    job = one_table(ShardingType.ROW_WISE, (1, 5))
    other = DlrmJob(replace(job.problem, software=TWO_STEPS))
    with pytest.raises(PlanError):
        other.with_plan(job.plan)


@pytest.mark.parametrize(("name", "exchanged"), [("hugectr_hybrid", False), ("hugectr", True)])
def test_keys_are_exchanged_where_every_rank_reads_its_own_samples(name, exchanged):
    job = planned(find_program(DLRM_PROGRAMS, name).software_for(Precision.FP16))
    features = features_of(job)[..., None]
    durations_s = slot_durations_s(job.problem, 1 << ExchangeGroup.POOLED, features)
    assert (durations_s[Slot.INPUT_EXCHANGE] > 0).all() == exchanged


# --- what is kept on every rank ------------------------------------------------------------------


def kinds(plan):
    return {table.sharding_type for table in plan.tables}, any(t.hot_rows for t in plan.tables)


@pytest.mark.parametrize("program", ["hugectr_3_1", "hugectr_hybrid"])
def test_the_hybrid_embedding_copies_rows_over_several_nodes_only(program):
    chosen = {"global_batch_size": 55_296, "program": program}
    one, several = (
        dse.Job("dlrm_criteo", "a100_sxm_80", world_size=ranks, **chosen) for ranks in (8, 16)
    )
    types, hot = kinds(one.shard().plan)
    assert ShardingType.DATA_PARALLEL not in types
    assert not hot
    types, hot = kinds(several.shard().plan)
    assert ShardingType.DATA_PARALLEL in types or hot
    other = dse.Job("dlrm_criteo", "a100_sxm_80", world_size=8, global_batch_size=55_296)
    copied = other.shard(allowed_types=["data_parallel", "table_wise"]).plan
    assert ShardingType.DATA_PARALLEL in kinds(copied)[0]
    (note,) = [note for note in one.predict(copied).notes if program in note]
    whole = sum(table.sharding_type is ShardingType.DATA_PARALLEL for table in copied.tables)
    assert (f"keeps {whole} tables" if whole > 1 else "keeps a table") in note
    assert not any(program in note for note in other.predict(copied).notes)
    with pytest.raises(ConfigError):
        one.shard(allowed_types=["data_parallel"])


def test_an_evaluation_is_forward_passes_and_a_time_for_each_batch_and_sample():
    plain = planned(DlrmRuntime())
    forward_s = plain.scorer.forward_time_s(plain.plan)
    assert plain.evaluation_time_s(5 * BATCH) == pytest.approx(5 * forward_s)
    read = planned(DlrmRuntime(evaluation_s_per_sample=1e-6))
    more_s = read.evaluation_time_s(5 * BATCH) - plain.evaluation_time_s(5 * BATCH)
    assert more_s == pytest.approx(5 * BATCH * 1e-6 / (NODES * LOCAL))
    taken_over = planned(DlrmRuntime(evaluation_batch_s=1e-3))
    more_s = taken_over.evaluation_time_s(5 * BATCH) - plain.evaluation_time_s(5 * BATCH)
    assert more_s == pytest.approx(5 * 1e-3)


def test_larger_batches_are_evaluated_faster():
    small = planned(DlrmRuntime()).evaluation_time_s(1e6)
    large = planned(DlrmRuntime(evaluation_batch_size=20 * BATCH)).evaluation_time_s(1e6)
    assert large < small
    # The batch is rounded up to equal parts of all ranks.
    uneven = planned(replace(DlrmRuntime(), evaluation_batch_size=20 * BATCH - 1))
    assert uneven.evaluation_time_s(1e6) == large


def test_evaluations_that_overlap_take_the_time_of_the_busiest_stream():
    one_by_one = planned(DlrmRuntime())
    overlapped = planned(DlrmRuntime(overlap_evaluation=True))
    scorer, plan = overlapped.scorer, overlapped.plan
    busiest_s = scorer.forward_time_s(plan, overlapped=True)
    assert busiest_s < scorer.forward_time_s(plan)
    assert overlapped.evaluation_time_s(BATCH) == pytest.approx(busiest_s)
    assert one_by_one.evaluation_time_s(BATCH) == pytest.approx(scorer.forward_time_s(plan))


def forward_s(
    search: tuple[KeySearch, KeySearch], batch: int = BATCH, nodes: int = NODES
) -> float:
    """Duration of the kernels that find keys, in the graph of one rank."""
    given = replace(problem(nodes, replace(TWO_STEPS, key_search=search)), global_batch_size=batch)
    graph = build_layout(given, 1 << ExchangeGroup.POOLED, one_rank=True).graph
    found = np.array([name.startswith("key_search") for name in graph.names])
    return float(graph.duration_s[found].sum())


def test_every_rank_goes_over_the_keys_of_the_global_batch():
    inside, across = KeySearch(80.0, 7), KeySearch(46.0, 8)
    given, search = problem(), (inside, across)
    lookups = sum(table.lookups_per_sample for table in given.model.tables)
    part = 46.0 * BATCH * lookups / 8
    kernel_s = float(elementwise_time_s(given.cluster.device, part))
    assert forward_s(search) == pytest.approx(8 * kernel_s)
    # Another number is chosen on one node, and none without a search.
    assert forward_s((inside, KeySearch()), nodes=1) > 0
    assert forward_s((inside, KeySearch())) == 0
    assert forward_s(search, 2 * BATCH) > forward_s(search)


def test_gradients_that_wait_for_the_all_reduce_are_never_faster():
    early, late = (
        planned(replace(TWO_STEPS, overlap_gradient_exchange=overlap)) for overlap in (True, False)
    )
    early_s, late_s = (job.scorer.score([job.plan]).iteration_time_s[0] for job in (early, late))
    assert late_s > early_s
    names = build_layout(late.problem, 1 << ExchangeGroup.POOLED, one_rank=True).graph.names
    assert names.index("gradient all-to-all") > names.index("dense all-reduce")
