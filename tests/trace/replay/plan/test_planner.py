"""From operators to a program: what is shared, kept, let go and waited for."""

from __future__ import annotations

import pytest

from dse.trace.replay.plan import OperatorFinder, TensorSlot
from dse.trace.replay.plan._planner import HIDDEN, LEFT_OUT, Planner
from dse.trace.replay.read import UnitSelector
from tests.trace.replay.making import (
    ADD,
    ADD_,
    ALL_REDUCE,
    LINEAR,
    MM,
    MUL,
    RELU,
    T_,
    VIEW,
    Object,
    T,
    call,
    read,
)

torch = pytest.importorskip("torch")

X, W = T(10, (4, 8)), T(11, (2, 8))


def planned(path, nodes, part="all", *, skip=False):
    trace = read(path / "et.json", nodes)
    finder = OperatorFinder(torch, "cpu")
    units = UnitSelector(trace, finder).units(0, len(trace))
    return Planner(trace, finder, part, skip_collectives=skip).plan(units)


def all_reduce(number, tensor):
    inputs = [[tensor], Object("Object"), Object("Object"), None, True, -1]
    return call(number, 1, ALL_REDUCE, inputs, [[tensor], Object("Object")])


def outside(plan):
    return [plan.slots[slot].ref.tensor for slot in plan.outside_slots()]


def test_results_flow_from_one_operator_to_the_next(tmp_path):
    y, z = T(12, (4, 8)), T(13, (4, 8))
    plan = planned(tmp_path, [call(2, 1, RELU, [X], [y]), call(3, 1, MUL, [y, X], [z])])
    first, second = plan.calls
    assert [call.name for call in plan.calls] == ["aten::relu", "aten::mul"]
    assert second.positional == (TensorSlot(first.results[0]), *first.positional)
    assert outside(plan) == [10]


def test_what_is_used_up_is_let_go_and_what_comes_from_outside_stays(tmp_path):
    y, z = T(12, (4, 8)), T(13, (4, 8))
    plan = planned(
        tmp_path,
        [
            call(2, 1, RELU, [X], [y]),
            call(3, 1, MUL, [y, y], [z]),
            call(4, 1, RELU, [X], [T(14, (4, 8))]),
        ],
    )
    given = [call.results[0] for call in plan.calls]
    # The first result is last taken by the second step; the others are never taken.
    assert [set(call.frees) for call in plan.calls] == [set(), {given[0], given[1]}, {given[2]}]


def test_a_number_that_serves_again_means_what_was_given_last(tmp_path):
    y, again = T(12, (4, 8)), T(12, (2, 8))
    plan = planned(
        tmp_path,
        [
            call(2, 1, RELU, [X], [y]),
            call(3, 1, RELU, [W], [again]),
            call(4, 1, RELU, [again], [T(13, (2, 8))]),
        ],
    )
    assert plan.calls[2].positional == (TensorSlot(plan.calls[1].results[0]),)


def test_in_place_results_keep_their_slot(tmp_path):
    plan = planned(
        tmp_path,
        [call(2, 1, ADD_, [X, X, 1], [X]), call(3, 1, RELU, [X], [T(12, (4, 8))])],
    )
    assert plan.calls[0].results == (-1,)
    assert plan.calls[0].positional[0] == plan.calls[1].positional[0]


def test_views_share_the_memory_of_what_they_are_of(tmp_path):
    view = T(12, (8, 4), storage=1010, strides=(1, 8))
    plan = planned(
        tmp_path, [call(2, 1, T_, [X], [view]), call(3, 1, MM, [X, view], [T(13, (4, 4))])]
    )
    (given,) = plan.calls[0].results
    assert plan.slots[given].memory == plan.slots[plan.calls[0].positional[0].number].memory
    assert plan.slots[plan.calls[1].results[0]].memory != plan.slots[given].memory


def test_tensors_from_outside_share_one_block_if_their_memory_was_one(tmp_path):
    left = T(20, (4,), storage=99)
    right = T(21, (4,), storage=99, offset=4)
    plan = planned(tmp_path, [call(2, 1, ADD, [left, right, 1], [T(22, (4,))])])
    slots = plan.outside_slots()
    (memory,) = {plan.slots[slot].memory for slot in slots}
    assert plan.memories[memory].size_bytes == 32
    assert len(slots) == 2


