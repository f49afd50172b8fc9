"""TorchRec plans in and out, without TorchRec: files, and objects with its attributes."""

from __future__ import annotations

from dataclasses import replace
import json
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st
import pytest

from dse.errors import ConfigError, OptionalDependencyError, PlanError
from dse.sharding import (
    TORCHREC_MODULE,
    ComputeKernel,
    ShardingPlan,
    ShardingType,
    TablePlan,
    check_plan,
    column_widths,
    from_torchrec,
    plan_to_json,
    plan_to_torchrec,
    read_plan,
    to_torchrec,
)
from tests.conftest import make_model, make_table

TW, CW, RW = ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE, ShardingType.ROW_WISE
TWRW, TWCW = ShardingType.TABLE_ROW_WISE, ShardingType.TABLE_COLUMN_WISE
GRID, DP = ShardingType.GRID_SHARD, ShardingType.DATA_PARALLEL
DENSE, CACHED = ComputeKernel.DENSE, ComputeKernel.FUSED_UVM_CACHING
TABLE = make_table("t", rows=100, dim=96)


def shard(rank, rows, columns, device="cuda:0"):
    """One shard with half-open ranges of rows and columns."""
    return {
        "shard_offsets": [rows[0], columns[0]],
        "shard_sizes": [rows[1] - rows[0], columns[1] - columns[0]],
        "placement": f"rank:{rank}/{device}",
    }


def sharding(kind, shards, kernel="fused", **changes):
    ranks = [int(shard["placement"].split(":")[1].split("/")[0]) for shard in shards]
    spec = {"shards": shards}
    block = {"sharding_type": kind, "compute_kernel": kernel, "ranks": ranks}
    return {**block, "sharding_spec": spec, **changes}


def written(tmp_path, modules, world_size: int | None = 4):
    path = tmp_path / "plan.json"
    head = {} if world_size is None else {"world_size": world_size}
    path.write_text(json.dumps({**head, "plan": modules}))
    return path


def refusal(tmp_path, block, tables=(TABLE,), **kwargs):
    with pytest.raises(PlanError) as caught:
        read_plan(written(tmp_path, {"ebc": {"t": block}}, **kwargs), tables)
    return str(caught.value)


# --- geometry -----------------------------------------------------------------------------


def test_shards_by_hand(tmp_path):
    """Columns 96 = 48 + 48; rows 100 = 50 + 50 on a node of two ranks."""
    block = sharding(
        "grid_shard",
        [
            shard(2, (0, 50), (0, 48)),
            shard(3, (50, 100), (0, 48)),
            shard(0, (0, 50), (48, 96)),
            shard(1, (50, 100), (48, 96)),
        ],
    )
    plan = read_plan(written(tmp_path, {"ebc": {"t": block}}), (TABLE,))
    assert plan == ShardingPlan(4, (TablePlan("t", GRID, (2, 3, 0, 1)),))
    assert check_plan(plan, (TABLE,), 4, 2) == plan


def test_shards_may_stand_in_any_order(tmp_path):
    block = sharding("column_wise", [shard(1, (0, 100), (48, 96)), shard(3, (0, 100), (0, 48))])
    plan = read_plan(written(tmp_path, {"ebc": {"t": block}}), (TABLE,))
    assert plan.tables[0].ranks == (3, 1)


def test_uneven_widths_that_the_model_cuts_too(tmp_path):
    """Three shards of 32 values more than 64: 36, 32, 32 in multiples of four."""
    table = make_table("t", rows=100, dim=100)
    block = sharding(
        "column_wise",
        [
            shard(0, (0, 100), (0, 36)),
            shard(1, (0, 100), (36, 68)),
            shard(2, (0, 100), (68, 100)),
        ],
    )
    plan = read_plan(written(tmp_path, {"ebc": {"t": block}}), (table,))
    assert plan.tables[0].ranks == (0, 1, 2)


