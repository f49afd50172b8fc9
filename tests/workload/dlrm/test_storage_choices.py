"""Where tables are kept, and how: kernels, cache, types of rows, update rules, constraints."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from dse.config import parse_document
from dse.errors import ConfigError
from dse.machine.platforms import load_platform
from dse.model import DataType, Optimizer
from dse.search import RunOptions, read_inputs, run
from dse.search.space import SpaceDocument
from dse.sharding import ComputeKernel, ShardingType, stored_bytes
from dse.workload import PlanEffort
from dse.workload.dlrm import DlrmWorkload, PlanScorer
from dse.workload.dlrm.solver import lower_bound, planning_request
from tests.conftest import make_model, make_table
from tests.search.test_joint_plans import MODEL
from tests.workload.dlrm.solver.bound.oracle import best_time_s

CACHED = "fused+fused_uvm_caching"


#: Jobs are equal on the same platform.
platform_of = cache(load_platform)


def job(model=None, platform="a100_sxm_80", **parameters):
    chosen = {
        "platform": platform,
        "world_size": 2,
        "global_batch_size": 4096,
        "program": "ideal",
        **parameters,
    }
    return DlrmWorkload(model or make_model()).job(platform_of(platform), chosen)


def test_rows_of_eight_bits_have_a_scale_of_their_own():
    assert {kind.value: kind.row_bytes(64) for kind in DataType} == {
        "fp32": 256,
        "fp16": 128,
        "bf16": 128,
        "fp8": 64,
        "int8": 64 + 8,
    }
    table = replace(make_table("t", rows=1000, dim=64), data_type=DataType.INT8)
    assert table.weight_bytes == 72_000


def test_every_column_shard_has_its_own_scales():
    table = replace(make_table("t", rows=1000, dim=64), data_type=DataType.INT8)
    rule = Optimizer.ROWWISE_ADAGRAD
    halves = 2 * stored_bytes(table, rule, 1000, 32)
    # And its own state, of four bytes a row.
    assert halves - stored_bytes(table, rule, 1000, 64) == 1000 * (8 + 4)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # Nothing is cached, so the share of it makes no difference.
        ({"cache_load_factor": 0.1}, {}),
        (
            {"cache_load_factor": 0.1, "compute_kernels": "fused+fused_uvm"},
            {"compute_kernels": "fused+fused_uvm"},
        ),
        ({"cache_load_factor": 0.2, "compute_kernels": CACHED}, {"compute_kernels": CACHED}),
        ({"compute_kernels": "fused"}, {}),
        ({"compute_kernels": "fused+dense"}, {}),
        ({"table_constraints": "none"}, {}),
        ({"table_data_type": "fp32"}, {}),
        ({"sparse_optimizer": "rowwise_adagrad"}, {}),
        ({"world_size": 1, "communication_precision": "fp8"}, {"world_size": 1}),
    ],
)
def test_what_makes_no_difference_is_one_job(one, other):
    assert job(**one).key() == job(**other).key()


@pytest.mark.parametrize(
    "changed",
    [
        {"compute_kernels": CACHED},
        {"table_data_type": "int8"},
        {"sparse_optimizer": "adam"},
        {"communication_precision": "fp8"},
    ],
)
def test_what_makes_a_difference_is_another_job(changed):
    assert job(**changed).key() != job().key()


def test_a_type_of_rows_and_an_update_rule_replace_those_of_the_model():
    model = job(table_data_type="fp16", sparse_optimizer="sgd").problem.model
    assert {table.data_type for table in model.tables} == {DataType.FP16}
    assert model.sparse_optimizer is Optimizer.SGD
    assert model.dense_optimizer is make_model().dense_optimizer


def large_model():
    """Tables of 205 GB, with 160 GB of device memory on two ranks."""
    return make_model(tuple(make_table(f"t{i}", rows=200_000_000, pooling=2) for i in range(4)))


def test_host_memory_makes_room_and_narrow_rows_too():
    assert job(large_model()).cannot_fit()
    for changed in ({"compute_kernels": CACHED}, {"table_data_type": "fp16"}):
        roomy = job(large_model(), **changed)
        assert not roomy.cannot_fit()
        planned = roomy.planned(PlanEffort(quick=True, improvement_rounds=2))
        assert planned.check() is None
        on_host = any(table.cached_share is not None for table in planned.plan.tables)
        assert on_host == ("compute_kernels" in changed)
        (least,) = roomy.least_memory()
        assert least.total_bytes <= max(m.total_bytes for m in planned.memory())


@pytest.mark.parametrize(
    ("capacity_bytes", "parameters", "helps"),
    [
        (None, {}, True),
        (200e9, {}, True),
        (40e9, {}, False),  # 205 GB less 160 GB are missing
        (200e9, {"compute_kernels": CACHED}, False),
    ],
)
def test_tables_that_do_not_fit_say_whether_host_memory_would_hold_them(
    capacity_bytes, parameters, helps
):
    platform = replace(platform_of("a100_sxm_80"), host_memory_bytes=capacity_bytes)
    chosen = {
        "platform": "a100_sxm_80",
        "world_size": 2,
        "global_batch_size": 4096,
        "program": "ideal",
        **parameters,
    }
    one = DlrmWorkload(large_model()).job(platform, chosen)
    assert ("host memory" in one.cannot_fit()) == helps


def test_tables_that_exceed_devices_and_hosts_are_rejected_before_any_plan_is_searched():
    def with_host_of(size_bytes):
        platform = replace(platform_of("a100_sxm_80"), host_memory_bytes=size_bytes)
        chosen = {"world_size": 2, "global_batch_size": 4096, "compute_kernels": CACHED}
        return DlrmWorkload(large_model()).job(
            platform, {"platform": "a100_sxm_80", "program": "ideal", **chosen}
        )

    assert "host memory" in with_host_of(40e9).cannot_fit()
    assert with_host_of(60e9).cannot_fit() == ""
    assert with_host_of(None).cannot_fit() == ""


@settings(max_examples=6)
@given(st.sampled_from([0.05, 0.2, 1.0]), st.sampled_from(["fp32", "fp16", "int8"]))
def test_the_bound_of_a_job_with_a_cache_holds(share, kind):
    tables = tuple(make_table(f"t{i}", rows=10**6 * (1 + 5 * i), dim=32) for i in range(2))
    parameters = {"compute_kernels": CACHED, "cache_load_factor": share, "table_data_type": kind}
    opened = job(make_model(tables), **parameters)
    scorer = PlanScorer(opened.problem)
    request = replace(
        planning_request(scorer, frozenset(ShardingType), 0), constraints=opened.constraints
    )
    best_s = best_time_s(scorer, request, limit=400)
    assert opened.lower_bound_s() <= best_s
    assert lower_bound(scorer, request).iteration_time_s <= best_s


def test_tables_may_be_forced_into_host_memory():
    forced = job(compute_kernels="fused_uvm").planned(PlanEffort(quick=True))
    kernels = {table.compute_kernel for table in forced.plan.tables}
    assert kernels == {ComputeKernel.FUSED_UVM}
    free = job().planned(PlanEffort(quick=True))
    assert forced.simulated()[0] > free.simulated()[0]


def test_devices_without_memory_of_their_own_refuse_host_memory():
    with pytest.raises(ConfigError, match="own memory"):
        job(platform="cpu", world_size=1, compute_kernels=CACHED).check_parameters()


SPACE = """\
schema_version: 1
name: storage
workload: {model: MODEL}
parameters:
  platform: a100_sxm_80
  world_size: 2
  global_batch_size: 4096
  program: ideal
  sharding_types: [table_wise]
  table_data_type: [fp32, int8]
  compute_kernels: [[fused], [fused, fused_uvm_caching]]
  cache_load_factor: [0.1, 0.5]
  table_constraints: [none, first_at_home]
