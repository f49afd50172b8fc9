"""Parsing of recorded tensors, numbers and lists."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
import pytest

from dse.trace.replay.read._recorded import (
    Opaque,
    TensorRef,
    _split,
    argument_names,
    inputs_of,
    outputs_of,
    tensors_in,
)
from tests.trace.replay.making import RELU, Object, T, call, read


def values_of(tmp_path, inputs, outputs=()):
    trace = read(tmp_path / "et.json", [call(2, 1, RELU, inputs, outputs)])
    return inputs_of(trace.arguments[0]), outputs_of(trace.arguments[0])


def test_plain_values_come_back(tmp_path):
    plain = [True, 3, 0.5, "sum", None, [1, 2], [], [[1], [2, 3]]]
    assert values_of(tmp_path, plain)[0] == plain


def test_tensors_have_shape_type_strides_and_memory(tmp_path):
    (ref,), _ = values_of(tmp_path, [T(5, (2, 3), storage=9, offset=4, strides=(1, 2))])
    assert ref == TensorRef(5, 9, 4, 4, "cpu", "float32", (2, 3), (1, 2))
    # Elements 4 to 9 of 4 bytes: the last is at 4 + 1·1 + 2·2 = 9.
    assert ref.end_bytes == 40


def test_tensors_in_lists_are_found_in_order(tmp_path):
    _, outputs = values_of(tmp_path, [], [[T(5, (2,)), T(6, (3,), dtype="long int")], T(7, ())])
    assert [(ref.tensor, ref.dtype) for ref in tensors_in(outputs)] == [
        (5, "float32"),
        (6, "int64"),
        (7, "float32"),
    ]


def test_without_strides_there_are_no_gaps():
    ref = TensorRef(1, 2, 0, 4, "cpu", "float32", (2, 3, 4), None)
    assert ref.known_strides == (12, 4, 1)
    assert ref.end_bytes == 96


def test_undefined_tensors_are_nothing(tmp_path):
    nodes = call(2, 1, RELU, [T(1, (2,))])
    nodes["inputs"] |= {
        "values": [[1, 0, 0, 0, 0, ""]],
        "types": ["Tensor(nullptr (uninitialized))"],
        "shapes": [[]],
    }
    assert inputs_of(read(tmp_path / "et.json", [nodes]).arguments[0]) == [None]


def test_sparse_tensors_hide_their_memory(tmp_path):
    nodes = call(2, 1, RELU, [T(1, (5, 2))])
    nodes["inputs"]["values"] = [[1, 0, 0, 0, 0, ""]]
    (ref,) = inputs_of(read(tmp_path / "et.json", [nodes]).arguments[0])
    assert ref.hidden
    assert ref.end_bytes == 0


@pytest.mark.parametrize("kind", ["Storage", "Stream", "Generator"])
def test_what_traces_do_not_hold_is_opaque(tmp_path, kind):
    assert values_of(tmp_path, [Object(kind)])[0] == [Opaque(kind)]


def test_lists_that_were_cut_off_are_opaque(tmp_path):
    nodes = call(2, 1, RELU, [[1, 2, 3]])
    nodes["inputs"]["values"][0].pop()
    (value,) = inputs_of(read(tmp_path / "et.json", [nodes]).arguments[0])
    assert value == Opaque("list that was cut off")


@pytest.mark.parametrize("bad", [[-1, 2], ["2"], [2**70, -1], None])
def test_tensors_with_odd_sizes_are_opaque(tmp_path, bad):
    nodes = call(2, 1, RELU, [T(1, (5, 2))])
    nodes["inputs"]["shapes"] = [bad]
    (value,) = inputs_of(read(tmp_path / "et.json", [nodes]).arguments[0])
    assert isinstance(value, Opaque)


def test_infinite_numbers_are_taken_for_those_of_masks(tmp_path):
    path = tmp_path / "et.json"
    trace = read(path, [call(2, 1, RELU, [0.5])])
    path.write_text(path.read_text().replace("0.5", "-inf"))
    from dse.trace import read_execution_trace

    (trace,) = read_execution_trace(path, arguments=True)
    assert inputs_of(trace.arguments[0]) == [-math.inf]


@given(st.lists(st.sampled_from(["Int", "Tensor(long int)", "GenericList[Int,None]", "Tuple[]"])))
def test_types_split_at_their_outer_commas(kinds):
    assert _split(",".join(kinds)) == kinds


def test_names_of_arguments_in_a_signature():
    schema = "mylib::op(Tensor(a -> *) self, int[2] size=[1, 1], *, Scalar alpha=1) -> Tensor"
    assert argument_names(schema) == ["self", "size", "alpha"]