def test_other_widths_are_refused_with_both_geometries(tmp_path):
    block = sharding("column_wise", [shard(0, (0, 100), (0, 64)), shard(3, (0, 100), (64, 96))])
    for tables in ((TABLE,), None):
        text = refusal(tmp_path, block, tables)
        assert "table `t` (column_wise): shard 0 on rank 0" in text
        assert "rows 0:100, columns 0:64 in the plan" in text
        assert "only rows 0:100, columns 0:48 can be predicted" in text


def test_uneven_rows_are_refused(tmp_path):
    cuts = [(0, 40), (40, 60), (60, 80), (80, 100)]
    block = sharding("row_wise", [shard(rank, rows, (0, 96)) for rank, rows in enumerate(cuts)])
    assert "shard 0 on rank 0 is rows 0:40" in refusal(tmp_path, block)


def test_gaps_and_overlaps_are_refused(tmp_path):
    gap = sharding("column_wise", [shard(0, (0, 100), (0, 32)), shard(1, (0, 100), (48, 96))])
    assert "shard 0" in refusal(tmp_path, gap)
    twice = sharding("column_wise", [shard(0, (0, 100), (0, 96)), shard(1, (0, 100), (0, 96))])
    assert "columns 0:48 can be predicted" in refusal(tmp_path, twice)


def test_a_grid_of_unequal_groups_is_refused(tmp_path):
    block = sharding(
        "grid_shard",
        [
            shard(0, (0, 50), (0, 48)),
            shard(1, (50, 100), (0, 48)),
            shard(2, (0, 100), (48, 96)),
        ],
    )
    assert "3 shards do not make 2 equal groups of rows" in refusal(tmp_path, block)


def test_another_size_is_refused(tmp_path):
    block = sharding("table_wise", [shard(0, (0, 90), (0, 64))])
    text = refusal(tmp_path, block)
    assert "cover 90 rows × 64 columns, the model's table has 100 × 96" in text


def test_rows_go_to_ranks_in_rising_order(tmp_path):
    block = sharding("table_row_wise", [shard(3, (0, 50), (0, 96)), shard(2, (50, 100), (0, 96))])
    assert "ranks [3, 2] are not in rising order" in refusal(tmp_path, block)


def test_ranks_and_placements_must_agree(tmp_path):
    block = sharding("table_wise", [shard(1, (0, 100), (0, 96))], ranks=[2])
    assert "`ranks` says [2], the placements say [1]" in refusal(tmp_path, block)


def test_table_row_wise_may_name_the_first_rank_only(tmp_path):
    shards = [shard(2, (0, 50), (0, 96)), shard(3, (50, 100), (0, 96))]
    block = sharding("table_row_wise", shards, ranks=[2])
    plan = read_plan(written(tmp_path, {"ebc": {"t": block}}), (TABLE,))
    assert plan.tables[0].ranks == (2, 3)


@pytest.mark.parametrize("placement", ["rank:1", "worker/cpu", "rank:-1/cpu", "rank:99999999/cpu"])
def test_wrong_placements_are_named(tmp_path, placement):
    block = sharding("table_wise", [shard(0, (0, 100), (0, 96))])
    block["sharding_spec"]["shards"][0]["placement"] = placement
    assert f"found `{placement}`" in refusal(tmp_path, block)


def test_shards_on_two_kinds_of_devices_are_refused(tmp_path):
    mixed = [shard(0, (0, 100), (0, 48)), shard(1, (0, 100), (48, 96), "cpu")]
    assert "on cpu and on cuda in one plan" in refusal(tmp_path, sharding("column_wise", mixed))


# --- kernels ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        ("quant", "serves inference only"),
        ("quant_uvm_caching", "serves inference only"),
        ("fused_triton", "is not modelled"),
    ],
)
def test_kernels_that_cannot_be_predicted(tmp_path, kernel, words):
    block = sharding("table_wise", [shard(0, (0, 100), (0, 96))], kernel)
    text = refusal(tmp_path, block)
    assert f"compute kernel `{kernel}` {words}; use one of `dense`" in text


