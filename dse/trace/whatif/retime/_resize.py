"""Operators, lookups and collectives that work on resized dimensions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dse.trace import TaskRole, TrainingPhase
from dse.trace.whatif.core import Selector, arguments_of, with_shapes
from dse.trace.whatif.retime._collectives import scaled_info
from dse.trace.whatif.retime._lookups import ChangedLookups, lookups_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from dse.trace import CollectiveInfo, OperatorInputs
    from dse.trace.whatif.core import ShapeChange, StepEditor
    from dse.trace.whatif.retime._lookups import Lookup

_ACCUMULATE = "AccumulateGrad"
#: Share of the time of kernels from which a size is worth a note.
_MUCH = 0.05
#: Sizes that a note or a message lists.
_LISTED = 5


def has_shapes(inputs: OperatorInputs | None) -> bool:
    """Returns whether shapes of an operator's inputs were recorded."""
    return inputs is not None and any(one.shapes for one in arguments_of(inputs))


def resized_inputs(
    editor: StepEditor, tasks: Sequence[int], change: ShapeChange, probe: ShapeChange
) -> dict[int, OperatorInputs]:
    """Returns the tasks that work on resized dimensions, with their inputs after the change.

    Args:
        editor: The captured step.
        tasks: Computing tasks.
        change: The change of shapes.
        probe: The same with an impossible new size, which finds sizes even where they stay.
    """
    lookups = ChangedLookups(
        (one, _resized_lookup(one.lookup, change)) for one in lookups_of(editor)
    )
    result = {}
    for task in tasks:
        inputs = editor.inputs_of(task)
        if inputs is None:
            continue
        changed = inputs if lookups.is_forward(task) else with_shapes(inputs, change)
        if changed is inputs:
            changed = lookups.inputs_after(editor, task, inputs)
        if changed is not inputs or with_shapes(inputs, probe) is not inputs:
            result[task] = changed
    return result


def resize_descriptions(editor: StepEditor, done: Collection[int], change: ShapeChange) -> None:
    """Changes the recorded shapes of tasks that take no time of a device.

    Args:
        editor: The captured step.
        done: Tasks whose shapes have been changed already.
        change: The change of shapes.
    """
    known: dict[OperatorInputs, OperatorInputs] = {}
    finished = frozenset(done)
    for task in editor.select(Selector()):
        inputs = editor.inputs_of(task)
        if task in finished or inputs is None:
            continue
        if inputs not in known:
            known[inputs] = with_shapes(inputs, change)
        if known[inputs] is not inputs:
            editor.describe(task, inputs=known[inputs])


def resized_collectives(
    editor: StepEditor, change: ShapeChange, samples: float, communication: float | None
) -> dict[int, CollectiveInfo]:
    """Returns the collectives whose size changes, with all members of each.

    Collectives of gradients follow the parameters, others their recorded shapes.

    Args:
        editor: The captured step.
        change: The change of shapes.
        samples: Factor on all-to-alls without shapes: new over old samples.
        communication: Factor on all collectives, whatever shapes say.
    """
    tasks = editor.select(Selector(role=(TaskRole.COLLECTIVE,)))
    parameters = _parameter_factors(editor, change) if tasks else {}
    changed = {}
    for task in tasks:
        info = editor.collective_of(task)
        if info is None or info.message_bytes < 0:
            continue
        if communication is not None:
            factor = communication
        elif _is_of_gradients(editor, task):
            factor = parameters.get(editor.rank_of(task), 1.0)
        else:
            factor = _shape_factor(editor.inputs_of(task), change)
            if factor == 1.0 and info.operation == "all_to_all":
                factor = samples
        if factor != 1.0:
            changed[task] = scaled_info(info, factor)
    result = {}
    for members in editor.by_collective(tasks):
        if not changed.keys().isdisjoint(members):
            for task in members:
                info = changed.get(task) or editor.collective_of(task)
                if info is not None:
                    result[task] = info
    return result


def _is_of_gradients(editor: StepEditor, task: int) -> bool:
    if any(_ACCUMULATE in name for name in editor.stack_of(task)):
        return True
    return editor.phase_of(task) == TrainingPhase.BACKWARD and editor.operation_of(task) in (
        "all_reduce",
        "reduce_scatter",
    )


