"""Weights of lookups, bags of several samples, narrow outputs and indices."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import pytest

from dse.config import parse_document
from dse.errors import ConfigError
from dse.machine import Precision
from dse.machine.kernels import EmbeddingKernels, EmbeddingShape, embedding_work
from dse.model import DataType, IndexType, ModelDocument, dense_operators
from dse.sharding import ShardingPlan, ShardingType, TablePlan
from dse.workload.dlrm import (
    DlrmRuntime,
    ExchangeGroup,
    PlanScorer,
    Slot,
    WireFormat,
    WireFormats,
    make_problem,
)
from dse.workload.dlrm.scoring._features import (
    GroupFeature,
    RankFeature,
    group_column,
    rank_column,
)
from tests.conftest import make_cluster, make_device, make_model, make_table

TW = ShardingType.TABLE_WISE
SAMPLES = 4096


def problem_of(*tables, wire=None):
    runtime = DlrmRuntime(wire=wire or WireFormats())
    return make_problem(make_model(tables), make_cluster(8, 4), SAMPLES, Precision.TF32, runtime)


def scored(problem):
    plan = ShardingPlan(8, tuple(TablePlan(t.name, TW, (0,)) for t in problem.model.tables))
    scorer = PlanScorer(problem)
    layout = scorer.filled(plan).expanded()
    kinds = zip(layout.slot_kind.tolist(), layout.slot_rank.tolist(), strict=True)
    slots = dict(zip(kinds, layout.graph.duration_s[layout.slot_task].tolist(), strict=True))
    return scorer.features(plan)[:, 0, 0], slots, scorer


def feature(features, name, group=ExchangeGroup.POOLED):
    if isinstance(name, RankFeature):
        return float(features[rank_column(name)])
    return float(features[group_column(group, name)])


def test_weights_travel_with_indices_and_slow_the_kernels_by_a_tenth():
    table = make_table("t", pooling=10)
    (plain, _, _), (weighted, _, _) = (
        scored(problem_of(one)) for one in (table, replace(table, weighted=True))
    )
    # 4,096 samples of ten lookups: eight bytes each, a length of four; then four more each.
    assert feature(plain, RankFeature.INPUT) == SAMPLES * (10 * 8 + 4)
    assert feature(weighted, RankFeature.INPUT) == SAMPLES * (10 * 12 + 4)
    for name in (GroupFeature.FORWARD_MEMORY, GroupFeature.BACKWARD_MEMORY):
        assert feature(weighted, name) == pytest.approx(1.1 * feature(plain, name))
    assert feature(weighted, GroupFeature.EXCHANGED) == feature(plain, GroupFeature.EXCHANGED)


def test_gradients_of_weights_take_another_gather():
    kernels = replace(EmbeddingKernels(), weight_gradients=True)
    runtime = replace(DlrmRuntime(), embedding=kernels)
    table = replace(make_table("t", pooling=10), weighted=True)

    def feature_of(name, software):
        problem = make_problem(
            make_model((table,)), make_cluster(8, 4), SAMPLES, Precision.TF32, software
        )
        return feature(scored(problem)[0], name)

    for name in (GroupFeature.FORWARD_MEMORY, GroupFeature.FORWARD_CACHE, RankFeature.INPUT):
        assert feature_of(name, runtime) == feature_of(name, DlrmRuntime())
    backward = GroupFeature.BACKWARD_MEMORY
    more_bytes = feature_of(backward, runtime) - feature_of(backward, DlrmRuntime())
    # Rows and bags as in the lookup, which weights make a tenth slower, and four bytes a lookup at
    # 0.8 of the bandwidth.
    lookup_bytes = feature_of(GroupFeature.FORWARD_MEMORY, runtime) / 1.1
    assert more_bytes == pytest.approx(lookup_bytes + 4 * SAMPLES * 10 / 0.8, rel=1e-6)


def test_int32_indices_halve_what_is_sent_and_sort_less():
    table = make_table("t", pooling=10)
    features, _, _ = scored(problem_of(replace(table, index_type=IndexType.INT32)))
    assert feature(features, RankFeature.INPUT) == SAMPLES * (10 * 4 + 4)
    shape = EmbeddingShape(10_000, 64, 4, 1000.0, 10_000.0, 4, 4.0)
    wide, narrow = (
        embedding_work(make_device(), replace(shape, index_bytes=size), table.indices)
        for size in (8, 4)
    )
    # Forward each index is read once; backward two passes of a sort read and write it.
    forward_bytes = wide.forward_memory_bytes - narrow.forward_memory_bytes
    backward_bytes = wide.backward_memory_bytes - narrow.backward_memory_bytes
    assert forward_bytes >= 4 * 10_000
    assert backward_bytes == pytest.approx(4 * forward_bytes)


@given(st.sampled_from([0.125, 0.25, 0.5, 2.0]), st.floats(1, 50))
def test_bags_of_several_samples_are_looked_up_and_sent_once(share, pooling):
    table = make_table("t", pooling=pooling)
    plain, _, _ = scored(problem_of(table))
    shared, _, _ = scored(problem_of(replace(table, bags_per_sample=share)))
    for name in (GroupFeature.EXCHANGED, RankFeature.INPUT, RankFeature.POOLED_OUTPUT):
        assert feature(shared, name) == pytest.approx(share * feature(plain, name))
    # As many lookups as a table with so much fewer samples.
    fewer = make_problem(
        make_model((table,)),
        make_cluster(8, 4),
        int(SAMPLES * share),
        Precision.TF32,
        DlrmRuntime(),
    )
    alike, _, _ = scored(fewer)
    name = GroupFeature.FORWARD_MEMORY
    assert feature(shared, name) == pytest.approx(feature(alike, name))
    assert feature(shared, RankFeature.WEIGHTS) == feature(plain, RankFeature.WEIGHTS)


def test_pooled_vectors_of_shared_bags_are_copied_to_their_samples():
    own, shared = (
        dense_operators(make_model(tables), 100, Precision.FP32)
        for tables in (
            (make_table("t"), make_table("u")),
            (make_table("t"), replace(make_table("u"), bags_per_sample=0.5)),
        )
    )
    names = {operator.name for operator in own.interaction_forward}
    copies = [one for one in shared.interaction_forward if one.name not in names]
    # Read and written: 100 samples of 64 values of four bytes.
    assert [one.traffic_bytes for one in copies] == [2 * 100 * 64 * 4]
    assert len(shared.interaction_backward) == len(own.interaction_backward) + 1


def test_narrow_outputs_travel_as_they_are_written():
    table = make_table("t", rows=1_000_000, dim=128, pooling=4)
    narrow = replace(table, output_data_type=DataType.FP16)
    _, wide_s, wide = scored(problem_of(table))
    _, narrow_s, half = scored(problem_of(narrow))
    _, sent_s, _ = scored(problem_of(table, wire=WireFormats.of(WireFormat.FP16)))
    exchange = Slot.POOLED_EXCHANGE, 0
    assert narrow_s[exchange] == sent_s[exchange] < wide_s[exchange]
    lookup, update = (Slot.POOLED_LOOKUP, 0), (Slot.POOLED_UPDATE, 0)
    assert narrow_s[lookup] < wide_s[lookup]
    assert narrow_s[update] < wide_s[update]
    # Outputs and gradients of a rank's samples, 512 · 128 values each way.
    saved = wide.memory.fixed_io_bytes - half.memory.fixed_io_bytes
    assert saved == 2 * 512 * 128 * 2


def test_outputs_in_the_format_of_the_wire_need_no_conversion():
    converted = WireFormats.of(WireFormat.FP16, WireFormat.FP8, codec=True)
    made = converted.of_outputs(WireFormat.FP16)
    assert made.forward.encode_bytes(made.pooled) == ()
    # FP8 gradients are written from two bytes instead of four.
    assert made.backward.encode_bytes(made.pooled) == (3.0,)
    assert converted.backward.encode_bytes(converted.pooled) == (5.0,)
    assert WireFormats().of_outputs(WireFormat.BF16).whole == (WireFormat.BF16, WireFormat.BF16)
    assert not WireFormats(codec=True).of_outputs(WireFormat.BF16).narrow


MODEL = """\
schema_version: 1
kind: dlrm
name: m
source: test
dense_features: 4
bottom_mlp: [8]
interaction: {kind: dot}
top_mlp: [1]
optimizer: {dense: sgd, sparse: sgd}
global_batch_size: 64
table_defaults: {dim: 8, DEFAULTS}
tables: [{name: a, rows: 10, OWN}, {name: b, rows: ROWS}]
"""


def model_of(defaults="weighted: false", own="pooling: 1", rows=10):
    text = MODEL.replace("DEFAULTS", defaults).replace("OWN", own).replace("ROWS", str(rows))
    return parse_document(text, ModelDocument, file="m.yaml").to_model()


def test_files_say_what_lookups_are_like():
    model = model_of(
        "weighted: true, output_data_type: bf16, index_type: int32",
        "weighted: false, bags_per_sample: 0.5, pooling: 6",
    )
    first, second = model.tables
    assert (first.weighted, second.weighted) == (False, True)
    assert (first.bag_count, first.lookups_per_sample) == (0.5, 3.0)
    assert {table.index_type for table in model.tables} == {IndexType.INT32}
    assert model.output_data_type is DataType.BF16
    assert model_of().tables[0] == make_table("a", 10, 8, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"own": "output_data_type: fp16"},
        {"own": "index_type: int32"},
        {"defaults": "output_data_type: int8"},
        {"defaults": "bags_per_sample: 0"},
        {"own": "pooled: false, weighted: true"},
        {"own": "pooled: false, bags_per_sample: 0.5"},
        {"defaults": "index_type: int32", "rows": 2**31 + 1},
    ],
)
def test_what_cannot_be_said_is_refused(wrong):
    with pytest.raises(ConfigError):
        model_of(**wrong)