@pytest.mark.parametrize("kernel", list(ComputeKernel))
def test_kernels_come_back(tmp_path, kernel):
    block = sharding("table_wise", [shard(0, (0, 100), (0, 96))], kernel.value)
    block["cache_params"] = {"load_factor": 0.25, "algorithm": None}
    plan = read_plan(written(tmp_path, {"ebc": {"t": block}}), (TABLE,))
    expected = 0.25 if kernel is CACHED else None
    assert plan.tables == (TablePlan("t", TW, (0,), kernel, expected),)


# --- names --------------------------------------------------------------------------------


def two_modules(first="model.user", second="model.item"):
    whole = sharding("table_wise", [shard(0, (0, 100), (0, 96))])
    other = sharding("table_wise", [shard(1, (0, 100), (0, 96))])
    return {first: {"t": whole}, second: {"t": other}}


@pytest.mark.parametrize("prefix", ["", "model.", "_dmp_wrapped_module.module.model."])
def test_names_that_repeat_are_found_by_their_modules(tmp_path, prefix):
    tables = tuple(make_table(name, rows=100, dim=96) for name in ("item.t", "user.t"))
    path = written(tmp_path, two_modules(prefix + "user", prefix + "item"))
    plan = check_plan(read_plan(path, tables), tables, 4, 4)
    assert [(table.table, table.ranks) for table in plan.tables] == [
        ("item.t", (1,)),
        ("user.t", (0,)),
    ]


def test_names_that_repeat_need_a_model_that_tells_them_apart(tmp_path):
    path = written(tmp_path, two_modules())
    with pytest.raises(
        PlanError,
        match=r"table `t` in modules `model.user` and `model.item`.*"
        r"for example `user.t`",
    ):
        read_plan(path, (TABLE,))
    # Without a model the whole paths are kept.
    assert [table.table for table in read_plan(path).tables] == ["model.user.t", "model.item.t"]


def test_a_plan_of_another_model_lists_every_difference(tmp_path):
    block = sharding("table_wise", [shard(0, (0, 100), (0, 96))])
    path = written(tmp_path, {"ebc": {"tt": block, "u": block}})
    tables = (make_table("u", rows=7, dim=96), make_table("v"), make_table("w"))
    with pytest.raises(PlanError) as caught:
        read_plan(path, tables)
    text = str(caught.value)
    assert "no placement for 2 tables: `v`, `w` of the model" in text
    assert "the model lacks table `tt` of the plan" in text
    assert "table `u` (table_wise): the plan's shards cover 100 rows × 96 columns" in text
    assert str(path) in text


def test_a_table_over_a_pod_names_the_devices_of_its_nodes():
    table = make_table("t", rows=800, dim=16)
    plan = ShardingPlan(8, (TablePlan("t", ShardingType.TABLE_ROW_WISE, tuple(range(8))),))
    text = plan_to_torchrec(plan, (table,), 4, devices_per_domain=8)
    for rank, device in ((0, 0), (3, 3), (4, 0), (7, 3)):
        assert f"rank:{rank}/cuda:{device}" in text


def test_two_modules_out_and_in(tmp_path):
    tables = tuple(make_table(name, rows=100, dim=96) for name in ("user.t", "item.t", "x"))
    plan = ShardingPlan(4, tuple(TablePlan(one.name, TW, (i,)) for i, one in enumerate(tables)))
    modules = {"user.t": "model.user", "item.t": "model.item", "x": "model.item"}
    path = tmp_path / "plan.json"
    path.write_text(plan_to_torchrec(plan, tables, 4, module_path=modules))
    out = json.loads(path.read_text())["plan"]
    assert {module: list(names) for module, names in out.items()} == {
        "model.user": ["t"],
        "model.item": ["t", "x"],
    }
    assert check_plan(read_plan(path, tables), tables, 4, 4) == plan
    with pytest.raises(PlanError, match=r"table `x` .*`module_path` has no module for it"):
        plan_to_torchrec(plan, tables, 4, module_path={"user.t": "a", "item.t": "b"})


def test_two_tables_of_one_name_in_one_module_are_refused():
    tables = (make_table("t"), make_table("user.t"))
    plan = ShardingPlan(4, (TablePlan("t", TW, (0,)), TablePlan("user.t", TW, (1,))))
    with pytest.raises(PlanError, match="would call it `t` in `user`, as table `t`"):
        plan_to_torchrec(plan, tables, 4, module_path="user")