def test_a_view_of_a_result_that_no_operator_gave_is_made_on_the_way(tmp_path):
    # The transposed result has a number of its own, but the memory of the result.
    y = T(12, (4, 8))
    turned = T(30, (8, 4), storage=1012, strides=(1, 8))
    plan = planned(
        tmp_path, [call(2, 1, RELU, [X], [y]), call(3, 1, MM, [y, turned], [T(13, (4, 4))])]
    )
    relu, view, mm = plan.calls
    assert view.name == ""
    assert view.positional[0] == TensorSlot(relu.results[0])
    assert mm.positional == (TensorSlot(relu.results[0]), TensorSlot(view.results[0]))
    # The base lives until the view is made, and here until it is multiplied.
    assert relu.results[0] in mm.frees


def test_what_a_skipped_operator_gave_comes_from_outside(tmp_path):
    y = T(12, (4, 8))
    plan = planned(
        tmp_path,
        [
            call(2, 1, RELU, [X], [y]),
            call(3, 1, "nowhere::op(Tensor self) -> Tensor", [y], [T(13, (4, 8))]),
            call(4, 1, RELU, [T(13, (4, 8))], [T(14, (4, 8))]),
        ],
    )
    assert plan.reasons == {1: "the library `nowhere` is not loaded"}
    assert outside(plan) == [10, 13]


def test_a_skipped_operator_gives_a_new_tensor_of_a_number_that_was_known(tmp_path):
    again = T(12, (4, 8))
    plan = planned(
        tmp_path,
        [
            call(2, 1, RELU, [X], [again]),
            call(3, 1, "nowhere::op(Tensor self) -> Tensor", [X], [again]),
            call(4, 1, MUL, [again, again], [T(14, (4, 8))]),
        ],
    )
    first, second = plan.calls
    assert outside(plan) == [10, 12]
    assert second.positional[0] != TensorSlot(first.results[0])


def test_sparse_tensors_cannot_come_from_outside(tmp_path):
    nodes = call(2, 1, RELU, [X], [T(12, (4, 8))])
    nodes["inputs"]["values"] = [[10, 0, 0, 0, 0, ""]]
    assert planned(tmp_path, [nodes]).reasons == {0: HIDDEN}


def test_the_first_to_touch_a_tensor_waits_for_its_collective(tmp_path):
    grad, other = T(12, (8,)), T(13, (8,))
    plan = planned(
        tmp_path,
        [
            all_reduce(2, grad),
            call(4, 1, RELU, [other], [T(14, (8,))]),
            call(5, 1, VIEW, [grad, [2, 4]], [T(15, (2, 4), storage=1012)]),
            call(6, 1, RELU, [grad], [T(16, (8,))]),
        ],
    )
    assert [call.waits for call in plan.calls] == [(), (), (0,), ()]


@pytest.mark.parametrize(("part", "left"), [("compute", [0]), ("communication", [1])])
def test_parts_leave_the_other_out(tmp_path, part, left):
    grad = T(12, (8,))
    nodes = [all_reduce(2, grad), call(4, 1, RELU, [grad], [T(14, (8,))])]
    plan = planned(tmp_path, nodes, part)
    assert plan.by_option == set(left)
    assert [plan.reasons[place] for place in left] == [LEFT_OUT]
    assert len(plan.calls) == 1


def test_strides_of_old_traces_come_from_the_calls_that_made_views(tmp_path):
    from dse.trace.replay.read import inputs_of

    as_strided = (
        "aten::as_strided(Tensor(a) self, SymInt[] size, SymInt[] stride, "
        "SymInt? storage_offset=None) -> Tensor(a)"
    )
    turned = T(14, (8, 2), storage=1011, strides=(1, 8))
    nodes = [
        call(2, 1, LINEAR, [X, W, None], [T(13, (4, 2))]),
        call(3, 2, T_, [W], [turned]),
        call(4, 3, as_strided, [W, [8, 2], [1, 8], None], [turned]),
        call(5, 1, MM, [X, turned], [T(15, (4, 2))]),
    ]
    for one in nodes:
        del one["inputs"]["strides"], one["outputs"]["strides"]
    plan = planned(tmp_path, nodes)
    assert inputs_of(read(tmp_path / "et.json", nodes).arguments[3])[1].strides is None
    slot = plan.calls[-1].positional[1].number
    assert plan.slots[slot].ref.strides == (1, 8)
