"""Collectives described only by the operators around their launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.trace.read._collectives import (
    CollectiveInfo,
    dtype_name,
    message_bytes,
    operation_of,
    operation_of_kernel,
    peers_of,
)
from dse.trace.read._json import elements_of, plain
from dse.trace.read._rank_trace import Category

if TYPE_CHECKING:
    from dse.trace.read._rank_trace import Ints, Longs, RankTrace

_ANNOTATION = "nccl:"
_OPERATOR = "c10d::"
#: Operators of c10d whose first input is the output.
_OUTPUT_FIRST = ("c10d::alltoall_base", "c10d::_allgather_base", "c10d::_reduce_scatter_base")


def derive_collectives(
    trace: RankTrace, launch: Longs, parent: Longs
) -> tuple[Ints, tuple[CollectiveInfo, ...]]:
    """Returns the collective of each event, and all collectives of the trace.

    Kernels described in the file keep their description. Others get one from the operators and
    `nccl:` annotations around their launch; up to PyTorch 2.1 only these hold the operation and
    the size. Their group is assumed to be the whole world.
    """
    collective = trace.collective.copy()
    table = {info: number for number, info in enumerate(trace.collectives)}
    undescribed = trace.where(Category.KERNEL) & (collective < 0)
    kernels = np.flatnonzero(undescribed & trace.named(operation_of_kernel))
    for kernel in kernels.tolist():
        info = _around(trace, int(launch[kernel]), parent)
        if info is None:
            info = CollectiveInfo(
                operation_of_kernel(trace.name_of(kernel)), group_size=trace.world_size
            )
        collective[kernel] = table.setdefault(info, len(table))
    return collective, tuple(table)


def _around(trace: RankTrace, call: int, parent: Longs) -> CollectiveInfo | None:
    at = int(parent[call]) if call >= 0 else -1
    found = -1
    while at >= 0:
        if trace.collective[at] >= 0:
            return trace.collectives[int(trace.collective[at])]
        name = trace.name_of(at)
        if found < 0 and name.startswith(_ANNOTATION):
            found = at
        if name.startswith(_OPERATOR):
            return _info(trace, found, at)
        at = int(parent[at])
    return None if found < 0 else _info(trace, found, -1)


def _info(trace: RankTrace, annotation: int, operator: int) -> CollectiveInfo:
    name = trace.name_of(annotation if annotation >= 0 else operator)
    operation = operation_of(name)
    inputs, dtype = _elements(trace, annotation, 0)
    outputs = -1
    if operator >= 0 and trace.name_of(operator).startswith(_OUTPUT_FIRST):
        outputs, written = _elements(trace, operator, 0)
        if inputs < 0:
            inputs, _ = _elements(trace, operator, 1)
        dtype = dtype or written
    elif operation in ("all_reduce", "broadcast", "reduce"):
        outputs = inputs
    source, destination = peers_of(name)
    return CollectiveInfo(
        operation=operation,
        message_bytes=message_bytes(operation, inputs, outputs, trace.world_size, dtype),
        dtype=dtype,
        group_size=trace.world_size,
        input_elements=inputs,
        output_elements=outputs,
        source=source,
        destination=destination,
    )


def _elements(trace: RankTrace, event: int, which: int) -> tuple[int, str]:
    """Returns elements and type of one input, -1 and an empty string if not recorded."""
    if event < 0 or trace.inputs[event] < 0:
        return -1, ""
    inputs = trace.input_table[trace.inputs[event]]
    try:
        shape, spelling = plain(inputs.shapes)[which], plain(inputs.types)[which]
        return elements_of(shape), dtype_name(str(spelling))
    except (LookupError, TypeError, ValueError, OverflowError):
        return -1, ""
