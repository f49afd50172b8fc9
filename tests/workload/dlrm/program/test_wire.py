"""Formats on the wire: what they take, what converting takes, and that bounds know both."""

from __future__ import annotations

from dataclasses import replace
import json

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from dse.config import parse_document
from dse.errors import ConfigError
from dse.explanation import Resource
from dse.machine import Precision
from dse.machine.kernels import elementwise_time_s
from dse.machine.platforms import load_platform
from dse.search.space import SpaceDocument
from dse.sharding import PLANNERS, ShardingPlan, ShardingType, TablePlan
from dse.workload import Configuration, LaunchMode, PlanEffort
from dse.workload.dlrm import (
    DlrmProblem,
    DlrmRuntime,
    DlrmWorkload,
    PlanScorer,
    Slot,
    WireFormat,
    WireFormats,
    build_layout,
    slot_durations_s,
)
from dse.workload.dlrm.solver import lower_bound, planning_request
from tests.conftest import make_cluster, make_model, make_table
from tests.workload.dlrm.solver.bound.oracle import (
    best_time_s,
    random_demands,
    random_problem,
    random_types,
)

F = WireFormat
ADDS_UP = [one for one in F if one.adds_up]
POOLED, ROW, NODE = 1, 2, 4
BATCH = 4096


def wires(codec: bool = True) -> st.SearchStrategy[WireFormats]:
    some, added = st.sampled_from(list(F)), st.sampled_from(ADDS_UP)
    return st.builds(WireFormats, some, some, added, added, st.just(codec))


def make_problem(
    wire: WireFormats, world: int = 4, per_node: int = 4, batch: int = BATCH
) -> DlrmProblem:
    tables = tuple(make_table(f"t{index}", dim=32 * (1 + index)) for index in range(3))
    software = DlrmRuntime(launch=LaunchMode.CUDA_GRAPHS, wire=wire)
    cluster = make_cluster(world, per_node)
    return DlrmProblem(make_model(tables), cluster, batch, Precision.TF32, software)


def plan_of(problem: DlrmProblem, kind: ShardingType) -> ShardingPlan:
    world, local = problem.cluster.world_size, problem.cluster.devices_per_node
    ranks = {
        ShardingType.TABLE_WISE: [(index % world,) for index in range(3)],
        ShardingType.ROW_WISE: [tuple(range(world))] * 3,
        ShardingType.TABLE_ROW_WISE: [tuple(range(local))] * 3,
    }[kind]
    return ShardingPlan(
        world,
        tuple(
            TablePlan(table.name, kind, chosen)
            for table, chosen in zip(problem.model.tables, ranks, strict=True)
        ),
    )


def slots_s(problem: DlrmProblem, kind: ShardingType, layout: int) -> np.ndarray:
    features = PlanScorer(problem).features(plan_of(problem, kind))
    return slot_durations_s(problem, layout, features)[:, :, 0]


def test_bytes_of_a_value_hold_its_part_of_the_scales():
    # 32 values of INT8 have 8 bytes of scale and offset, of MX4 one byte of exponent.
    assert {one.value: 32 * one.value_bytes for one in F} == {
        "fp32": 128,
        "fp16": 64,
        "bf16": 64,
        "fp8": 32,
        "int8": 40,
        "mx4": 17,
    }


@given(wires(codec=False))
def test_text_is_read_as_what_it_was_written_from(wire):
    assert WireFormats.parse(wire.text) == wire


@pytest.mark.parametrize("text", ["fp8", "int8", "mx4"])
def test_what_cannot_be_added_falls_back_where_rows_are_reduced(text):
    wire = WireFormats.parse(text)
    assert wire.whole == (F(text), F(text))
    assert wire.reduced == (F.FP16, F.BF16)
    assert wire.text == text
    with pytest.raises(ConfigError, match="no codec"):
        WireFormats.parse(f"{text}+reduce_scatter={text}")


def test_converting_takes_the_passes_of_its_kernels():
    wire = WireFormats.of(F.FP16, F.INT8, codec=True)
    problem = make_problem(wire)
    device = problem.cluster.device
    found = slots_s(problem, ShardingType.TABLE_WISE, POOLED)
    # The widest table has 96 columns on one rank; every rank gets 32 + 64 + 96 for its samples.
    held, received = 96 * BATCH, 192 * BATCH / 4

    def kernels_s(*sizes_bytes: float) -> float:
        return float(sum(elementwise_time_s(device, size) for size in sizes_bytes))

    wanted = {
        # Clamped (read and written in four bytes), then cast; back in one pass.
        Slot.POOLED_ENCODE: kernels_s(8 * held, 6 * held),
        Slot.POOLED_DECODE: kernels_s(6 * received),
        Slot.POOLED_GRADIENT_ENCODE: kernels_s(5.25 * received),
        Slot.POOLED_GRADIENT_DECODE: kernels_s(5.25 * held),
    }
    for slot, seconds in wanted.items():
        np.testing.assert_allclose(found[slot], seconds, rtol=1e-12)


