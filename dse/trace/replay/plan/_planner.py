"""Planner: from units of a trace to calls on tensors.

Traces name tensors and their memory by numbers that are reused once something is freed, so a
number means its latest result. What is taken before anything in the range returns it comes from
outside and is made before the replay; memory that several such tensors share is one block.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dse.trace.replay.plan._collectives import CollectiveCall, collective_call
from dse.trace.replay.plan._finder import Callee, base_name, tensors_of
from dse.trace.replay.plan._plan import (
    Memory,
    PlannedCall,
    ReplayPlan,
    SlotInfo,
    TensorSlot,
    set_lifetimes,
    slots_in,
)
from dse.trace.replay.read import (
    Recorded,
    TensorRef,
    Unit,
    UnitKind,
    inputs_of,
    outputs_of,
    tensors_in,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.trace import ExecutionTrace
    from dse.trace.replay.plan._finder import OperatorFinder

#: Strides by tensor, memory and shape.
_Strides = dict[tuple[int, int, tuple[int, ...]], tuple[int, ...]]

#: Reasons why units are not replayed.
NO_SCHEMA = "its signature was not recorded"
OPENED = "{}; its children are replayed"
LEFT_OUT = "left out by the options"
HIDDEN = "it takes a sparse tensor from outside the range"


class Planner:
    """Makes the plan of one rank.

    Args:
        et: The trace, with its arguments.
        finder: Finds the operators that can be called.
        part: `all`, `compute` or `communication`.
        skip_collectives: Whether collectives are skipped by option.
    """

    def __init__(
        self,
        et: ExecutionTrace,
        finder: OperatorFinder,
        part: str = "all",
        *,
        skip_collectives: bool,
    ) -> None:
        self._et = et
        self._finder = finder
        self._part = part
        self._skip_collectives = skip_collectives
        self._tensors: dict[int, int] = {}
        self._storages: dict[int, int] = {}
        self._strides = _recorded_strides(et)
        self._plan = ReplayPlan(())

    def plan(self, units: tuple[Unit, ...]) -> ReplayPlan:
        """Returns the plan that replays units in their order."""
        self._plan = ReplayPlan(units)
        for place, unit in enumerate(units):
            arguments = self._et.arguments[unit.node]
            inputs = self._with_strides(inputs_of(arguments))
            outputs = self._with_strides(outputs_of(arguments))
            found = self._target(place, unit, inputs, outputs)
            if not isinstance(found, str):
                self._add(place, unit, found, inputs, outputs)
                continue
            opened = unit.opened and place not in self._plan.by_option
            self._plan.reasons[place] = OPENED.format(found) if opened else found
            if not opened or unit.kind is UnitKind.WITHOUT_SCHEMA:
                self._forget(inputs, outputs)
        set_lifetimes(self._plan)
        return self._plan

    def _target(
        self, place: int, unit: Unit, inputs: list[Recorded], outputs: list[Recorded]
    ) -> Callee | CollectiveCall | str:
        """Returns what a unit calls, or why it is not replayed."""
        is_collective = unit.kind is UnitKind.COLLECTIVE
        if self._part == ("compute" if is_collective else "communication") or (
            is_collective and self._skip_collectives
        ):
            self._plan.by_option.add(place)
            return LEFT_OUT
        if unit.kind is UnitKind.WITHOUT_SCHEMA:
            return NO_SCHEMA
        if is_collective:
            return collective_call(self._et, unit.node, self._schema(unit), inputs)
        callee = self._finder.find(self._schema(unit), inputs, outputs)
        if isinstance(callee, str):
            return callee
        if self._lacks(callee):
            return HIDDEN
        return "it cannot be called here" if unit.opened else callee

    def _add(
        self,
        place: int,
        unit: Unit,
        target: Callee | CollectiveCall,
        inputs: Sequence[Recorded],
        outputs: Sequence[Recorded],
    ) -> None:
        if isinstance(target, CollectiveCall):
            positional = tuple(self._taken(value, place) for value in target.tensors)
            takes = tuple(slots_in(positional))
            name = self._et.name_of(unit.node)
            call = PlannedCall(place, name, None, target, positional, takes=takes, writes=takes)
        else:
            positional = tuple(self._taken(value, place) for value in target.positional)
            keywords = tuple((key, self._taken(value, place)) for key, value in target.keywords)
            call = PlannedCall(
                place,
                base_name(self._schema(unit)),
                target,
                None,
                positional,
                keywords,
                takes=tuple(slots_in((*positional, *(value for _, value in keywords)))),
                writes=tuple(self._slot_of(ref, place) for ref in target.writes),
            )
        self._plan.calls.append(call)
        call.results = self._results(inputs, outputs)

    def _schema(self, unit: Unit) -> str:
        return self._et.op_schemas[int(self._et.op_schema[unit.node])]

    def _lacks(self, callee: Callee) -> bool:
        """Returns whether a call takes a tensor from outside that cannot be made."""
        for ref in tensors_of(callee):
            known = self._tensors.get(ref.tensor)
            if ref.hidden and (known is None or not _same(self._plan.slots[known].ref, ref)):
                return True
        return False

    def _taken(self, value: Recorded, place: int) -> Any:
        if isinstance(value, TensorRef):
            return TensorSlot(self._slot_of(value, place))
        if isinstance(value, list):
            return [self._taken(one, place) for one in value]
        return value

    def _slot_of(self, ref: TensorRef, place: int) -> int:
        """Returns the slot of an argument; makes one if it is not a result."""
        plan = self._plan
        known = self._tensors.get(ref.tensor)
        if known is not None and _same(plan.slots[known].ref, ref):
            return known
        memory = self._memory_of(ref)
        if memory is None:
            memory = self._new_memory(ref, outside=True)
        slot = self._new_slot(ref, memory, outside=memory.outside)
        if not memory.outside:
            # The newest tensor on this memory is the one that is alive.
            base = memory.slots[-2]
            plan.calls.append(
                PlannedCall(
                    place, positional=(TensorSlot(base), ref), results=(slot,), takes=(base,)
                )
            )
        return slot

    def _memory_of(self, ref: TensorRef) -> Memory | None:
        """Returns the known memory under a tensor whose number is new."""
        number = self._storages.get(ref.storage) if ref.elements and ref.storage else None
        if number is None:
            return None
        memory = self._plan.memories[number]
        if memory.outside:
            # The number may be reused; floats are seldom read as integers.
            first = self._plan.slots[memory.slots[0]].ref
            return memory if first.dtype == ref.dtype else None
        return memory if ref.end_bytes <= memory.size_bytes else None

    def _results(self, inputs: Sequence[Recorded], outputs: Sequence[Recorded]) -> tuple[Any, ...]:
        taken = {ref.tensor: ref for ref in tensors_in(inputs)}
        memories: dict[int, int] = {}
        for ref in tensors_in(inputs):
            slot = self._tensors.get(ref.tensor)
            if slot is not None and ref.elements and ref.storage:
                memories[ref.storage] = self._plan.slots[slot].memory
        return tuple(self._result(value, taken, memories) for value in outputs)

    def _result(
        self, value: Recorded, taken: dict[int, TensorRef], memories: dict[int, int]
    ) -> Any:
        if isinstance(value, list):
            return [self._result(one, taken, memories) for one in value]
        if not isinstance(value, TensorRef):
            return -1
        plan = self._plan
        slot = self._tensors.get(value.tensor)
        if value.tensor in taken and slot is not None:
            # Returned in place, perhaps with another size or memory.
            info = plan.slots[slot]
            before = plan.memories[info.memory]
            if info.ref.storage != value.storage:
                info.memory = self._new_memory(value, outside=False).number
                plan.memories[info.memory].slots.append(slot)
            elif not before.outside:
                before.size_bytes = max(before.size_bytes, value.end_bytes)
            info.ref = value
            return -1
        if value.storage in memories:
            memory = plan.memories[memories[value.storage]]
            memory.size_bytes = max(memory.size_bytes, value.end_bytes)
        else:
            memory = self._new_memory(value, outside=False)
        return self._new_slot(value, memory, outside=False)

    def _new_memory(self, ref: TensorRef, *, outside: bool) -> Memory:
        memory = Memory(len(self._plan.memories), outside, ref.device)
        self._plan.memories.append(memory)
        if ref.elements and ref.storage:
            self._storages[ref.storage] = memory.number
        memory.size_bytes = ref.end_bytes
        return memory

    def _new_slot(self, ref: TensorRef, memory: Memory, *, outside: bool) -> int:
        slot = len(self._plan.slots)
        self._plan.slots.append(SlotInfo(ref, memory.number, outside))
        self._tensors[ref.tensor] = slot
        memory.slots.append(slot)
        memory.size_bytes = max(memory.size_bytes, ref.end_bytes)
        return slot

    def _forget(self, inputs: Sequence[Recorded], outputs: Sequence[Recorded]) -> None:
        """Forgets the results of an operator that is not replayed: they come from outside."""
        taken = {ref.tensor for ref in tensors_in(inputs)}
        storages = {ref.storage for ref in tensors_in(inputs)}
        for ref in tensors_in(outputs):
            if ref.tensor in taken:
                continue
            self._tensors.pop(ref.tensor, None)
            if ref.storage not in storages:
                self._storages.pop(ref.storage, None)

    def _with_strides(self, value: Any) -> Any:
        """Fills in strides that another node recorded for the same tensor."""
        if isinstance(value, list):
            return [self._with_strides(one) for one in value]
        if isinstance(value, TensorRef) and value.strides is None:
            strides = self._strides.get((value.tensor, value.storage, value.shape))
            return value if strides is None else replace(value, strides=strides)
        return value


def _same(known: TensorRef, taken: TensorRef) -> bool:
    return (
        (known.storage == taken.storage or not taken.elements)
        and known.shape == taken.shape
        and known.dtype == taken.dtype
        and (known.offset == taken.offset or not taken.elements)
    )


def _recorded_strides(et: ExecutionTrace) -> _Strides:
    """Returns strides recorded by calls of `as_strided`, by tensor, memory and shape.

    Schemas before 1.1.1 have no strides, but most views are made by this operator.
    """
    found: _Strides = {}
    for node, arguments in enumerate(et.arguments):
        if et.name_of(node) != "aten::as_strided" or len(arguments.inputs) < 3:
            continue
        strides = arguments.inputs[2]
        if not isinstance(strides, list) or not all(isinstance(one, int) for one in strides):
            continue
        for ref in tensors_in(outputs_of(arguments)):
            if len(strides) == len(ref.shape) and min(strides, default=0) >= 0:
                found[ref.tensor, ref.storage, ref.shape] = tuple(strides)
    return found
