"""Collectives of gloo: host annotations that correspond to kernels of NCCL.

A collective's annotation lies on a thread of gloo and covers its work there; the c10d operator
that issued it lies on another thread and ends long before. Sends and receives are annotated on the
issuing thread, until the wait for them ends. Neither names the other, so they are matched by
operation, size and order.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from dse.trace.read._collectives import (
    CollectiveInfo,
    dtype_bytes,
    dtype_name,
    message_bytes,
    operation_of,
)
from dse.trace.read._json import elements_of, plain
from dse.trace.read._rank_trace import Category

if TYPE_CHECKING:
    from dse.trace.read._rank_trace import Ints, Longs, RankTrace

_ANNOTATION = "gloo:"
_OPERATOR = "c10d::"
_LISTS = "TensorList"
#: Gloo reduces the whole input and keeps a part of it.
_AS_ALL_REDUCE = "reduce_scatter"
#: Operations whose output has the size of the input.
_SAME_RESULT = ("all_reduce", "broadcast", "reduce")
_PAIRS = ("send", "recv")
#: Most unmatched operators that are tried for each annotation.
_LOOK_AHEAD = 256


def gloo_events(trace: RankTrace) -> Longs:
    """Returns the annotations of gloo's collectives, in order of their starts.

    Empty for a trace with device work: there gloo never holds up the device.
    """
    if trace.has_kernels:
        return np.zeros(0, dtype=np.int64)
    marks = trace.where(Category.ANNOTATION, Category.CPU_OP) & (trace.thread >= 0)
    return np.flatnonzero(marks & trace.named(lambda name: name.startswith(_ANNOTATION)))


def c10d_operators(trace: RankTrace) -> Longs:
    """Returns the c10d operators, in order of their starts."""
    operators = trace.where(Category.CPU_OP) & (trace.thread >= 0)
    return np.flatnonzero(operators & trace.named(lambda name: name.startswith(_OPERATOR)))


def is_pair(trace: RankTrace, event: int) -> bool:
    """Returns whether an annotation is a send or a receive."""
    return operation_of(trace.name_of(event)) in _PAIRS


def inside_gloo(trace: RankTrace, events: Longs) -> np.ndarray:
    """Returns which operators are part of a collective, on gloo's threads.

    Args:
        trace: The trace.
        events: Operators in order of start.
    """
    inside = np.zeros(len(events), dtype=np.bool_)
    marks = gloo_events(trace)
    marks = marks[[not is_pair(trace, event) for event in marks.tolist()]]
    for thread in np.unique(trace.thread[marks]).tolist():
        mine = marks[trace.thread[marks] == thread]
        reach = np.maximum.accumulate(trace.end_ns[mine])
        at = np.searchsorted(trace.start_ns[mine], trace.start_ns[events], side="right") - 1
        inside |= (
            (trace.thread[events] == thread) & (at >= 0) & (trace.end_ns[events] <= reach[at])
        )
    return inside


def add_gloo(
    trace: RankTrace,
    launch: Longs,
    operator: Longs,
    collective: Ints,
    collectives: tuple[CollectiveInfo, ...],
    notes: list[str],
) -> tuple[CollectiveInfo, ...]:
    """Links gloo's annotations to their c10d operators and describes their collectives.

    The operation is the one that gloo performs: a reduce-scatter is an all-reduce of its whole
    input. The group is the only one of the trace, otherwise the whole world.

    Args:
        trace: The trace.
        launch: Filled with the c10d operator.
        operator: Filled with the same.
        collective: Filled with indices into the result.
        collectives: Collectives known so far.
        notes: Extended by what is unknown.

    Returns:
        All collectives of the trace.
    """
    marks = gloo_events(trace)
    if not len(marks):
        return collectives
    table = {info: number for number, info in enumerate(collectives)}
    for mark, by in zip(marks.tolist(), _issuers(trace, marks), strict=True):
        launch[mark] = operator[mark] = by
        if collective[mark] < 0:
            collective[mark] = table.setdefault(_info(trace, mark, by), len(table))
    if len(trace.process_groups) > 1:
        notes.append(
            f"{len(trace.process_groups)} process groups, and gloo does not name the group of a "
            "collective; the whole world is assumed"
        )
    return tuple(table)


def _issuers(trace: RankTrace, marks: Longs) -> list[int]:
    """Returns the c10d operator that issued each annotated collective, or -1."""
    pending = dict.fromkeys(c10d_operators(trace).tolist())
    operation = {op: operation_of(trace.name_of(op)) for op in pending}
    sizes = {op: set(_totals(trace, op)) for op in pending}
    found: list[int] = []
    splitter = -1
    for mark in marks.tolist():
        wanted, given = operation_of(trace.name_of(mark)), set(_totals(trace, mark))
        given.add(sum(_totals(trace, mark)))
        best = -1
        for op in islice(pending, _LOOK_AHEAD):
            if trace.start_ns[op] > trace.start_ns[mark]:
                break
            same = operation[op] == wanted or (
                wanted == "all_reduce" and operation[op] == _AS_ALL_REDUCE
            )
            if same and _alike(given, sizes[op]):
                best = op
                break
        if best >= 0:
            del pending[best]
            splitter = best if operation[best] == _AS_ALL_REDUCE else splitter
        elif wanted == "all_reduce" and splitter >= 0 and _alike(given, sizes[splitter]):
            # A reduce-scatter of a list is one all-reduce for each of its parts.
            best = splitter
        found.append(best)
    return found


def _alike(left: set[int], right: set[int]) -> bool:
    """Returns whether sizes may belong to one collective; unrecorded ones may."""
    return not any(left) or not right or bool(left & right)


def _info(trace: RankTrace, mark: int, by: int) -> CollectiveInfo:
    operation = operation_of(trace.name_of(mark))
    only = trace.process_groups[0] if len(trace.process_groups) == 1 else None
    ranks = only.ranks if only else ()
    size = (only.size or len(ranks) if only else 0) or trace.world_size
    totals = _totals(trace, mark)
    inputs = sum(totals) if totals else -1
    outputs = inputs if operation in _SAME_RESULT else -1
    if operation == "scatter" and by >= 0:
        outputs = next(iter(_totals(trace, by)), -1)
    elif operation == "recv":
        inputs, outputs = -1, inputs
    elif operation == "all_gather" and inputs >= 0 and size:
        outputs = inputs * size
    elif operation == "all_to_all":
        outputs = inputs
    me = ranks.index(trace.rank) if trace.rank in ranks else trace.rank
    source = destination = -1
    if operation in _PAIRS and size == 2:
        source, destination = (me, 1 - me) if operation == "send" else (1 - me, me)
    dtype = _dtype(trace, mark)
    return CollectiveInfo(
        operation=operation,
        message_bytes=message_bytes(operation, inputs, outputs, size, dtype),
        dtype=dtype,
        group_size=size,
        group=only.name if only else "",
        ranks=ranks,
        input_elements=inputs,
        output_elements=outputs,
        source=source,
        destination=destination,
    )


def _recorded(trace: RankTrace, event: int) -> list[tuple[Any, str]]:
    """Returns shape and type of each recorded input."""
    if trace.inputs[event] < 0:
        return []
    inputs = trace.input_table[trace.inputs[event]]
    shapes, types = plain(inputs.shapes), plain(inputs.types)
    if not isinstance(shapes, list) or not isinstance(types, list):
        return []
    return list(zip(shapes, map(str, types), strict=False))


def _totals(trace: RankTrace, event: int) -> list[int]:
    """Returns the elements of each input that is a tensor or a list of tensors."""
    totals = []
    for shape, kind in _recorded(trace, event):
        try:
            if kind == _LISTS:
                totals.append(sum(elements_of(item) for item in shape))
            elif dtype_bytes(dtype_name(kind)):
                totals.append(elements_of(shape))
        except (TypeError, ValueError, OverflowError):
            continue
    return totals


def _dtype(trace: RankTrace, event: int) -> str:
    kinds = (dtype_name(kind) for _, kind in _recorded(trace, event))
    return next((kind for kind in kinds if dtype_bytes(kind)), "")