def test_a_step_between_nodes_converts_what_the_step_inside_received():
    wire = WireFormats.of(F.FP8, reduced=(F.FP16, F.FP16), codec=True)
    problem = make_problem(wire, world=4, per_node=2)
    device = problem.cluster.device
    found = slots_s(problem, ShardingType.TABLE_ROW_WISE, NODE)
    # All 192 columns are on the first node; its ranks scatter them over two, then over all.
    held, inside, received = 192 * BATCH, 192 * BATCH / 2, 192 * BATCH / 4

    def kernels_s(*sizes_bytes: float) -> float:
        return float(sum(elementwise_time_s(device, size) for size in sizes_bytes))

    wanted = {
        Slot.NODE_ENCODE: kernels_s(8 * held, 6 * held),
        Slot.NODE_DECODE: kernels_s(6 * inside, 5 * inside, 5 * received),
        Slot.NODE_GRADIENT_ENCODE: kernels_s(5 * received),
        Slot.NODE_GRADIENT_DECODE: kernels_s(5 * inside, 8 * inside, 6 * inside, 6 * held),
    }
    for slot, seconds in wanted.items():
        np.testing.assert_allclose(found[slot], seconds, rtol=1e-12)


@given(wires(), st.sampled_from([(4, 4), (4, 2), (2, 2)]))
@settings(max_examples=25, deadline=None)
def test_tasks_of_the_graph_are_those_that_last(wire, shape):
    problem = make_problem(wire, *shape)
    for kind, layout in (
        (ShardingType.TABLE_WISE, POOLED),
        (ShardingType.ROW_WISE, ROW),
        (ShardingType.TABLE_ROW_WISE, NODE),
    ):
        found = slots_s(problem, kind, layout)
        issued = set(build_layout(problem, layout).slot_kind.tolist())
        lasting = set(np.flatnonzero(found.max(axis=1) > 0).tolist())
        assert lasting == issued


@given(wires(codec=False), wires(codec=False), st.sampled_from(["cheap", "dear"]))
@settings(max_examples=25, deadline=None)
def test_fewer_bytes_are_never_slower_where_nothing_is_converted(one, other, network):
    narrow = one.narrowest(other)
    times = []
    for wire in (narrow, one, other):
        problem = make_problem(wire, world=4, per_node=2)
        if network == "cheap":
            slow = replace(problem.cluster.network, nic_bandwidth_bytes_per_s=1e9)
            problem = replace(problem, cluster=replace(problem.cluster, network=slow))
        plans = [plan_of(problem, ShardingType.TABLE_WISE)]
        plans.append(plan_of(problem, ShardingType.ROW_WISE))
        times.append(PlanScorer(problem).score(plans).iteration_time_s)
    assert (times[0] <= times[1] * (1 + 1e-12)).all()
    assert (times[0] <= times[2] * (1 + 1e-12)).all()


@given(wires(), st.integers(1, 8))
@settings(max_examples=20, deadline=None)
def test_converting_more_takes_longer(wire, factor):
    small, large = (
        slots_s(make_problem(wire, batch=BATCH * times), ShardingType.TABLE_WISE, POOLED)
        for times in (1, factor)
    )
    converted = slice(Slot.POOLED_ENCODE, Slot.NODE_GRADIENT_DECODE + 1)
    assert (large[converted] >= small[converted]).all()


def test_eight_bits_win_on_a_slow_network_and_lose_on_a_link_of_no_time():
    def time_s(wire: str, bandwidth: float) -> float:
        problem = make_problem(WireFormats.parse(wire, codec=True), batch=65536)
        link = replace(problem.cluster.link, bandwidth_bytes_per_s=bandwidth, latency_s=1e-9)
        problem = replace(problem, cluster=replace(problem.cluster, link=link))
        plan = plan_of(problem, ShardingType.TABLE_WISE)
        return float(PlanScorer(problem).score([plan]).iteration_time_s[0])

    assert time_s("fp8", 1e9) < 0.5 * time_s("fp32", 1e9)
    assert time_s("fp8", 1e15) > time_s("fp32", 1e15)


def test_a_rank_keeps_values_and_what_travels():
    assert WireFormats().buffer_bytes == 8
    assert WireFormats.of(F.FP16).buffer_bytes == 4
    assert WireFormats.of(F.FP16, codec=True).buffer_bytes == 12
    # Partial sums fall back to two bytes.
    assert WireFormats.of(F.FP8, F.FP32, codec=True).buffer_bytes == 6 + 4


@pytest.mark.parametrize("seed", range(3))
def test_the_bound_holds_for_every_format(seed, monkeypatch):
    rng = np.random.default_rng(seed)

    def software(rng: np.random.Generator) -> DlrmRuntime:
        chosen = [list(F)[index] for index in rng.integers(len(F), size=2)]
        launch = LaunchMode(rng.choice(list(LaunchMode)))
        return DlrmRuntime(launch=launch, wire=WireFormats.of(*chosen, codec=True))

    monkeypatch.setattr("tests.workload.dlrm.solver.bound.oracle.random_software", software)
    for _ in range(6):
        problem = random_problem(rng, int(rng.integers(1, 4)), [(1, 4), (2, 2), (3, 3), (4, 2)])
        scorer = PlanScorer(problem)
        request = random_demands(rng, planning_request(scorer, random_types(rng), 0))
        optimum = best_time_s(scorer, request, limit=600, seed=seed)
        assert lower_bound(scorer, request).iteration_time_s <= optimum