table_constraints:
  first_at_home: {NAME: {ranks: [1], sharding_types: [table_wise]}}
objectives:
  - {metric: iteration_time_s, direction: minimize}
  - {metric: memory_headroom_fraction, direction: maximize}
"""


def space_of(tmp_path, text=SPACE):
    file = tmp_path / "six_tables.yaml"
    file.write_text(MODEL)
    tables = DlrmWorkload.from_text(MODEL).tables
    text = text.replace("MODEL", str(file)).replace("NAME", tables[0].name)
    return parse_document(text, SpaceDocument, file="s.yaml").to_space()


def test_a_study_chooses_kernels_types_and_constraints(tmp_path):
    space = space_of(tmp_path)
    assert space.choices("compute_kernels") == ("fused", CACHED)
    study = run(space, RunOptions(out=tmp_path / "study", executor="serial"))
    assert study.exhausted
    evaluator = read_inputs(space).context.make_evaluator()
    records = [record for record in study.result.records if record.configuration]
    for record in records:
        found = record.configuration
        again = evaluator.predict(found)
        assert again.iteration_time_s == record.prediction.iteration_time_s
        if found.value("table_constraints") == "first_at_home":
            assert found.plan.tables[0].ranks == (1,)
    best = min(records, key=lambda record: record.prediction.iteration_time_s)
    alone = job_of(space, table_data_type="fp32").planned(PlanEffort())
    assert best.prediction.iteration_time_s <= alone.simulated()[0] * 1.01


def job_of(space, **parameters):
    fixed = {"platform": "a100_sxm_80", "world_size": 2, "global_batch_size": 4096}
    evaluator = read_inputs(space).context.make_evaluator()
    return evaluator.open_job({**fixed, "program": "ideal", **parameters})


def test_constraints_without_a_table_reject_the_configuration(tmp_path):
    space = space_of(tmp_path, SPACE.replace("NAME", "unheard_of"))
    evaluator = read_inputs(space).context.make_evaluator()
    given = dict.fromkeys(("platform",), "a100_sxm_80") | {
        "world_size": 2,
        "global_batch_size": 4096,
        "program": "ideal",
    }
    assert not evaluator.reject({**given, "table_constraints": "none"})
    assert "unheard_of" in evaluator.reject({**given, "table_constraints": "first_at_home"})


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("[none, first_at_home]", "[none, first_at_hom]", "table_constraints"),
        ("[0.1, 0.5]", "[0.1, 1.5]", "cache_load_factor"),
        ("[fp32, int8]", "[fp32, int4]", "table_data_type"),
        ("fused_uvm_caching]]", "key_value]]", "compute_kernels"),
    ],
)
def test_wrong_choices_are_refused_with_their_place(tmp_path, old, new, place):
    with pytest.raises(ConfigError) as caught:
        space_of(tmp_path, SPACE.replace(old, new))
    assert place in caught.value.diagnostics[0].field
