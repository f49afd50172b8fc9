"""Another batch than the recorded one."""

from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st
import pytest

from dse.errors import ConfigError
from dse.trace.replay.plan import ConstraintKind, InputConstraint
from dse.trace.replay.plan._finder import Callee
from dse.trace.replay.plan._plan import Memory, PlannedCall, ReplayPlan, SlotInfo, TensorSlot
from dse.trace.replay.read import TensorRef
from dse.trace.replay.run._batch import BatchScaler, _refit, find_batch


def ref(shape, strides=None):
    return TensorRef(1, 2, 0, 4, "cpu", "float32", shape, strides)


def linear_plan(*, weight=(8, 16)):
    """`linear` of a batch of 8 samples; the weight may have as many rows as there are samples."""
    shapes = [(8, 16), weight, (weight[0],)]
    call = PlannedCall(
        unit=0,
        name="aten::linear",
        callee=Callee(print, (), (), "torch"),
        positional=tuple(TensorSlot(at) for at in range(3)),
        takes=(0, 1, 2),
    )
    return ReplayPlan(
        units=(),
        calls=[call],
        slots=[SlotInfo(ref(shape), at, True) for at, shape in enumerate(shapes)],
        memories=[Memory(at, True, "cpu") for at in range(3)],
    )


def test_the_batch_is_what_layers_see():
    assert find_batch(linear_plan()) == 8
    assert find_batch(ReplayPlan(())) is None


def test_weights_keep_their_size():
    plan = linear_plan()
    scaler = BatchScaler(plan, 0.5)
    shapes = [scaler.scaled(slot, info.ref).shape for slot, info in enumerate(plan.slots)]
    assert shapes == [(4, 16), (8, 16), (8,)]


def test_the_outer_dimension_in_memory_counts():
    scaler = BatchScaler(linear_plan(weight=(3, 16)), 2)
    assert scaler.scaled(0, ref((16, 8), (1, 16))).shape == (16, 16)
    assert scaler.scaled(0, ref((16, 8), (8, 1))).shape == (16, 8)


def test_without_a_factor_nothing_changes():
    scaler = BatchScaler(ReplayPlan(()), 1)
    assert not scaler.active
    assert scaler.scaled(0, ref((8, 16))) == ref((8, 16))


def test_a_batch_that_cannot_be_found_must_be_given():
    with pytest.raises(ConfigError, match="--batch-size"):
        BatchScaler(ReplayPlan(()), 2)


def test_sizes_among_arguments_go_along():
    plan = linear_plan()
    scaler = BatchScaler(plan, 2)

    def scaled(name, *values):
        return scaler.arguments(SimpleNamespace(name=name, takes=(0,)), values)

    assert scaled("aten::zeros", [8, 3]) == ([16, 3],)
    assert scaled("aten::zeros", [5, 8]) == ([5, 8],)
    tensor = SimpleNamespace(numel=lambda: 16 * 16)
    assert scaled("aten::view", tensor, [32, 4])[1] == [64, 4]
    unscaled = SimpleNamespace(numel=lambda: 8 * 16)
    assert scaled("aten::view", unscaled, [32, 4])[1] == [32, 4]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # Offsets of eight bags of three.
        ((0, 24, 3), (0, 48, 3)),
        ((8,), (16,)),
        ((2, 10), (2, 18)),
        # Five numbers are not those of eight samples.
        ((0, 5, 1), (0, 5, 1)),
        ((0, 8, 0), (0, 8, 0)),
        ((0.0, 8.0), (0.0, 8.0)),
    ],
)
def test_as_many_numbers_as_samples_are_counted(before, after):
    scaler = BatchScaler(linear_plan(), 2)
    assert (
        scaler.arguments(SimpleNamespace(name="aten::arange", takes=(), results=()), before)
        == after
    )


def test_parts_are_scaled_along_the_batch_only():
    scaler = BatchScaler(linear_plan(), 2)
    tensor = SimpleNamespace(shape=(16, 16))

    def cut(name, *values):
        call = SimpleNamespace(name=name, takes=(0,))
        return list(scaler.arguments(call, (tensor, *values))[1:])

    assert cut("aten::narrow", 0, 0, 8) == [0, 0, 16]
    # The eighth column, not the eighth sample.
    assert cut("aten::narrow", 1, 8, 8) == [1, 8, 8]
    assert cut("aten::slice", 0, 0, 8, 1) == [0, 0, 16, 1]
    assert cut("aten::split_with_sizes", [8]) == [[16]]
    assert cut("aten::split_with_sizes", [8, 8], 1) == [[8, 8], 1]


def test_demands_go_along():
    scaler = BatchScaler(linear_plan(), 2)
    ascending = InputConstraint(ConstraintKind.ASCENDING, 80, whole=True)
    assert scaler.constraint(ascending) == InputConstraint(
        ConstraintKind.ASCENDING, 160, whole=True
    )
    rows = InputConstraint(ConstraintKind.RANGE, 1000)
    assert scaler.constraint(rows) == rows
    # Rows of a batch that shrinks are fewer.
    assert (
        BatchScaler(linear_plan(), 0.5).constraint(InputConstraint(ConstraintKind.RANGE, 8)).limit
        == 4
    )


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(1, 5), st.integers(1, 5))
def test_refitted_sizes_have_as_many_elements(sizes, before, after):
    import math

    recorded = [before * sizes[0], *sizes[1:]]
    now = math.prod(recorded) // before * after
    assert math.prod(_refit(recorded, math.prod(recorded), now)) == now