def job(program: str, wire: str, precision: str = "tf32"):
    parameters = {
        "platform": "h100_sxm",
        "world_size": 8,
        "global_batch_size": 4096,
        "program": program,
        "precision": precision,
        "communication_precision": wire,
    }
    return DlrmWorkload(make_model()).job(load_platform("h100_sxm"), parameters)


def test_programs_without_conversion_refuse_other_formats():
    assert job("torchrec", "fp8/bf16").problem.software.wire.codec
    assert not job("ideal", "fp8/bf16").problem.software.wire.codec
    # What it sends by itself is no change.
    assert job("hugectr", "fp16", precision="fp16").problem.software.wire.text == "fp16"
    with pytest.raises(ConfigError, match="torchrec"):
        job("hugectr", "fp8")


def test_an_optimistic_wire_is_taken_only_where_nothing_is_converted():
    workload, choices = (
        DlrmWorkload(make_model()),
        {"communication_precision": ("fp16/fp8", "fp8/fp32")},
    )
    for program, wanted in (("ideal", "fp8"), ("torchrec", "fp16/fp8")):
        given = {"program": program, "communication_precision": "fp16/fp8"}
        found = workload.favourable(given, choices)["communication_precision"]
        assert WireFormats.parse(str(found)).whole == WireFormats.parse(wanted).whole


SPACE = """\
schema_version: 1
name: formats
workload: {model: dlrm_tiny}
parameters:
  platform: a100_sxm_80
  world_size: 8
  global_batch_size: 16384
  communication_precision: [fp16, fp16/fp16, {forward: fp16}, {forward: fp8, backward: bf16}, WIRE]
objectives: [{metric: iteration_time_s, direction: minimize}]
"""


def test_equal_formats_of_a_space_are_one_value():
    text = SPACE.replace("WIRE", "{forward: fp16, reduce_scatter: {forward: bf16}}")
    space = parse_document(text, SpaceDocument, file="s.yaml").to_space()
    chosen = {parameter.name: parameter.choices for parameter in space.parameters}
    assert chosen["communication_precision"] == ("fp16", "fp8/bf16", "fp16+reduce_scatter=bf16")


@pytest.mark.parametrize("wire", ["fp9", "fp16+reduce_scatter=int8", "{backward: fp16}"])
def test_formats_that_do_not_exist_are_refused_with_their_place(wire):
    with pytest.raises(ConfigError) as caught:
        parse_document(SPACE.replace("WIRE", wire), SpaceDocument, file="s.yaml")
    assert caught.value.diagnostics[0].line == 8


def test_an_export_for_torchrec_says_what_collectives_carry():
    workload, opened = DlrmWorkload(make_model()), job("torchrec", "fp8/bf16")
    request = planning_request(opened.scorer, frozenset({ShardingType.TABLE_WISE}), 0)
    configuration = Configuration(
        "dlrm",
        "h100_sxm",
        8,
        4096,
        (("communication_precision", "fp8/bf16"),),
        plan=PLANNERS["dim_greedy"](request),
    )
    text = workload.framework_text(configuration, "torchrec", load_platform("h100_sxm"))
    found = json.loads(text)["qcomms"]
    assert found == {
        "POOLED_EMBEDDINGS_ALL_TO_ALL": {"forward_precision": "fp8", "backward_precision": "bf16"},
        "POOLED_EMBEDDINGS_REDUCE_SCATTER": {
            "forward_precision": "fp16",
            "backward_precision": "bf16",
        },
    }
    every = WireFormats.parse("fp8/bf16").qcomms(sequences=True)
    assert every["SEQUENCE_EMBEDDINGS_ALL_TO_ALL"] == ("fp8", "bf16")
    plain = replace(configuration, parameters=())
    assert "qcomms" not in workload.framework_text(plain, "torchrec", load_platform("h100_sxm"))


def test_conversions_are_explained_as_kernels_of_the_device():
    found = job("torchrec", "fp8/bf16").planned(PlanEffort(quick=True)).attributed()
    tasks = [
        task
        for task, name in enumerate(found.graph.names)
        if name.endswith((" encode", " decode")) and not name.startswith("launch ")
    ]
    assert tasks
    resources, duration_s = found.resources, found.graph.duration_s[tasks]
    links = [Resource.LINK, Resource.NETWORK, Resource.OTHER]
    rows = [list(Resource).index(one) for one in links]
    parts_s = (resources.overlapped_s + resources.sequential_s)[rows][:, tasks]
    assert (duration_s > 0).all()
    np.testing.assert_allclose(parts_s.sum(axis=0) / duration_s, 0.0, atol=1e-6)
