"""Execution traces as read: recorded arguments, the units to replay, and their original times."""

from __future__ import annotations

from dse.trace.replay.read._original import Recording, UnitTimes, steps_in
from dse.trace.replay.read._recorded import (
    Device,
    Opaque,
    Recorded,
    TensorRef,
    argument_names,
    inputs_of,
    outputs_of,
    tensors_in,
)
from dse.trace.replay.read._units import Unit, UnitKind, UnitSelector, node_range

__all__ = [
    "Device",
    "Opaque",
    "Recorded",
    "Recording",
    "TensorRef",
    "Unit",
    "UnitKind",
    "UnitSelector",
    "UnitTimes",
    "argument_names",
    "inputs_of",
    "node_range",
    "outputs_of",
    "steps_in",
    "tensors_in",
]
