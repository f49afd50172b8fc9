"""What recorded operators took, on the host and on the device."""

from __future__ import annotations

import pytest

from dse.trace import read_kineto
from dse.trace.replay.read import Recording, Unit, UnitKind
from tests.trace.helpers import call as launched
from tests.trace.helpers import kernel, operator, write
from tests.trace.replay.making import ADDMM, LINEAR, MM, RELU, T_, annotation, call, read

#: Positions of the nodes below.
STEP, LINEAR_NODE, T_NODE, ADDMM_NODE, MM_NODE, RELU_NODE = range(6)


def recording(tmp_path):
    """One step: a layer of two operators, a product, and an activation that is no unit."""
    nodes = [
        annotation(2, 1, "step"),
        call(3, 2, LINEAR),
        call(4, 3, T_),
        call(5, 3, ADDMM),
        call(6, 2, MM),
        call(7, 2, RELU),
    ]
    events = [
        operator("aten::linear", 0, 100, **{"Record function id": 3}),
        operator("aten::t", 10, 20, **{"Record function id": 4}),
        operator("aten::addmm", 40, 50, **{"Record function id": 5}),
        launched(50, 10, 1),
        kernel("copy", 60, 5, 1, cat="gpu_memcpy"),
        launched(70, 10, 2),
        kernel("gemm", 80, 40, 2, stream=9),
        operator("aten::mm", 200, 30, **{"Record function id": 6}),
        launched(210, 10, 3),
        kernel("gemm", 220, 70, 3),
        operator("aten::relu", 300, 30, **{"Record function id": 7}),
        launched(310, 10, 4),
        kernel("relu", 320, 7, 4),
    ]
    et = read(tmp_path / "et.json", nodes)
    (trace,) = read_kineto(write(tmp_path / "kineto.json", events))
    assert [et.name_of(node) for node in (STEP, RELU_NODE)] == ["step", "aten::relu"]
    return Recording(et, trace)


def whole(node):
    return Unit(node, UnitKind.OPERATOR)


def test_an_operator_has_all_that_it_calls(tmp_path):
    units = [whole(LINEAR_NODE), whole(MM_NODE)]
    times = recording(tmp_path).unit_times(units, STEP, RELU_NODE + 1)
    assert times.host_s == pytest.approx((100e-6, 30e-6))
    assert times.device_s == pytest.approx((45e-6, 70e-6))
    # That of the longest work; nothing of the activation is anybody's.
    assert times.stream == (9, 7)
    assert times.between_s == (("aten::relu", pytest.approx(7e-6)),)


def test_an_opened_operator_keeps_what_its_parts_leave(tmp_path):
    units = [
        Unit(LINEAR_NODE, UnitKind.OPERATOR, opened=True),
        whole(T_NODE),
        whole(ADDMM_NODE),
    ]
    times = recording(tmp_path).unit_times(units, STEP, RELU_NODE + 1)
    assert times.host_s == pytest.approx((30e-6, 20e-6, 50e-6))
    assert times.device_s == pytest.approx((0, 0, 45e-6))


def test_a_range_has_its_first_node_and_not_the_one_after_it(tmp_path):
    units = [whole(MM_NODE)]
    times = recording(tmp_path).unit_times(units, MM_NODE, RELU_NODE)
    assert (times.device_s, times.between_s) == ((pytest.approx(70e-6),), ())
