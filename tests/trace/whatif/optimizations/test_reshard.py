"""Moving embedding tables over three hand-made ranks; loads and ratios worked out by hand."""

from __future__ import annotations

import json

import pytest

from dse.errors import ConfigError
from dse.machine.collectives import CollectiveOp, collective_time_s
from dse.machine.platforms import load_platform
from dse.trace import COMPUTING, OperatorInputs, TaskRole, read_kineto
from dse.trace.whatif import Selector, captured_step, parse_optimization, read_changes
from dse.trace.whatif.retime._lookups import Lookup, lookups_of, read_lookup, rewritten_lookup
from tests.trace.helpers import call, kernel, operator, span, write

V100 = "v100_dgx1"
#: Samples of all ranks and of one.
BATCH, LOCAL = 64, 16
#: Tables of 8 columns and 100,000 rows: rank 0 looks up more rows of its four than others of two.
DIM, ROWS = 8, 100_000
TABLES = (4, 2, 2)
INDICES = (40_960, 2_048, 2_048)
RESULT = 8 * DIM


def lookup_of(tables, indices):
    return Lookup(tables, BATCH, indices, tables * DIM, tables * ROWS * DIM, 4)


def recorded(tensors, types):
    return {"Input Dims": tensors, "Input type": types}


def forward_inputs(tables, indices):
    """As fbgemm's lookup of tables with Adagrad records them."""
    weights = tables * ROWS * DIM
    shapes = [[0], [weights], [0], [0, 0], [tables], [tables], [tables + 1], [], [], [tables + 1]]
    shapes += [[], [indices], [tables * BATCH + 1], [], []]
    types = ["float", "float", "float", "float", "int", "long int", "int", "Scalar", "Scalar"]
    types += ["long int", "Scalar", "long int", "long int", "Scalar", ""]
    return recorded(shapes, types)


def exchange(ts, name, correlation, sent, received, dtype, kernel_ts):
    ids = {"Collective name": "all_to_all", "In msg nelems": sent, "Out msg nelems": received}
    ids |= {"Group size": 3, "dtype": dtype, "Process Group Name": "0"}
    return [
        operator("c10d::alltoall_base_", ts, 20),
        span("user_annotation", "nccl:all_to_all", ts + 2, 14, pid=10, tid=11),
        call(ts + 5, 5, correlation),
        kernel(name, kernel_ts, 40, correlation, stream=20, **ids),
    ]


def rank_events(rank, *, lookups=True):
    tables, indices = TABLES[rank], INDICES[rank]
    width, pooled = tables * DIM, BATCH * tables * DIM
    sequence = {"Sequence number": 5, "Fwd thread id": 0}
    node = "torch::autograd::CppNode<SplitLookupFunction_adagrad_Op>"
    events = [
        span("user_annotation", "ProfilerStep#1", 0, 1000, pid=10, tid=11),
        *exchange(0, "ncclIndices", 1, 20_000, indices, "Long", 20),
        operator(
            "fbgemm::bounds_check_indices",
            30,
            20,
            **recorded(
                [[tables], [indices], [tables * BATCH + 1], []],
                ["long int", "long int", "long int", "Scalar"],
            ),
        ),
        call(32, 5, 2),
        kernel("bounds_check", 70, 10, 2),
        *exchange(80, "ncclPooled", 4, pooled, LOCAL * RESULT, "Float", 200),
        operator("aten::relu", 110, 20, **recorded([[LOCAL, RESULT]], ["float"])),
        call(112, 5, 5),
        kernel("relu", 250, 30, 5),
        *exchange(140, "ncclGradient", 6, LOCAL * RESULT, pooled, "Float", 300),
    ]
    # Backward work has its own thread.
    for event in events[-4:-1]:
        event["tid"] = 12
    evaluate = "autograd::engine::evaluate_function: "
    name = "fbgemm::split_embedding_codegen_lookup_adagrad_function"
    events += [
        operator(name, 60, 18, **forward_inputs(tables, indices), **sequence),
        call(62, 5, 3),
        kernel("split_embedding_forward", 80, 100 if rank == 0 else 40, 3),
        operator(evaluate + "Pooled_WaitBackward", 138, 30, tid=12),
        operator(evaluate + node, 170, 60, tid=12, **{**sequence, "Fwd thread id": 1}),
        operator(node, 172, 50, tid=12, **recorded([[BATCH, width]], ["float"])),
        call(175, 5, 7, tid=12),
        kernel("radix_sort", 400, 60 if rank == 0 else 50, 7),
        call(190, 5, 8, tid=12),
        kernel("split_embedding_backward", 500, 200 if rank == 0 else 80, 8),
        call(600, 300, 9, name="cudaDeviceSynchronize"),
    ]
    if not lookups:
        events = [one for one in events if "embedding" not in one["name"]]
    return sorted(events, key=lambda event: (event["ts"], -event["dur"]))