# --- number of ranks ----------------------------------------------------------------------


def test_serialized_torchrec_plans_are_read(tmp_path):
    """Shards next to the ranks, without a world size: the row-wise table determines it."""
    cuts = [(0, 25), (25, 50), (50, 75), (75, 100)]
    block = sharding("row_wise", [shard(rank, rows, (0, 96)) for rank, rows in enumerate(cuts)])
    block["shards"] = block.pop("sharding_spec")["shards"]
    plan = read_plan(written(tmp_path, {"": {"t": block}}, world_size=None), (TABLE,))
    assert plan == ShardingPlan(4, (TablePlan("t", RW, (0, 1, 2, 3)),))


def test_a_number_of_ranks_is_never_guessed(tmp_path):
    block = sharding("table_wise", [shard(3, (0, 100), (0, 96))])
    text = refusal(tmp_path, block, world_size=None)
    assert "world_size" in text


def test_ranks_beyond_the_number_of_ranks_are_refused(tmp_path):
    block = sharding("table_wise", [shard(4, (0, 100), (0, 96))])
    assert "table `t`: rank 4 is outside 0–3" in refusal(tmp_path, block)


def test_ranks_may_be_left_out_where_they_are_all(tmp_path):
    row_wise = {"sharding_type": "row_wise", "compute_kernel": "fused"}
    replicated = {"sharding_type": "data_parallel", "compute_kernel": "dense", "ranks": None}
    path = written(tmp_path, {"ebc": {"a": row_wise, "b": replicated}})
    assert [table.ranks for table in read_plan(path).tables] == [(0, 1, 2, 3)] * 2
    nowhere = {"sharding_type": "table_wise", "compute_kernel": "fused"}
    assert "neither ranks nor shards are given" in refusal(tmp_path, nowhere, None)


# --- files --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sharding_type": "row_wize"}, "did you mean `row_wise`"),
        ({"sharding_spec": {"shards": [{"shard_offsets": [0]}]}}, "shard_offsets"),
        ({"rank": [0]}, "did you mean `ranks`"),
        ({"ranks": [-1]}, "ranks"),
    ],
)
def test_wrong_files_are_refused_at_their_place(tmp_path, change, words):
    block = sharding("table_wise", [shard(0, (0, 100), (0, 96))])
    with pytest.raises(ConfigError, match=words):
        read_plan(written(tmp_path, {"ebc": {"t": {**block, **change}}}), (TABLE,))


def test_our_own_form_is_told_apart_by_content(tmp_path):
    """Not by a word somewhere in the text: here a table is called `plan`."""
    table = make_table("plan")
    plan = ShardingPlan(4, (TablePlan("plan", TW, (1,), CACHED, 0.5),))
    path = tmp_path / "plan.json"
    path.write_text(plan_to_json(plan, "m"))
    assert read_plan(path, (table,)) == plan
    path.write_text(plan_to_torchrec(plan, (table,), 4))
    assert read_plan(path, (table,)) == plan


@given(data=st.data())
def test_what_is_written_is_read(data, tmp_path_factory):
    """Any plan that TorchRec obeys comes back as it was."""
    per_node, nodes = data.draw(st.sampled_from([1, 2, 4])), data.draw(st.integers(1, 3))
    world_size = per_node * nodes
    rank = st.integers(0, world_size - 1)
    node = st.integers(0, nodes - 1)
    tables, placements = [], []
    for index in range(data.draw(st.integers(1, 4))):
        table = make_table(
            f"t{index}", data.draw(st.integers(1, 200)), data.draw(st.integers(1, 24)) * 4
        )
        first = data.draw(node) * per_node
        local = tuple(range(first, first + per_node))
        shards = data.draw(st.integers(1, min(world_size, table.dim)))
        groups = data.draw(st.permutations(range(nodes)))[: min(nodes, table.dim)]
        ranks = {
            TW: (data.draw(rank),),
            RW: tuple(range(world_size)),
            DP: tuple(range(world_size)),
            TWRW: local,
            CW: tuple(data.draw(st.permutations(range(world_size)))[:shards]),
            TWCW: local[: min(per_node, table.dim)],
            GRID: tuple(group * per_node + i for group in groups for i in range(per_node)),
        }
        kind = data.draw(st.sampled_from(list(ShardingType)))
        kernel = DENSE if kind is DP else data.draw(st.sampled_from(list(ComputeKernel)))
        tables.append(table)
        placements.append(TablePlan(table.name, kind, ranks[kind], kernel))
    plan = ShardingPlan(world_size, tuple(placements))
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    path.write_text(plan_to_torchrec(plan, tables, per_node))
    found = read_plan(path, tables)
    assert check_plan(found, tables, world_size, per_node) == found
    assert named_by_shards(found) == named_by_shards(plan)