def _parameter_factors(editor: StepEditor, change: ShapeChange) -> dict[int, float]:
    """Returns for each rank new over old parameters, of those whose gradients were accumulated."""
    sums: dict[int, list[int]] = {}
    seen = set()
    for task in editor.select(Selector(operator=(f"*{_ACCUMULATE}*",))):
        inputs, key = editor.inputs_of(task), (editor.rank_of(task), editor.operator_of(task))
        if inputs is None or key in seen:
            continue
        seen.add(key)
        total = sums.setdefault(key[0], [0, 0])
        for place, some in enumerate((inputs, with_shapes(inputs, change))):
            total[place] += max((one.elements for one in arguments_of(some)), default=0)
    return {rank: new / old for rank, (old, new) in sums.items() if old}


def _shape_factor(inputs: OperatorInputs | None, change: ShapeChange) -> float:
    if inputs is None:
        return 1.0
    old, new = (
        sum(one.elements for one in arguments_of(some))
        for some in (inputs, with_shapes(inputs, change))
    )
    return new / old if old else 1.0


def _resized_lookup(lookup: Lookup, change: ShapeChange) -> Lookup:
    """Returns a lookup for other samples, and tables of another width."""
    batch, total_dim = change((lookup.batch, lookup.total_dim))
    return replace(
        lookup,
        batch=batch,
        total_dim=total_dim,
        indices=round(lookup.indices * batch / lookup.batch),
        weights=round(lookup.weights * total_dim / lookup.total_dim),
    )


# --- sizes that a resize may have missed --------------------------------------------------------


def usual_sizes(editor: StepEditor, tasks: Sequence[int]) -> list[int]:
    """Returns the sizes of dimensions in whose operators most of the time goes, most first.

    Args:
        editor: The captured step.
        tasks: Computing tasks.
    """
    times = _times(editor, tasks)
    times.pop(1, None)
    return sorted(times, key=lambda size: (-times[size], size))[:_LISTED]


def flattened_notes(
    editor: StepEditor, tasks: Sequence[int], dimensions: Mapping[int, int], probe: ShapeChange
) -> list[str]:
    """Notes sizes that are multiples of a resized one, stay, and take much of the time.

    A shape does not show whether 1152 is 12 samples of 96 tokens or a width; the user knows.

    Args:
        editor: The captured step with its shapes before the change.
        tasks: Computing tasks.
        dimensions: Old size → new size.
        probe: The change with an impossible value for each new size: what it leaves alone stays.

    Returns:
        One note for each old size with such multiples.
    """
    total_s, times = sum(map(editor.duration_of, tasks)), _times(editor, tasks)
    notes = []
    for old, new in dimensions.items():
        if old == new or old < 2 or not total_s:
            continue
        found = [
            size
            for size, time_s in times.items()
            if size > old
            and size % old == 0
            and probe((size,)) == (size,)
            and time_s >= _MUCH * total_s
        ]
        if not found:
            continue
        share = sum(
            editor.duration_of(task)
            for task in tasks
            if not _sizes(editor, task).isdisjoint(found)
        )
        listed = sorted(found, key=lambda size: (-times[size], size))[:_LISTED]
        products = ", ".join(f"{size} = {old} · {size // old}" for size in listed)
        factors = ";".join(str(size // old) for size in listed)
        notes.append(
            f"{100 * share / total_s:.0f} % of the time works on sizes that are multiples of "
            f"{old} and stay: {products}; add times={factors}, without those that are no product "
            f"with {old}"
        )
    return notes


def _times(editor: StepEditor, tasks: Sequence[int]) -> dict[int, float]:
    """Returns the time of the tasks that work on each size, in seconds."""
    times: dict[int, float] = {}
    for task in tasks:
        for size in _sizes(editor, task):
            times[size] = times.get(size, 0.0) + editor.duration_of(task)
    return times


def _sizes(editor: StepEditor, task: int) -> frozenset[int]:
    inputs = editor.inputs_of(task)
    if inputs is None:
        return frozenset()
    return frozenset(
        size for one in arguments_of(inputs) for shape in one.shapes for size in shape
    )