@pytest.fixture
def make(tmp_path):
    def made(**options):
        for rank in range(3):
            write(
                tmp_path / f"rank{rank}.json",
                rank_events(rank, **options),
                rank=rank,
                world_size=3,
                deviceProperties=[{"id": 0, "name": "Tesla V100-SXM2-32GB"}],
            )
        return captured_step(read_kineto(tmp_path), platform=V100)

    return made


def after(captured, *texts):
    editor = captured.editor()
    for text in texts:
        parse_optimization(text).apply(editor)
    return editor


def times(editor, rank):
    tasks = editor.select(Selector(rank=(rank,), role=(*COMPUTING, TaskRole.COLLECTIVE)))
    return {editor.name_of(task): editor.duration_of(task) * 1e6 for task in tasks}


def ratio(old, new, *, forward):
    platform = load_platform(V100)
    return new.call(forward=forward).time_s(platform) / old.call(forward=forward).time_s(platform)


def test_lookups_are_read(make):
    found = lookups_of(make().editor())
    assert [one.lookup for one in found] == [
        lookup_of(tables, indices) for tables, indices in zip(TABLES, INDICES, strict=True)
    ]
    assert [len(one.backward) for one in found] == [2, 2, 2]
    sizes = dict(found[0].lookup.call(forward=True).shape)
    assert sizes == {
        "rows": 4 * ROWS,
        "dim": DIM,
        "batch": 4 * BATCH,
        "pooling": 160,
        "value_bytes": 4,
    }


def test_lookups_of_newer_versions_are_read():
    """Weights, their placements and offsets are one list ahead of the offsets of columns."""
    shapes = [[0], [[0], [4800], [0], [3], [3]], [4], [], [], [4], [], [96], [25], []]
    types = ["float", "TensorList", "int", "Scalar", "Scalar", "long int", "Scalar", "long int"]
    types += ["long int", "Scalar"]
    given = OperatorInputs(json.dumps(shapes), json.dumps(types))
    assert read_lookup(given, 24) == Lookup(3, 8, 96, 24, 4800, 4)
    new = rewritten_lookup(given, Lookup(3, 8, 96, 24, 4800, 4), Lookup(2, 8, 64, 16, 3200, 4))
    assert read_lookup(new, 16) == Lookup(2, 8, 64, 16, 3200, 4)
    assert read_lookup(OperatorInputs("[[3],[4]]", '["int","long int"]'), 8) is None
    assert read_lookup(None, 8) is None


def test_a_move_by_hand(make):
    """Two of rank 0's tables with 10,240 lookups each go to rank 1."""
    captured = make()
    editor = after(captured, "reshard=0:1:2")
    old = [lookup_of(tables, indices) for tables, indices in zip(TABLES, INDICES, strict=True)]
    new = [lookup_of(2, 20_480), lookup_of(4, 22_528), old[2]]
    assert [one.lookup for one in lookups_of(editor)] == new
    for rank, durations in ((0, (100, 60, 200)), (1, (40, 50, 80)), (2, (40, 50, 80))):
        found = times(editor, rank)
        forward = ratio(old[rank], new[rank], forward=True)
        backward = ratio(old[rank], new[rank], forward=False)
        assert found["split_embedding_forward"] == pytest.approx(durations[0] * forward)
        assert found["radix_sort"] == pytest.approx(durations[1] * backward)
        assert found["split_embedding_backward"] == pytest.approx(durations[2] * backward)
        assert found["relu"] == pytest.approx(30)
    assert ratio(old[0], new[0], forward=True) < 1 < ratio(old[1], new[1], forward=True)
    # Bounds are checked for as many indices as there are now, of 8 bytes, in and out; the list of
    # the four tables' rows is too short to matter and stays.
    checked = [
        8.0 * (4 + 2 * indices + tables * BATCH + 1)
        for tables, indices in ((4, 40_960), (2, 20_480))
    ]
    model = load_platform(V100).kernel_time("elementwise", traffic_bytes=checked)
    assert times(editor, 0)["bounds_check"] == pytest.approx(10 * float(model[1] / model[0]))


def test_exchanges_go_with_the_largest_side(make):
    editor = after(make(), "reshard=0:1:2")
    cluster = load_platform(V100).cluster(3)

    def model(elements, width):
        return float(collective_time_s(cluster, CollectiveOp.ALL_TO_ALL, elements * width))

    found = times(editor, 2)
    # Pooled: rank 0 sent 64 · 32 values, now rank 1 sends as many, so nothing is gained.
    assert found["ncclPooled"] == pytest.approx(40)
    assert found["ncclGradient"] == pytest.approx(40)
    # Indices: every rank sends 20,000; the most that is received falls from 40,960 to 22,528.
    expected = 40 * model(22_528, 8) / model(40_960, 8)
    assert found["ncclIndices"] == pytest.approx(expected)
    assert expected < 40

    once = times(after(make(), "reshard=0:1:1"), 2)
    # One table moves: three are left on rank 0, and 64 · 24 values are the most that is sent.
    assert once["ncclPooled"] == pytest.approx(40 * model(1536, 4) / model(2048, 4))
    assert once["ncclGradient"] == pytest.approx(40 * model(1536, 4) / model(2048, 4))