def named_by_shards(plan):
    """The plan with whole tables and cut columns called after the number of their shards."""
    return [
        replace(one, sharding_type=TW if len(one.ranks) == 1 else CW)
        if one.sharding_type in (TW, CW, TWCW)
        else one
        for one in plan.tables
    ]


@pytest.mark.parametrize(
    ("kinds", "written_as"),
    [
        ((TW, TW, RW), ("table_wise", "table_wise", "row_wise")),
        ((TW, CW, RW), ("column_wise", "column_wise", "row_wise")),
        ((TW, TWCW, CW), ("column_wise",) * 3),
        ((TWCW, TWCW, TWRW), ("table_column_wise", "table_column_wise", "table_row_wise")),
    ],
)
def test_whole_and_cut_tables_share_exchanges(tmp_path, kinds, written_as):
    """TorchRec exchanges each sharding type apart."""
    ranks = {TW: (1,), CW: (1, 0), TWCW: (0, 1), RW: (0, 1), TWRW: (0, 1)}
    tables = tuple(make_table(f"t{number}", rows=100, dim=96) for number in range(3))
    plan = ShardingPlan(
        2,
        tuple(TablePlan(t.name, kind, ranks[kind]) for t, kind in zip(tables, kinds, strict=True)),
    )
    path = tmp_path / "plan.json"
    path.write_text(plan_to_torchrec(plan, tables, 2))
    module = json.loads(path.read_text())["plan"][TORCHREC_MODULE]
    assert tuple(block["sharding_type"] for block in module.values()) == written_as
    assert named_by_shards(read_plan(path, tables)) == named_by_shards(plan)
    for table, kind in zip(tables, kinds, strict=True):
        if kind is TW:
            (whole,) = module[table.name]["sharding_spec"]["shards"]
            assert whole == shard(1, (0, 100), (0, 96), "cuda:1")


def test_collections_are_written_apart():
    tables = tuple(make_table(name, rows=100, dim=96) for name in ("user.t", "item.t"))
    plan = ShardingPlan(2, (TablePlan("user.t", TW, (0,)), TablePlan("item.t", CW, (0, 1))))
    modules = {"user.t": "model.user", "item.t": "model.item"}
    out = json.loads(plan_to_torchrec(plan, tables, 2, module_path=modules))["plan"]
    assert out["model.user"]["t"]["sharding_type"] == "table_wise"
    assert out["model.item"]["t"]["sharding_type"] == "column_wise"


# --- what TorchRec would not do -----------------------------------------------------------


@pytest.mark.parametrize(
    ("placement", "words"),
    [
        (TablePlan("t", DP, (0, 1, 2, 3)), "`fused` cannot be replicated by TorchRec"),
        (TablePlan("t", RW, (0, 1, 3, 2)), "not in rising order"),
        (TablePlan("t", GRID, (0, 1, 3, 2)), r"ranks \[3, 2\] are not in rising order"),
        (TablePlan("t", CW, (0, 1, 2, 1, 0)), "rank 1 has shards of 20 and of 16 columns"),
    ],
)
def test_plans_that_torchrec_would_not_obey(placement, words):
    table = replace(TABLE, dim=92)
    assert column_widths(92, 5) == (20, 20, 20, 16, 16)
    plan = check_plan(ShardingPlan(4, (placement,)), (table,), 4, 2)
    with pytest.raises(PlanError, match=words):
        plan_to_torchrec(plan, (table,), 2)


