"""From units to a program.

Traces name tensors and their memory by numbers that are used again once something is freed, so a
number means what was last given under it. What nothing in the range has given before it is taken
comes from outside and is made beforehand; memory that several such tensors share is one block.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dse.trace.replay._collective_calls import CollectiveCall, collective_call
from dse.trace.replay._lookup import Callee, base_name, tensors_of
from dse.trace.replay._plan import Memory, Plan, Slot, SlotInfo, Step, set_lifetimes, taken_slots
from dse.trace.replay._recorded import Recorded, TensorRef, inputs_of, outputs_of, tensors_in
from dse.trace.replay._select import Unit, UnitKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.trace import ExecutionTrace
    from dse.trace.replay._lookup import Lookup

#: Strides by tensor, memory and shape.
_Strides = dict[tuple[int, int, tuple[int, ...]], tuple[int, ...]]

#: Reasons for units that no signature describes.
UNSIGNED = "its signature was not recorded"
OPENED = "{}; its children are replayed"
LEFT_OUT = "left out by the options"
HIDDEN = "it takes a sparse tensor that nothing in the range gives"


class Planner:
    """Makes the plan of one rank.

    Args:
        et: The trace, with its arguments.
        lookup: What can be called.
        part: `all`, `compute` or `communication`.
        skip_collectives: Whether collectives are skipped by option.
    """

    def __init__(
        self, et: ExecutionTrace, lookup: Lookup, part: str = "all", *, skip_collectives: bool
    ) -> None:
        self._et = et
        self._lookup = lookup
        self._part = part
        self._skip_collectives = skip_collectives
        self._tensors: dict[int, int] = {}
        self._storages: dict[int, int] = {}
        self._strides = _recorded_strides(et)
        self._plan = Plan(())

    def plan(self, units: tuple[Unit, ...]) -> Plan:
        """Returns the program that replays units in their order."""
        self._plan = Plan(units)
        for place, unit in enumerate(units):
            self._add(place, unit)
        set_lifetimes(self._plan)
        return self._plan

    def _add(self, place: int, unit: Unit) -> None:
        plan, et = self._plan, self._et
        arguments = et.arguments[unit.node]
        inputs = self._completed(inputs_of(arguments))
        outputs = self._completed(outputs_of(arguments))
        is_collective = unit.kind is UnitKind.COLLECTIVE
        left_out = (
            self._part == ("compute" if is_collective else "communication")
            or (is_collective and self._skip_collectives)
            or (unit.kind is UnitKind.UNSIGNED and self._part == "communication")
        )
        if left_out:
            plan.by_option.add(place)
            plan.reasons[place] = LEFT_OUT
            self._forget(inputs, outputs)
            return
        if unit.kind is UnitKind.UNSIGNED:
            plan.reasons[place] = OPENED.format(UNSIGNED) if unit.opened else UNSIGNED
            self._forget(inputs, outputs)
            return
        schema = et.op_schemas[int(et.op_schema[unit.node])]
        if is_collective:
            found = collective_call(et, unit.node, schema, inputs)
            if isinstance(found, str):
                plan.reasons[place] = found
                self._forget(inputs, outputs)
                return
            self._collect(place, et.name_of(unit.node), found, inputs, outputs)
            return
        callee = self._lookup.find(schema, inputs, outputs)
        if not isinstance(callee, str) and self._lacks(callee):
            callee = HIDDEN
        if unit.opened or isinstance(callee, str):
            reason = callee if isinstance(callee, str) else "it cannot be called here"
            plan.reasons[place] = OPENED.format(reason) if unit.opened else reason
            if not unit.opened:
                self._forget(inputs, outputs)
            return
        self._call(place, base_name(schema), callee, inputs, outputs)

    def _call(
        self,
        place: int,
        name: str,
        callee: Callee,
        inputs: Sequence[Recorded],
        outputs: Sequence[Recorded],
    ) -> None:
        positional = tuple(self._taken(value, place) for value in callee.positional)
        keywords = tuple((key, self._taken(value, place)) for key, value in callee.keywords)
        step = Step(
            unit=place,
            name=name,
            call=callee,
            collective=None,
            positional=positional,
            keywords=keywords,
            given=(),
            takes=tuple(taken_slots((*positional, *(value for _, value in keywords)))),
            writes=tuple(self._slot_of(ref, place) for ref in callee.writes),
        )
        self._plan.steps.append(step)
        step.given = self._given(inputs, outputs)

    def _lacks(self, callee: Callee) -> bool:
        """Whether a call takes something that nothing gives and that cannot be made."""
        for ref in tensors_of(callee):
            known = self._tensors.get(ref.tensor)
            if ref.hidden and (known is None or not _same(self._plan.slots[known].ref, ref)):
                return True
        return False

    def _collect(
        self,
        place: int,
        name: str,
        call: CollectiveCall,
        inputs: Sequence[Recorded],
        outputs: Sequence[Recorded],
    ) -> None:
        arguments = tuple(self._taken(value, place) for value in call.tensors)
        step = Step(
            unit=place,
            name=name,
            call=None,
            collective=call,
            positional=arguments,
            keywords=(),
            given=(),
            takes=tuple(taken_slots(arguments)),
            writes=tuple(taken_slots(arguments)),
        )
        self._plan.steps.append(step)
        step.given = self._given(inputs, outputs)

    def _taken(self, value: Recorded, place: int) -> Any:
        if isinstance(value, TensorRef):
            return Slot(self._slot_of(value, place))
        if isinstance(value, list):
            return [self._taken(one, place) for one in value]
        return value

    def _slot_of(self, ref: TensorRef, place: int) -> int:
        """Returns the slot of a tensor that is taken; makes one if nothing gave it."""
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
            plan.steps.append(
                Step(
                    unit=place,
                    name="",
                    call=None,
                    collective=None,
                    positional=(Slot(base), ref),
                    keywords=(),
                    given=(slot,),
                    takes=(base,),
                )
            )
            plan.slots[slot].giver = len(plan.steps) - 1
        return slot

    def _memory_of(self, ref: TensorRef) -> Memory | None:
        """Returns the memory on which a tensor lies that was not given under its own number."""
        number = self._storages.get(ref.storage) if ref.elements and ref.storage else None
        if number is None:
            return None
        memory = self._plan.memories[number]
        if memory.outside:
            # A number that serves again: floats are seldom read as integers.
            first = self._plan.slots[memory.slots[0]].ref
            return memory if first.dtype == ref.dtype else None
        return memory if ref.end_bytes <= memory.size_bytes else None

    def _given(self, inputs: Sequence[Recorded], outputs: Sequence[Recorded]) -> tuple[Any, ...]:
        taken = {ref.tensor: ref for ref in tensors_in(inputs)}
        memories: dict[int, int] = {}
        for ref in tensors_in(inputs):
            slot = self._tensors.get(ref.tensor)
            if slot is not None and ref.elements and ref.storage:
                memories[ref.storage] = self._plan.slots[slot].memory
        return tuple(self._gives(value, taken, memories) for value in outputs)

    def _gives(
        self, value: Recorded, taken: dict[int, TensorRef], memories: dict[int, int]
    ) -> Any:
        if isinstance(value, list):
            return [self._gives(one, taken, memories) for one in value]
        if not isinstance(value, TensorRef):
            return -1
        plan = self._plan
        slot = self._tensors.get(value.tensor)
        if value.tensor in taken and slot is not None:
            # Given back in place; it may have been given another size or memory.
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
        slot = self._new_slot(value, memory, outside=False)
        plan.slots[slot].giver = len(plan.steps) - 1
        return slot

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
        """What an operator gave that is not replayed will have to come from outside."""
        taken = {ref.tensor for ref in tensors_in(inputs)}
        storages = {ref.storage for ref in tensors_in(inputs)}
        for ref in tensors_in(outputs):
            if ref.tensor in taken:
                continue
            self._tensors.pop(ref.tensor, None)
            if ref.storage not in storages:
                self._storages.pop(ref.storage, None)

    def _completed(self, values: Sequence[Recorded]) -> list[Recorded]:
        """Fills in strides that another node told of the same tensor."""
        return [_with_strides(value, self._strides) for value in values]


def _same(known: TensorRef, taken: TensorRef) -> bool:
    return (
        (known.storage == taken.storage or not taken.elements)
        and known.shape == taken.shape
        and known.dtype == taken.dtype
        and (known.offset == taken.offset or not taken.elements)
    )


def _recorded_strides(et: ExecutionTrace) -> _Strides:
    """Returns strides that calls of `as_strided` tell, by tensor, memory and shape.

    Schemas before 1.1.1 have no strides, but most views are made by this operator.
    """
    found: _Strides = {}
    for node, arguments in enumerate(et.arguments):
        if et.name_of(node) != "aten::as_strided" or len(arguments.inputs) < 3:
            continue
        steps = arguments.inputs[2]
        if not isinstance(steps, list) or not all(isinstance(step, int) for step in steps):
            continue
        for ref in tensors_in(outputs_of(arguments)):
            if len(steps) == len(ref.shape) and min(steps, default=0) >= 0:
                found[ref.tensor, ref.storage, ref.shape] = tuple(steps)
    return found


def _with_strides(value: Recorded, known: _Strides) -> Recorded:
    if isinstance(value, list):
        return [_with_strides(one, known) for one in value]
    if isinstance(value, TensorRef) and value.strides is None:
        steps = known.get((value.tensor, value.storage, value.shape))
        if steps is not None:
            return replace(value, strides=steps)
    return value
