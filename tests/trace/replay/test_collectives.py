"""Collectives: found in traces, run over processes, mocked, left out."""

from __future__ import annotations

from dataclasses import replace
import gc
import json
from types import SimpleNamespace
import weakref

import pytest

from dse.errors import ConfigError, WorkerError
from dse.trace.replay import ReplayOptions, replay
from dse.trace.replay.plan._collectives import CollectiveBinder, CollectiveCall, collective_call
from dse.trace.replay.read import inputs_of, tensors_in
from dse.trace.replay.run import RankInput, replay_rank
from dse.trace.replay.run._tensors import TensorFactory
from tests.trace.replay.making import ALL_REDUCE, RELU, Object, T, call, node, read, write

torch = pytest.importorskip("torch")

FEW = ReplayOptions(iterations=2, warm_up=0)
UNSCALED = SimpleNamespace(active=False)
GROUP = "__torch__.torch.classes.c10d.ProcessGroup process_group"
WORK = "__torch__.torch.classes.c10d.Work"
ALL_TO_ALL = (
    f"c10d::alltoall_base_(Tensor output, Tensor input, {GROUP}, int[] output_split_sizes, "
    f"int[] input_split_sizes, bool async_op=True, int timeout=-1) -> {WORK}"
)
ALL_GATHER = (
    f"c10d::_allgather_base_(Tensor output_tensor, Tensor input_tensor, {GROUP}, "
    f"bool async_op=True, int timeout=-1) -> (Tensor, {WORK})"
)
BROADCAST = (
    f"c10d::broadcast_(Tensor[] tensors, {GROUP}, int root_rank, int root_tensor, "
    f"bool async_op=True, int timeout=-1) -> (Tensor[], {WORK})"
)
PG, OP = Object("Object"), Object("Object")


def described(number, parent, ranks=2, start=0):
    """What a backend records inside the operator of c10d."""
    return node(
        number,
        parent,
        "record_param_comms",
        collective_name="allreduce",
        dtype="Float",
        in_msg_nelems=8,
        out_msg_nelems=8,
        pg_size=ranks,
        global_rank_start=start,
        global_rank_stride=1,
    )


def rank_nodes(rank, *, describe=True):
    """A rank that takes part in four collectives and works on what it received."""
    gradient, gathered = T(10, (8,)), T(11, (2, 8))
    # Rank 0 keeps 1 row and sends 3, rank 1 keeps 2 and sends 2.
    sent = [1, 3] if rank == 0 else [2, 2]
    received = [1, 2] if rank == 0 else [3, 2]
    rows = T(12, (4, 2)), T(13, (sum(received), 2))
    nodes = [
        call(2, 1, ALL_REDUCE, [[gradient], PG, OP, None, True, -1], [[gradient], Object("W")]),
        call(4, 1, ALL_GATHER, [gathered, gradient, PG, True, -1], [gathered, Object("W")]),
        call(6, 1, ALL_TO_ALL, [rows[1], rows[0], PG, received, sent, True, -1], [Object("W")]),
        call(8, 1, BROADCAST, [[gradient], PG, 1, 0, True, -1], [[gradient], Object("W")]),
        call(10, 1, RELU, [gathered], [T(14, (2, 8))]),
    ]
    if describe:
        nodes += [described(3, 2), described(5, 4), described(7, 6), described(9, 8)]
    return sorted(nodes, key=lambda one: one["id"])


def rank_files(folder, *, describe=True):
    return [
        write(folder / f"rank{rank}.et.json", rank_nodes(rank, describe=describe))
        for rank in range(2)
    ]


def test_a_call_has_tensors_numbers_and_its_group(tmp_path):
    trace = read(tmp_path / "et.json", rank_nodes(0))
    place = trace.names.index("c10d::alltoall_base_")
    (at,) = [one for one in range(len(trace)) if trace.name[one] == place]
    schema = trace.op_schemas[int(trace.op_schema[at])]
    found = collective_call(trace, at, schema, inputs_of(trace.arguments[at]))
    assert found.operation == "alltoall_base_"
    assert [ref.tensor for ref in tensors_in(found.tensors)] == [13, 12]
    assert found.numbers == ([1, 2], [1, 3])
    assert found.ranks == (0, 1)


