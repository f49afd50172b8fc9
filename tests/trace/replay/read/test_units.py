"""Which nodes are replayed."""

from __future__ import annotations

import pytest

from dse.errors import ConfigError
from dse.trace.replay.read import UnitKind, UnitSelector, node_range
from tests.trace.replay.making import (
    ADDMM,
    ALL_REDUCE,
    LINEAR,
    MM,
    RELU,
    T_,
    Object,
    T,
    annotation,
    call,
    node,
    read,
)

X, W, B, Y = T(10, (4, 8)), T(11, (2, 8)), T(12, (2,)), T(13, (4, 2))
W_T = T(14, (8, 2), storage=1011, strides=(1, 8))
FRESH = T(15, (4, 2))


class Known:
    """Everything can be called but what is named; composites are named, too."""

    def __init__(self, missing=(), composite=()):
        self._missing, self._composite = missing, composite

    def callable_here(self, schema):
        return not schema.startswith(tuple(self._missing) or ("?",))

    def is_composite(self, schema):
        return schema.startswith(tuple(self._composite) or ("?",))


def units(trace, known=None, begin="", end=""):
    first, after = node_range(trace, begin, end)
    found = UnitSelector(trace, known or Known()).units(first, after)
    return [(int(trace.node_id[unit.node]), unit.kind, unit.opened) for unit in found]


def linear(number, parent=1):
    return [
        call(number, parent, LINEAR, [X, W, B], [Y]),
        call(number + 1, number, T_, [W], [W_T]),
        call(number + 2, number, ADDMM, [B, X, W_T, 1, 1], [Y]),
    ]


def numbers(found):
    return [number for number, _, _ in found]


def test_a_parent_is_taken_and_its_children_are_not(tmp_path):
    trace = read(tmp_path / "et.json", [*linear(2), call(9, 1, RELU, [Y], [FRESH])])
    assert numbers(units(trace)) == [2, 9]


def test_annotations_and_the_engine_are_gone_through(tmp_path):
    engine = "autograd::engine::evaluate_function: AddmmBackward0"
    nodes = [
        node(2, 1, "[pytorch|profiler|execution_trace|thread]", scope=7),
        annotation(3, 2, "## forward ##"),
        *linear(4, 3),
        node(10, 2, engine),
        node(11, 10, "AddmmBackward0", scope=1, inputs=[Y]),
        call(12, 11, MM, [W_T, Y], [FRESH]),
        node(13, 2, "torch::autograd::AccumulateGrad", scope=1, inputs=[FRESH]),
        node(14, 2, "AddBackward0", scope=1, inputs=[FRESH]),
    ]
    assert numbers(units(read(tmp_path / "et.json", nodes))) == [4, 12]


def test_views_of_what_is_known_do_not_open_a_composite(tmp_path):
    # The backward pass takes the transposed weight, whose memory is that of the weight.
    nodes = [*linear(2), call(9, 1, MM, [Y, W_T], [FRESH])]
    found = units(read(tmp_path / "et.json", nodes), Known(composite=["aten::linear"]))
    assert numbers(found) == [2, 9]


def saved(number=2):
    """A loss that keeps its mask for the backward pass."""
    schema = "aten::loss(Tensor self) -> Tensor"
    mask = T(20, (4, 2))
    return [
        call(number, 1, schema, [Y], [T(21, ())]),
        call(number + 1, number, "aten::mask(Tensor self) -> Tensor", [Y], [mask]),
        call(number + 2, number, "aten::mean(Tensor self) -> Tensor", [mask], [T(21, ())]),
        call(number + 5, 1, RELU, [mask], [FRESH]),
    ]


def test_a_composite_is_opened_if_a_result_inside_is_taken_later(tmp_path):
    trace = read(tmp_path / "et.json", saved())
    assert numbers(units(trace, Known(composite=["aten::loss"]))) == [3, 4, 7]
    # What is more than a row of operators stays whole.
    assert numbers(units(trace)) == [2, 7]


