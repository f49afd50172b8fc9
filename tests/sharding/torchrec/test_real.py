"""Plans against the real TorchRec; skipped where it is not installed (docs/torchrec.md)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
import json

import pytest

from benchmarks.torchrec_planner import TorchRecRequest, embedding_module, plan_with_torchrec
from dse.errors import PlanError
from dse.launch import start_ranks
from dse.machine import Precision
from dse.model import Optimizer
from dse.sharding import (
    ComputeKernel,
    ShardingPlan,
    ShardingType,
    TablePlan,
    check_plan,
    from_torchrec,
    plan_to_torchrec,
    read_plan,
    to_torchrec,
)
from dse.workload import predict_job
from dse.workload.dlrm import DlrmJob, DlrmProblem, DlrmRuntime, PlanScorer
from tests.conftest import make_cluster, make_model, make_table
from tests.sharding.torchrec.tables import DIM, MODULE, ROWS, TABLES

# TorchRec raises deprecation warnings when it is imported and used.
pytestmark = pytest.mark.filterwarnings("ignore")

TW, CW, RW = ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE, ShardingType.ROW_WISE
TWRW, TWCW = ShardingType.TABLE_ROW_WISE, ShardingType.TABLE_COLUMN_WISE
GRID, DP = ShardingType.GRID_SHARD, ShardingType.DATA_PARALLEL
DENSE, FUSED = ComputeKernel.DENSE, ComputeKernel.FUSED
UVM, CACHED = ComputeKernel.FUSED_UVM, ComputeKernel.FUSED_UVM_CACHING


@pytest.fixture(scope="module")
def types():
    try:
        from torchrec.distributed import types
    except (ImportError, OSError) as error:
        pytest.skip(f"TorchRec cannot be imported ({error}); docs/torchrec.md installs it")
    return types


def plan_of(world_size, *placements):
    return ShardingPlan(
        world_size,
        tuple(
            TablePlan(table.name, *placement)
            for table, placement in zip(TABLES, placements, strict=True)
        ),
    )


# On four ranks, two a node: uneven columns, two shards on one rank; all types but table-wise.
EVERY_TYPE = plan_of(
    4,
    (TWRW, (2, 3)),
    (DP, (0, 1, 2, 3), DENSE),
    (GRID, (2, 3, 0, 1)),
    (CW, (3, 1, 0, 2, 1), CACHED, 0.5),
    (RW, (0, 1, 2, 3)),
    (TWCW, (1, 0), UVM),
)

# As it comes back: tables cut by columns share their exchanges.
WITH_COLUMNS_ALIKE = ShardingPlan(
    4, (*EVERY_TYPE.tables[:5], replace(EVERY_TYPE.tables[5], sharding_type=CW))
)

ON_TWO_RANKS = {
    "table_wise": plan_of(2, *(((TW, (index % 2,))) for index in range(6))),
    "row_wise": plan_of(2, *([(RW, (0, 1))] * 6)),
    "column_wise": plan_of(2, *([(CW, (0, 1, 1, 0, 1, 1))] * 3), *([(CW, (0, 1))] * 3)),
    "table_column_wise": plan_of(2, *([(TWCW, (1, 0))] * 6)),
    "data_parallel": plan_of(2, *([(DP, (0, 1), DENSE)] * 6)),
    "mixed": plan_of(
        2,
        (TW, (1,)),
        (DP, (0, 1), DENSE),
        (RW, (0, 1)),
        (CW, (1, 0)),
        (TWCW, (1, 0)),
        (TWRW, (0, 1)),
    ),
    "kernels": plan_of(
        2,
        (TW, (0,), CACHED, 0.5),
        (TW, (1,), UVM),
        (RW, (0, 1), UVM),
        (CW, (0, 1), CACHED),
        (CW, (0, 1), DENSE),
        (TW, (1,), DENSE),
    ),
}


def test_objects_of_every_type(types):
    made = to_torchrec(EVERY_TYPE, TABLES, devices_per_node=2, module_path=MODULE)
    assert isinstance(made, types.ShardingPlan)
    module = made.plan[MODULE]
    assert isinstance(module, types.EmbeddingModuleShardingPlan)
    assert {sharding.sharding_type for sharding in module.values()} >= {
        kind.value
        for kind in types.ShardingType
        if kind.value not in ("table_wise", "table_column_wise")
    }
    grid = module["t2"].sharding_spec.shards
    assert [
        (*shard.shard_offsets, *shard.shard_sizes, str(shard.placement)) for shard in grid
    ] == [
        (0, 0, 17, 12, "rank:2/cuda:0"),
        (17, 0, 16, 12, "rank:3/cuda:1"),
        (0, 12, 17, 12, "rank:0/cuda:0"),
        (17, 12, 16, 12, "rank:1/cuda:1"),
    ]
    # 24 columns in five shards: 8, 4, 4, 4, 4.
    assert [shard.shard_sizes[1] for shard in module["t3"].sharding_spec.shards] == [8, 4, 4, 4, 4]
    assert module["t1"].sharding_spec is None
    assert module["t3"].cache_params.load_factor == 0.5
    assert from_torchrec(made, TABLES) == WITH_COLUMNS_ALIKE


def test_shards_are_those_that_torchrec_cuts(types):
    import torch
    from torchrec.distributed.sharding_plan import calculate_shard_sizes_and_offsets

    made = to_torchrec(EVERY_TYPE, TABLES, devices_per_node=2, module_path=MODULE)
    for name, columns in {"t0": None, "t2": 12, "t4": None, "t5": 12}.items():
        sharding = made.plan[MODULE][name]
        sizes, offsets = calculate_shard_sizes_and_offsets(
            torch.empty((ROWS[name], DIM), device="meta"), 4, 2, sharding.sharding_type, columns
        )
        shards = sharding.sharding_spec.shards
        assert [shard.shard_sizes for shard in shards] == sizes, name
        assert [shard.shard_offsets for shard in shards] == offsets, name


def test_what_the_library_serializes_is_read(types, tmp_path):
    made = to_torchrec(EVERY_TYPE, TABLES, devices_per_node=2, module_path=MODULE)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(made._serialize()))
    found = check_plan(read_plan(path, TABLES), TABLES, 4, 2)
    # The library leaves the cache's share out.
    assert [
        (table.ranks, table.sharding_type, table.compute_kernel) for table in found.tables
    ] == [
        (table.ranks, table.sharding_type, table.compute_kernel)
        for table in WITH_COLUMNS_ALIKE.tables
    ]


def run_ranks(tmp_path, plans, world_size, devices_per_node):
    """Returns what ranks answer to exported plans: largest differences, and all their values."""
    from tests.sharding.torchrec.ranks import under_plans

    found = []
    with start_ranks(
        partial(under_plans, devices_per_node),
        backend="gloo",
        world_size=world_size,
        threads=1,
        timeout_s=120,
    ) as group:
        for index, plan in enumerate(plans):
            path = tmp_path / f"plan{index}.json"
            path.write_text(plan_to_torchrec(plan, TABLES, devices_per_node, "cpu", MODULE))
            answers = group.ask(str(path))
            found.append({key: max(answer[key] for answer in answers) for key in answers[0]})
            found[-1]["values"] = sum(answer["values"] for answer in answers)
    return found


def assert_same_as_unsharded(answers, names, copies):
    for answer, name in zip(answers, names, strict=True):
        assert answer["largest_gradient"] > 0.1, name
        assert answer["output_error"] < 1e-5, name
        assert answer["weight_error"] < 1e-5, name
        assert answer["values"] == copies[name] * DIM, name


@pytest.mark.slow
def test_two_ranks_compute_the_same_as_one(types, tmp_path):
    answers = run_ranks(tmp_path, ON_TWO_RANKS.values(), 2, 2)
    rows = sum(ROWS.values())
    copies = dict.fromkeys(ON_TWO_RANKS, rows)
    copies["data_parallel"] = 2 * rows
    copies["mixed"] = rows + ROWS["t1"]
    assert_same_as_unsharded(answers, ON_TWO_RANKS, copies)


@pytest.mark.slow
def test_two_nodes_of_two_ranks_compute_the_same_as_one(types, tmp_path):
    answers = run_ranks(tmp_path, [EVERY_TYPE], 4, 2)
    assert_same_as_unsharded(
        answers, ["every type"], {"every type": sum(ROWS.values()) + 3 * ROWS["t1"]}
    )


def test_uneven_columns_on_one_rank_are_refused_before_torchrec_fails(types):
    plan = plan_of(2, *([(CW, (0, 1, 1, 0, 1))] * 6))
    with pytest.raises(PlanError, match="shards of 8 and of 4 columns"):
        to_torchrec(plan, TABLES, devices_per_node=2)


def test_a_replicated_fused_table_is_refused_before_torchrec_asserts(types):
    plan = plan_of(2, *([(DP, (0, 1), FUSED)] * 6))
    with pytest.raises(PlanError, match="cannot be replicated by TorchRec"):
        to_torchrec(plan, TABLES, devices_per_node=2)


def request(**changes):
    given = {
        "tables": TABLES,
        "optimizer": Optimizer.ROWWISE_ADAGRAD,
        "world_size": 2,
        "devices_per_node": 2,
        "global_batch_size": 64,
        "device_memory_bytes": 0,
        "host_memory_bytes": 2**30,
        "device_kind": "cpu",
    }
    return TorchRecRequest(**{**given, **changes})


def test_the_planners_plan_is_taken_over_and_scored(types):
    model = make_model(TABLES)
    answer = plan_with_torchrec(request())
    assert answer.proposals >= answer.placed > 0
    assert check_plan(answer.plan, TABLES, 2, 2) == answer.plan
    scorer = PlanScorer(DlrmProblem(model, make_cluster(2, 2), 64, Precision.TF32, DlrmRuntime()))
    theirs = predict_job(DlrmJob.scored(scorer, answer.plan))
    alone = predict_job(DlrmJob.scored(scorer, plan_of(2, *([(TW, (0,))] * 6))))
    assert theirs.feasible
    assert 0 < theirs.iteration_time_s < alone.iteration_time_s * 1.5


@pytest.mark.parametrize("kind", [TW, CW, RW, TWRW, TWCW, GRID, DP])
def test_the_planners_plans_of_every_type_are_taken_over(types, kind):
    tables = tuple(make_table(f"w{index}", rows=1000 + index, dim=512) for index in range(3))
    answer = plan_with_torchrec(
        request(
            tables=tables,
            world_size=4,
            device_kind="cuda",
            device_memory_bytes=2**34,
            host_memory_bytes=2**34,
            allowed_types=frozenset({kind}),
        )
    )
    assert {table.sharding_type for table in answer.plan.tables} == {kind}
    again = from_torchrec(
        to_torchrec(answer.plan, tables, devices_per_node=2), tables, world_size=4
    )
    assert again == answer.plan


def test_the_module_of_the_planner_has_the_tables(types):
    found = dict(embedding_module(request()).sparse.named_parameters())
    assert {name: tuple(one.shape) for name, one in found.items()} == {
        f"embedding_bags.{name}.weight": (rows, DIM) for name, rows in ROWS.items()
    }