def test_unknown_collectives_are_named_as_such(tmp_path):
    trace = read(tmp_path / "et.json", [call(2, 1, "c10d::fancy_(Tensor a) -> ()", [T(1, (2,))])])
    assert collective_call(trace, 0, trace.op_schemas[0], []) == "this collective is not known"


@pytest.fixture
def group():
    """A process group of this process alone."""
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()


def test_collectives_run_in_a_process_group(tmp_path, group):
    gradient, gathered, rows = T(10, (8,)), T(11, (1, 8)), (T(12, (4, 2)), T(13, (4, 2)))
    nodes = [
        call(2, 1, ALL_REDUCE, [[gradient], PG, OP, None, True, -1], [[gradient], Object("W")]),
        call(3, 1, ALL_GATHER, [gathered, gradient, PG, True, -1], [gathered, Object("W")]),
        call(4, 1, ALL_TO_ALL, [rows[1], rows[0], PG, [4], [4], True, -1], [Object("W")]),
        call(5, 1, BROADCAST, [[gradient], PG, 0, 0, True, -1], [[gradient], Object("W")]),
        call(6, 1, RELU, [gathered], [T(14, (1, 8))]),
    ]
    trace = read(tmp_path / "rank0.et.json", nodes)
    result = replay_rank(RankInput(trace), FEW, "run", {(): group})
    assert result.skipped == ()
    assert result.collectives == 4
    assert result.coverage.replayed == 5


def test_tensors_of_a_rank_are_freed_before_the_next(tmp_path, monkeypatch):
    options = replace(FEW, collectives="mock")
    files = rank_files(tmp_path)
    replay(files, options)  # torch itself keeps what its first call was given
    made = []
    make = TensorFactory._make

    def watched(*arguments):
        tensors = make(*arguments)
        made.extend(map(weakref.ref, tensors))
        return tensors

    monkeypatch.setattr(TensorFactory, "_make", watched)
    gc.disable()
    try:
        result = replay(files, options)
        assert len(result.ranks) == 2
        assert made
        assert not [one for one in made if one() is not None]
    finally:
        gc.enable()


@pytest.mark.slow
def test_ranks_exchange_over_processes(tmp_path):
    result = replay(rank_files(tmp_path), FEW)
    assert result.collectives == "run"
    assert [rank.rank for rank in result.ranks] == [0, 1]
    for rank in result.ranks:
        assert rank.skipped == ()
        assert rank.collectives == 4
        assert rank.coverage.replayed == 5
        assert len(rank.iteration_s) == 2


@pytest.mark.slow
def test_a_rank_that_fails_is_named_in_one_line(tmp_path):
    paths = rank_files(tmp_path)
    # Rank 1 receives fewer rows than rank 0 sends.
    text = paths[1].read_text().replace("[3, 2]", "[1, 2]")
    paths[1].write_text(text)
    with pytest.raises(WorkerError, match=r"c10d::alltoall_base_ failed") as caught:
        replay(paths, ReplayOptions(iterations=1, timeout_s=60))
    assert "\n" not in str(caught.value)


def test_a_missing_rank_is_mocked_and_says_so(tmp_path):
    result = replay(rank_files(tmp_path)[1:], FEW)
    assert result.collectives == "mock"
    (note,) = result.notes
    assert note.startswith("ranks 0 of a group of 2 are missing; collectives are mocked")
    assert result.ranks[0].coverage.operator_share == 1


def test_a_lone_trace_that_names_no_ranks_is_mocked(tmp_path):
    result = replay(rank_files(tmp_path, describe=False)[:1], FEW)
    assert result.collectives == "mock"
    assert "does not say which ranks" in result.notes[0]


