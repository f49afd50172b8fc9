"""Constraints on values: indices in range, ascending offsets, masks with a number of marks.

Traces do not hold the values of tensors; for the time of most operators they do not matter. Where
they do, the constrained argument is followed back through operators that only move values, to the
memory from outside that it came from.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
import re
from typing import TYPE_CHECKING, Any

from dse.trace.replay.plan._plan import TensorSlot, result_slots, slots_in
from dse.trace.replay.plan._substitutes import is_lookup, table_layout, table_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from dse.trace.replay.plan._plan import PlannedCall, ReplayPlan
    from dse.trace.replay.read import TensorRef

_INTEGERS = ("int64", "int32", "int16", "int8", "uint8")
_MOVES = re.compile(
    r"^aten::(to|_to_copy|clone|contiguous|view|_unsafe_view|reshape|_reshape_alias|flatten|slice"
    r"|narrow|select|split|split_with_sizes|chunk|unbind|squeeze|unsqueeze|expand|t|transpose"
    r"|permute|as_strided|detach|alias|cat|concat|stack|copy_|index_select|lift_fresh|pin_memory"
    r"|_pin_memory|repeat|roll|flip|sort|movedim|resolve_conj|resolve_neg|cuda|unflatten)$"
)
_EMPTY = re.compile(
    r"^aten::(empty|empty_like|empty_strided|new_empty|new_empty_strided|resize_)$"
)
#: Arguments of pooled lookups that have a value a lookup.
_LOOKUPS = ("indices", "per_sample_weights", "indice_weights")


class ConstraintKind(IntEnum):
    """What is required of values."""

    RANGE = 0
    ASCENDING = 1
    POSITIVE = 2
    MARKS = 3
    VALUES = 4


@dataclass(frozen=True, slots=True)
class InputConstraint:
    """What is required of the values of a tensor.

    Attributes:
        kind: What is required.
        limit: Values are below it (`RANGE`), end at it (`ASCENDING`: the last value if `whole`,
            otherwise what would follow it), or so many are true (`MARKS`).
        whole: Of ascending offsets, whether the last one is the end.
        values: The values (`VALUES`), repeated to the end.
    """

    kind: ConstraintKind
    limit: int = 0
    whole: bool = False
    values: tuple[int, ...] = ()

    def holds_for(self, tensor: Any) -> bool:
        """Returns whether an operator stays inside of its memory with the values of a tensor."""
        if not tensor.numel() or tensor.is_floating_point() or tensor.is_sparse:
            return True
        if self.kind is ConstraintKind.RANGE:
            lowest, highest = (int(value) for value in tensor.aminmax())
            return lowest >= 0 and highest < self.limit
        if self.kind is ConstraintKind.ASCENDING:
            last = int(tensor[-1])
            ends = last == self.limit if self.whole else last <= self.limit
            return ends and int(tensor[0]) == 0 and bool((tensor.diff() >= 0).all())
        if self.kind is ConstraintKind.VALUES:
            return bool(tensor.reshape(-1).tolist()[: len(self.values)] == list(self.values))
        return True


_Found = tuple[int, InputConstraint]
_POSITIVE = InputConstraint(ConstraintKind.POSITIVE)


def constraints_of(call: PlannedCall, plan: ReplayPlan) -> list[_Found]:
    """Returns the constrained slots among the arguments of a call."""
    rule = _tables if _in_tables(call) else _RULES.get(call.name)
    limits = _LIMITS.get(call.name, ())
    if rule is None and not limits:
        return []
    arguments = _Arguments(call, plan)
    try:
        found = [found for at, limit in limits for found in arguments.below(at, limit(arguments))]
        return found if rule is None else [*found, *rule(arguments)]
    except (IndexError, KeyError, TypeError, AttributeError):
        # The signature of another version; running it shows whether it matters.
        return []


def outside_constraints(plan: ReplayPlan) -> dict[int, InputConstraint]:
    """Returns the strictest constraint of each memory from outside, by its number."""
    sources = _sources(plan)
    found: dict[int, InputConstraint] = {}
    for call in plan.calls:
        for slot, constraint in constraints_of(call, plan):
            for memory in _origins(plan.slots[slot].memory, sources):
                if plan.memories[memory].outside:
                    found[memory] = _stricter(found.get(memory), constraint)
    return found


def lookup_memories(plan: ReplayPlan) -> set[int]:
    """Returns the memories of lookups in bags and of their weights: all samples have a part."""
    sources = _sources(plan)
    found: set[int] = set()
    for call in plan.calls:
        if _in_tables(call) or _RULES.get(call.name) is _offsets:
            given = _Arguments(call, plan).by_name
            for slot in slots_in([given.get(name) for name in _LOOKUPS]):
                found |= _origins(plan.slots[slot].memory, sources)
    return found


def offset_memories(plan: ReplayPlan) -> dict[int, bool]:
    """Returns the memories of offsets of bags, and whether their last one is the end."""
    sources = _sources(plan)
    found: dict[int, bool] = {}
    for call in plan.calls:
        lookup = _in_tables(call)
        if lookup or _RULES.get(call.name) is _offsets:
            arguments = _Arguments(call, plan)
            whole = lookup or _ends_last(arguments)
            for slot in slots_in([arguments.by_name.get("offsets")]):
                found |= dict.fromkeys(_origins(plan.slots[slot].memory, sources), whole)
    return found


def _in_tables(call: PlannedCall) -> bool:
    """Returns whether a call is a lookup in tables that FBGEMM keeps in one block, or a part."""
    names = () if call.callee is None else call.callee.names
    return is_lookup(call.name) or (
        call.name.startswith("fbgemm::split_embedding_") and {"indices", "offsets"} <= set(names)
    )


def doubtful_memories(plan: ReplayPlan) -> set[int]:
    """Returns memories whose integers may have any value.

    They come from `empty` and similar operators, which leave memory unwritten, and from operators
    of other libraries, whose results depend on values that differ from the recorded ones.
    """

    def integers(slots: Iterable[int]) -> set[int]:
        infos = (plan.slots[slot] for slot in slots)
        return {info.memory for info in infos if info.ref.dtype in _INTEGERS}

    found: set[int] = set()
    for call in plan.calls:
        own = call.name.startswith(("aten::", "c10d::")) or not call.name
        if _EMPTY.match(call.name) or not own or integers(call.takes) & found:
            found |= integers(result_slots(call.results)) | integers(call.writes)
    return {number for number in found if not plan.memories[number].outside}


def _stricter(before: InputConstraint | None, constraint: InputConstraint) -> InputConstraint:
    if before is None or (before.kind == constraint.kind and constraint.limit < before.limit):
        return constraint
    return before


def _sources(plan: ReplayPlan) -> dict[int, set[int]]:
    """Returns from which memories values came into each memory unchanged."""
    found: dict[int, set[int]] = {}
    for call in plan.calls:
        if call.collective is None and not _MOVES.match(call.name):
            continue
        taken = {plan.slots[slot].memory for slot in call.takes}
        into = {plan.slots[slot].memory for slot in result_slots(call.results)}
        # In place, and in collectives, the first argument receives.
        if call.takes and (call.collective is not None or not into):
            into = {plan.slots[call.takes[0]].memory}
        for memory in into:
            found.setdefault(memory, set()).update(taken - {memory})
    return found


def _origins(memory: int, sources: dict[int, set[int]]) -> set[int]:
    found, todo = {memory}, [memory]
    while todo:
        for source in sources.get(todo.pop(), ()):
            if source not in found:
                found.add(source)
                todo.append(source)
    return found


class _Arguments:
    """Arguments of a call by place and by name."""

    def __init__(self, call: PlannedCall, plan: ReplayPlan) -> None:
        keywords = dict(call.keywords)
        self.values: list[Any] = [*call.positional, *keywords.values()]
        names = () if call.callee is None else call.callee.names
        self.by_name = dict(zip(names, self.values, strict=False)) | keywords
        self._plan = plan
        results = list(result_slots(call.results))
        self.result = plan.slots[results[0]].ref if results else None

    def known(self, value: Any) -> Any:
        """Returns the recorded tensor of a slot, and any other argument as it is."""
        return self._plan.slots[value.number].ref if isinstance(value, TensorSlot) else value

    def ref(self, at: int) -> TensorRef:
        """Returns the recorded tensor at a place."""
        ref: TensorRef = self.known(self.values[at])
        return ref

    def integers(self, at: int, constraint: InputConstraint) -> Iterator[_Found]:
        """Yields a constraint if there are integers at a place."""
        value = self.values[at] if at < len(self.values) else None
        if isinstance(value, TensorSlot) and self.known(value).dtype in _INTEGERS:
            yield value.number, constraint

    def below(self, at: int, limit: int) -> Iterator[_Found]:
        """Yields the constraint that integers at a place are below a limit."""
        return self.integers(at, InputConstraint(ConstraintKind.RANGE, max(limit, 1)))


def _rows(arguments: _Arguments) -> int:
    return arguments.ref(0).shape[0]


def _number(at: int) -> Callable[[_Arguments], int]:
    return lambda arguments: int(arguments.values[at])


def _dimension(arguments: _Arguments) -> int:
    return arguments.ref(0).shape[int(arguments.values[1])]


def _classes(scores: int) -> Callable[[_Arguments], int]:
    def limit(arguments: _Arguments) -> int:
        shape = arguments.ref(scores).shape
        return shape[1] if len(shape) > 1 else shape[0]

    return limit


#: Places of indices, and what they are below.
_LIMITS: dict[str, tuple[tuple[int, Callable[[_Arguments], int]], ...]] = {
    "aten::embedding": ((1, _rows),),
    "aten::embedding_bag": ((1, _rows),),
    "aten::_embedding_bag": ((1, _rows),),
    "aten::_embedding_bag_forward_only": ((1, _rows),),
    "aten::embedding_dense_backward": ((1, _number(2)),),
    "aten::embedding_backward": ((1, _number(2)),),
    "aten::_embedding_bag_dense_backward": ((1, _number(5)), (2, _rows)),
    "aten::_embedding_bag_backward": ((1, _number(6)), (3, _rows)),
    "aten::nll_loss": ((1, _classes(0)),),
    "aten::nll_loss_nd": ((1, _classes(0)),),
    "aten::nll_loss_forward": ((1, _classes(0)),),
    "aten::nll_loss2d": ((1, _classes(0)),),
    "aten::nll_loss2d_forward": ((1, _classes(0)),),
    "aten::cross_entropy_loss": ((1, _classes(0)),),
    "aten::nll_loss_backward": ((2, _classes(1)),),
    "aten::nll_loss2d_backward": ((2, _classes(1)),),
    **{
        f"aten::{name}{end}": ((2, _dimension),)
        for name in ("index_add", "index_copy", "index_fill", "scatter", "scatter_add")
        for end in ("", "_")
    },
    "aten::index_select": ((2, _dimension),),
    "aten::gather": ((2, _dimension),),
}


def _offsets(arguments: _Arguments) -> Iterable[_Found]:
    """Offsets of bags."""
    count, whole = arguments.ref(1).elements, _ends_last(arguments)
    return arguments.integers(2, InputConstraint(ConstraintKind.ASCENDING, count, whole))


def _ends_last(arguments: _Arguments) -> bool:
    """Whether the last offset of bags is the end of the last bag."""
    return bool(arguments.values[7]) if len(arguments.values) > 7 else False


def _each_index(arguments: _Arguments) -> Iterable[_Found]:
    """One index, mask or None for each dimension."""
    shape, result, at = arguments.ref(0).shape, arguments.result, 0
    for value in arguments.values[1]:
        if not isinstance(value, TensorSlot):
            at += 1
            continue
        ref = arguments.known(value)
        if ref.dtype in ("bool", "uint8"):
            # A mask gives as many rows as it has marks.
            if result is not None and at < len(result.shape):
                yield value.number, InputConstraint(ConstraintKind.MARKS, result.shape[at])
            at += len(ref.shape)
        else:
            yield value.number, InputConstraint(ConstraintKind.RANGE, max(shape[at], 1))
            at += 1


def _window(arguments: _Arguments) -> Iterable[_Found]:
    """Places inside the planes of a pooling layer."""
    shape = arguments.ref(1).shape
    for slot in slots_in(arguments.values[-1:]):
        yield slot, InputConstraint(ConstraintKind.RANGE, max(shape[-1] * shape[-2], 1))


def _marks(arguments: _Arguments) -> Iterable[_Found]:
    if arguments.result is not None:
        for slot in slots_in(arguments.values[1:2]):
            yield slot, InputConstraint(ConstraintKind.MARKS, arguments.result.elements)


def _positive(arguments: _Arguments) -> Iterable[_Found]:
    for slot in [value for value in arguments.values if isinstance(value, TensorSlot)][:1]:
        yield slot.number, _POSITIVE


def _positive_list(at: int) -> Callable[[_Arguments], Iterable[_Found]]:
    return lambda arguments: [(slot.number, _POSITIVE) for slot in arguments.values[at]]


def _many_rows(arguments: _Arguments) -> Iterable[_Found]:
    """Bounds that no index reaches; the lookup itself has the true ones."""
    bounds = InputConstraint(ConstraintKind.VALUES, values=(2**31 - 1,))
    return [(arguments.values[0].number, bounds)]


def _tables(arguments: _Arguments) -> Iterable[_Found]:
    """Tables of FBGEMM and the tensors that describe them."""
    given = arguments.by_name
    known = {name: arguments.known(value) for name, value in given.items()}
    layout = table_layout(known)
    if layout is None:
        return
    for name, numbers in table_values(known).items():
        if isinstance(given.get(name), TensorSlot):
            values = InputConstraint(ConstraintKind.VALUES, values=numbers)
            yield given[name].number, values
    _, _, rows = layout
    yield given["indices"].number, InputConstraint(ConstraintKind.RANGE, rows)
    count = known["indices"].elements
    yield given["offsets"].number, InputConstraint(ConstraintKind.ASCENDING, count, whole=True)


_RULES: dict[str, Callable[[_Arguments], Iterable[_Found]]] = {
    **dict.fromkeys(
        ("aten::embedding_bag", "aten::_embedding_bag", "aten::_embedding_bag_forward_only"),
        _offsets,
    ),
    **dict.fromkeys(
        (
            "aten::index",
            "aten::index_put",
            "aten::index_put_",
            "aten::_index_put_impl_",
            "aten::_unsafe_index",
        ),
        _each_index,
    ),
    "aten::max_pool2d_with_indices_backward": _window,
    "aten::masked_select": _marks,
    "fbgemm::bounds_check_indices": _many_rows,
    **dict.fromkeys(
        ("aten::sqrt", "aten::sqrt_", "aten::rsqrt", "aten::log", "aten::log_"), _positive
    ),
    "aten::_foreach_sqrt": _positive_list(0),
    # Second moments are the fourth list.
    "aten::_fused_adam_": _positive_list(3),
    "aten::_fused_adamw_": _positive_list(3),
}