def test_an_empty_block_is_refused_for_cpus():
    """Three rows over four ranks: one each, and none for the last."""
    plan = ShardingPlan(4, (TablePlan("t", RW, (0, 1, 2, 3)),))
    table = replace(TABLE, rows=3)
    text = plan_to_torchrec(plan, (table,), 4, "cuda")
    (module,) = json.loads(text)["plan"].values()
    shards = module["t"]["sharding_spec"]["shards"]
    assert [shard["shard_sizes"][0] for shard in shards] == [1, 1, 1, 0]
    with pytest.raises(PlanError, match="rank 3 gets none of the 3 rows"):
        plan_to_torchrec(plan, (table,), 4, "cpu")


# --- objects ------------------------------------------------------------------------------


def as_objects(text):
    """The classes of TorchRec, as far as their attributes go."""

    def parameter(block):
        spec = block["sharding_spec"]
        shards = spec and [SimpleNamespace(**shard) for shard in spec["shards"]]
        cache = block.get("cache_params")
        return SimpleNamespace(
            sharding_type=block["sharding_type"],
            compute_kernel=block["compute_kernel"],
            ranks=block["ranks"],
            sharding_spec=None if spec is None else SimpleNamespace(shards=shards),
            cache_params=None if cache is None else SimpleNamespace(**cache),
        )

    modules = json.loads(text)["plan"]
    return SimpleNamespace(
        plan={
            module: {name: parameter(block) for name, block in tables.items()}
            for module, tables in modules.items()
        }
    )


def test_objects_are_taken_over_in_the_models_order():
    model = make_model((make_table("a"), make_table("b")))
    plan = ShardingPlan(
        2, (TablePlan("a", TW, (1,), CACHED, 0.5), TablePlan("b", DP, (0, 1), DENSE))
    )
    live = as_objects(plan_to_torchrec(plan, model.tables, 2))
    module = live.plan[TORCHREC_MODULE]
    live.plan[TORCHREC_MODULE] = dict(reversed(module.items()))
    assert from_torchrec(live, model) == plan
    assert from_torchrec(live, model.tables, world_size=2) == plan
    module["a"].sharding_type = "diagonal"
    with pytest.raises(PlanError, match="unknown sharding type `diagonal`"):
        from_torchrec(live, model)


def test_objects_without_a_list_of_shards_are_refused():
    plan = ShardingPlan(2, (TablePlan("t", TW, (1,)),))
    live = as_objects(plan_to_torchrec(plan, (TABLE,), 2))
    live.plan[TORCHREC_MODULE]["t"].sharding_spec = SimpleNamespace(dim=0)
    with pytest.raises(PlanError, match="EnumerableShardingSpec is expected"):
        from_torchrec(live, (TABLE,), world_size=2)


def test_building_objects_needs_the_library(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torchrec", None)
    monkeypatch.setitem(__import__("sys").modules, "torchrec.distributed", None)
    plan = ShardingPlan(2, (TablePlan("t", TW, (1,)),))
    with pytest.raises(OptionalDependencyError, match="plan_to_torchrec"):
        to_torchrec(plan, (TABLE,), devices_per_node=2)


def test_tables_without_pooling_have_a_module_of_their_own(tmp_path):
    tables = (TABLE, replace(make_table("u", rows=100, dim=96), pooled=False))
    plan = ShardingPlan(2, (TablePlan("t", RW, (0, 1)), TablePlan("u", RW, (0, 1))))
    written_plan = plan_to_torchrec(plan, tables, 2)
    modules = json.loads(written_plan)["plan"]
    assert {path: list(block) for path, block in modules.items()} == {
        TORCHREC_MODULE: ["t"],
        TORCHREC_MODULE.replace("embedding_bag_collection", "embedding_collection"): ["u"],
    }
    path = tmp_path / "plan.json"
    path.write_text(written_plan)
    assert check_plan(read_plan(path, tables), tables, 2, 2) == plan