def test_running_needs_all_ranks(tmp_path):
    with pytest.raises(ConfigError, match="--collectives run: ranks 1 of a group of 2"):
        replay(rank_files(tmp_path)[:1], ReplayOptions(collectives="run"))


@pytest.mark.parametrize(
    ("options", "operators", "collectives"),
    [
        (ReplayOptions(iterations=1, collectives="mock"), 5, 4),
        (ReplayOptions(iterations=1, collectives="skip"), 1, 0),
        (ReplayOptions(iterations=1, part="compute"), 1, 0),
        (ReplayOptions(iterations=1, part="communication", collectives="mock"), 4, 4),
    ],
)
def test_parts_and_modes(tmp_path, options, operators, collectives):
    (rank,) = replay(rank_files(tmp_path)[:1], options).ranks
    assert (rank.coverage.operators, rank.collectives) == (operators, collectives)
    assert rank.coverage.operator_share == 1
    assert all(one.by_option for one in rank.skipped)


def test_times_of_a_part_are_compared_with_that_part_only(tmp_path):
    events = [
        {"ph": "X", "cat": "cpu_op", "name": name, "ts": 10 * at, "dur": 5, "pid": 1, "tid": 1}
        | {"args": {"Record function id": number}}
        for at, (name, number) in enumerate((("c10d::allreduce_", 2), ("aten::relu", 10)))
    ]
    kineto = tmp_path / "rank0.pt.trace.json"
    kineto.write_text(json.dumps({"traceEvents": events}))
    (trace, _) = rank_files(tmp_path)
    whole, compute, communication = (
        replay([trace], ReplayOptions(iterations=1, part=part)).ranks[0].original
        for part in ("all", "compute", "communication")
    )
    assert whole.profiled_s == pytest.approx(15e-6)
    assert whole.operators_s == pytest.approx(10e-6)
    assert compute.profiled_s == pytest.approx(5e-6)
    assert communication.reference_s is None


def mocked(operation, tensors, numbers=()):
    return CollectiveBinder(torch, None, UNSCALED).bind(
        CollectiveCall(operation, (None,) * tensors, numbers, ())
    )


def test_mocks_fill_what_would_be_received():
    given = torch.arange(4.0)
    gathered = torch.zeros(8)
    assert mocked("_allgather_base_", 2)(gathered, given) is None
    assert gathered.tolist() == [0, 1, 2, 3, 0, 0, 0, 0]
    parts = [torch.zeros(4), torch.zeros(4)]
    mocked("allgather_", 2)([parts], [given])
    assert [part.tolist() for part in parts] == [[0, 1, 2, 3]] * 2
    reduced = torch.zeros(2)
    mocked("_reduce_scatter_base_", 2)(reduced, given)
    assert reduced.tolist() == [0, 1]
    mocked("allreduce_", 1)([given])
    assert given.tolist() == [0, 1, 2, 3]


def test_a_group_that_is_not_there_is_an_error():
    call_ = CollectiveCall("allreduce_", (None,), (), (4, 5))
    with pytest.raises(ConfigError, match=r"ranks \[4, 5\]"):
        CollectiveBinder(torch, {}, UNSCALED).bind(call_)


def test_splits_scale_with_the_batch_or_not_at_all():
    seen = []
    group = SimpleNamespace(alltoall_base=lambda *given: seen.append(given))
    scaler = SimpleNamespace(active=True, before=4, after=2)
    call_ = CollectiveCall("alltoall_base_", (None, None), ([2, 4], [6, 2]), ())
    CollectiveBinder(torch, {(): group}, scaler).bind(call_)("out", "in")
    assert seen == [("out", "in", [1, 2], [3, 1])]
    odd = CollectiveCall("alltoall_base_", (None, None), ([3, 4], [6, 2]), ())
    with pytest.raises(ConfigError, match="cannot be scaled"):
        CollectiveBinder(torch, {(): group}, scaler).bind(odd)