def test_only_what_children_return_opens_a_composite(tmp_path):
    def numbers_with(inputs, outputs):
        nodes = saved()
        nodes[1] = call(3, 2, "aten::mask(Tensor self) -> Tensor", inputs, outputs)
        nodes[2] = call(4, 2, "aten::mean(Tensor self) -> Tensor", [Y], [T(21, ())])
        trace = read(tmp_path / "et.json", nodes)
        return numbers(units(trace, Known(composite=["aten::loss"])))

    mask = T(20, (4, 2))
    assert numbers_with([Y], [mask]) == [3, 4, 7]
    assert numbers_with([mask], [Y]) == [2, 7]


def test_a_reused_number_is_not_the_result_inside(tmp_path):
    again = call(6, 1, RELU, [Y], [T(20, (4, 2))])
    nodes = sorted([*saved(), again], key=lambda one: one["id"])
    trace = read(tmp_path / "et.json", nodes)
    assert numbers(units(trace, Known(composite=["aten::loss"]))) == [2, 6, 7]


def test_what_cannot_be_called_is_opened_if_its_children_work(tmp_path):
    trace = read(tmp_path / "et.json", linear(2))
    found = units(trace, Known(missing=["aten::linear"]))
    assert found == [
        (2, UnitKind.OPERATOR, True),
        (3, UnitKind.OPERATOR, False),
        (4, UnitKind.OPERATOR, False),
    ]
    # A transposition alone says nothing of the operator.
    found = units(trace, Known(missing=["aten::linear", "aten::addmm"]))
    assert found == [(2, UnitKind.OPERATOR, False)]


def test_functions_of_libraries_without_a_signature_are_named(tmp_path):
    nodes = [
        node(2, 1, "torch::autograd::CppNode<Lookup>", scope=1, inputs=[Y]),
        node(3, 1, "MyFunctionBackward", scope=1, inputs=[Y]),
    ]
    kinds = [kind for _, kind, _ in units(read(tmp_path / "et.json", nodes))]
    assert kinds == [UnitKind.WITHOUT_SCHEMA, UnitKind.WITHOUT_SCHEMA]


def test_collectives_are_recognised(tmp_path):
    inputs = [[Y], Object("Object"), Object("Object"), None, True, -1]
    trace = read(tmp_path / "et.json", [call(2, 1, ALL_REDUCE, inputs, [[Y], Object("Object")])])
    assert units(trace) == [(2, UnitKind.COLLECTIVE, False)]


def labelled():
    """Two annotations on one thread; the second does its work on another one."""
    return [
        annotation(2, 1, "forward"),
        call(3, 2, RELU, [X], [FRESH]),
        annotation(4, 1, "backward"),
        call(5, 1, RELU, [X], [FRESH], tid=2),
        call(6, 1, MM, [X, X], [FRESH]),
        annotation(7, 1, "forward"),
        call(8, 7, RELU, [X], [FRESH]),
    ]


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        ("", "", [3, 5, 6, 8]),
        ("forward", "forward", [3]),
        ("backward", "", [5, 6, 8]),
        ("backward", "backward", [5]),
        ("", "backward", [3, 5]),
        ("backward", "forward", [5, 6, 8]),
    ],
)
def test_ranges_go_from_annotation_to_annotation(tmp_path, begin, end, expected):
    trace = read(tmp_path / "et.json", labelled())
    assert numbers(units(trace, begin=begin, end=end)) == expected


def test_unknown_labels_are_refused_with_the_nearest_one(tmp_path):
    trace = read(tmp_path / "et.json", labelled())
    with pytest.raises(ConfigError, match=r"--from foward.*did you mean `forward`"):
        node_range(trace, "foward", "")
    with pytest.raises(ConfigError, match="--to nowhere"):
        node_range(trace, "", "nowhere")


def test_a_label_before_the_beginning_does_not_end_the_range(tmp_path):
    nodes = [annotation(2, 1, "first"), annotation(3, 1, "second")]
    trace = read(tmp_path / "et.json", nodes)
    with pytest.raises(ConfigError, match="does not occur after the beginning"):
        node_range(trace, "second", "first")