def test_there_and_back_changes_nothing(make):
    captured = make()
    for text in ("reshard=0:1:2;1:0:2", "reshard=0:2:50%;2:0:50%", "reshard=0:1:2;1:2:2;2:0:2"):
        editor = after(captured, text)
        for rank in range(3):
            assert times(editor, rank) == pytest.approx(times(captured.editor(), rank)), text


def test_a_later_step_sees_the_move(make):
    """Equal ranks: what one step moves, the next moves back."""
    captured = make()
    editor = after(captured, "reshard=1:2:1", "reshard=2:1:1")
    assert [one.lookup for one in lookups_of(editor)] == [
        one.lookup for one in lookups_of(captured.editor())
    ]
    assert times(editor, 1) == pytest.approx(times(captured.editor(), 1))


def test_shares_cut_tables_by_columns(make):
    """37.5 % of four tables are one and a half; both ranks look up all rows of the cut one."""
    editor = after(make(), "reshard=0:1:37.5%")
    first, second, _ = (one.lookup for one in lookups_of(editor))
    assert (first.tables, first.indices, first.total_dim) == (3, 3 * 10_240, 20)
    assert (second.tables, second.indices, second.total_dim) == (4, 2_048 + 2 * 10_240, 28)
    assert first.weights + second.weights == 6 * ROWS * DIM


def test_a_rank_may_lose_all_tables(make):
    editor = after(make(), "reshard=1:2:2")
    found = times(editor, 1)
    assert (found["split_embedding_forward"], found["radix_sort"]) == (0, 0)
    assert [one.rank for one in lookups_of(editor)] == [0, 2]
    assert lookups_of(editor)[1].lookup == lookup_of(4, 4_096)
    assert make().what_if([parse_optimization("reshard=1:2:2")]).after_s > 0


def test_memory_is_noted(make):
    editor = after(make(), "reshard=0:1:2")
    mib = ROWS * DIM * 4 / 2**20
    assert f"rank 0 holds {2 * mib:.1f} MiB of tables instead of {4 * mib:.1f} MiB" in " ".join(
        editor.notes
    )


def test_balance_shortens_the_longest_lookups(make):
    captured = make()
    answer = captured.what_if([parse_optimization("reshard=balance")])
    editor = after(captured, "reshard=balance")

    def longest(which):
        return max(sum(map(which.duration_of, one.tasks)) for one in lookups_of(which))

    assert longest(editor) < longest(captured.editor())
    assert sum(one.lookup.tables for one in lookups_of(editor)) == sum(TABLES)
    assert sum(one.lookup.indices for one in lookups_of(editor)) == sum(INDICES)
    assert any("a table moves from rank 0" in note for note in answer.notes)
    # Balanced ranks stay as they are.
    again = after(captured, "reshard=balance", "reshard=balance")
    assert longest(again) == pytest.approx(longest(editor))


def test_moves_in_a_file(make, tmp_path):
    path = tmp_path / "steps.yaml"
    path.write_text(
        "schema_version: 1\nname: move\nsteps:\n- optimization: reshard\n"
        "  moves:\n  - {from: 0, to: 1, tables: 2}\n  - {from: 1, to: 0, share: 50 %}\n"
    )
    (step,) = read_changes(path)
    assert step.title == "reshard=0:1:2;1:0:50 %"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("reshard=9:0:1", "rank 9 has no sharded embedding lookup in the step; ranks 0, 1, 2"),
        ("reshard=0:9:50%", "rank 9 has no"),
        ("reshard=0:1:5", "rank 0 has 4 tables, so 5 cannot move to rank 1"),
        ("reshard=1:1:1", "to itself"),
        ("reshard=0:1", "FROM:TO:TABLES"),
        ("reshard", "either `moves` or `balance`"),
        ("reshard=0:1:1,balance=true", "either `moves` or `balance`"),
    ],
)
def test_impossible_moves_are_explained(make, text, message):
    with pytest.raises(ConfigError, match=message):
        after(make(), text)


def test_steps_without_lookups(make):
    with pytest.raises(ConfigError, match="no fused embedding lookup"):
        after(make(lookups=False), "reshard=0:1:1")


def test_resize_of_the_batch_takes_lookups_along(make):
    """Twice the samples: twice the indices of the same tables, twice of what is exchanged."""
    editor = after(make(), "resize=64:128;16:32,samples=true")
    first = lookups_of(editor)[0].lookup
    assert first == Lookup(4, 128, 2 * INDICES[0], 32, 4 * ROWS * DIM, 4)
    old = lookup_of(4, INDICES[0])
    assert times(editor, 0)["split_embedding_forward"] == pytest.approx(
        100 * ratio(old, first, forward=True)
    )
    (pooled, *_) = editor.select(Selector(name=("ncclPooled",)))
    assert editor.collective_of(pooled).input_elements == 2 * BATCH * 4 * DIM
