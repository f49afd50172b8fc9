"""What operators ask of values: indices in range, ascending offsets, masks with so many marks.

Values of a trace are gone; for the time of most operators they do not matter. Where they do, the
argument that asks is followed back through operators that only move values, to the memory from
outside that it came from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
import re
from typing import TYPE_CHECKING, Any

from dse.trace.replay._fbgemm import is_lookup, table_layout, table_values
from dse.trace.replay._plan import Slot, given_slots

if TYPE_CHECKING:
    from dse.trace.replay._plan import Plan, Step
    from dse.trace.replay._recorded import TensorRef

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


class DemandKind(IntEnum):
    """What is asked."""

    RANGE = 0
    ASCENDING = 1
    POSITIVE = 2
    MARKS = 3
    VALUES = 4


@dataclass(frozen=True, slots=True)
class Demand:
    """What is asked of the values of a tensor.

    Attributes:
        kind: What is asked.
        limit: Values are below it (`RANGE`), end at it (`ASCENDING`: the last value if `whole`,
            otherwise what would follow it), or so many are true (`MARKS`).
        whole: Of ascending offsets, whether the last one is the end.
        values: The values (`VALUES`), repeated to the end.
    """

    kind: DemandKind
    limit: int = 0
    whole: bool = False
    values: tuple[int, ...] = ()


def demands_of(step: Step, plan: Plan) -> list[tuple[int, Demand]]:
    """Returns the slots of which a step asks something."""
    rule = _tables if is_lookup(step.name) else _RULES.get(step.name)
    if rule is None:
        return []
    arguments = _Arguments(step, plan)
    try:
        return [found for found in rule(arguments) if found is not None]
    except (IndexError, KeyError, TypeError, AttributeError):
        # A signature of another time; the run will tell whether it matters.
        return []


def outside_demands(plan: Plan) -> dict[int, Demand]:
    """Returns what is asked of memories from outside, by their number; the strictest wins."""
    sources = _sources(plan)
    found: dict[int, Demand] = {}
    for step in plan.steps:
        for slot, demand in demands_of(step, plan):
            for memory in _origins(plan.slots[slot].memory, sources):
                if plan.memories[memory].outside:
                    found[memory] = _stricter(found.get(memory), demand)
    return found


def doubtful_memories(plan: Plan) -> set[int]:
    """Returns memories whose integers may be anything: nobody is sure to have written all of them.

    They come from `empty` and its like, and from operators of other libraries, whose results
    depend on values that are not those of the recording.
    """
    found: set[int] = set()
    for step in plan.steps:
        taken = {plan.slots[slot].memory for slot in step.takes if _integers(plan, slot)}
        given = {
            plan.slots[slot].memory for slot in given_slots(step.given) if _integers(plan, slot)
        }
        given |= {plan.slots[slot].memory for slot in step.writes if _integers(plan, slot)}
        own = step.name.startswith(("aten::", "c10d::")) or not step.name
        if _EMPTY.match(step.name) or not own or taken & found:
            found |= given
    return {number for number in found if not plan.memories[number].outside}


def _integers(plan: Plan, slot: int) -> bool:
    return plan.slots[slot].ref.dtype in _INTEGERS


def _stricter(before: Demand | None, demand: Demand) -> Demand:
    if before is None or (before.kind == demand.kind and demand.limit < before.limit):
        return demand
    return before


def _sources(plan: Plan) -> dict[int, set[int]]:
    """Returns from which memories values came into each memory unchanged."""
    found: dict[int, set[int]] = {}
    for step in plan.steps:
        moves = _MOVES.match(step.name) is not None
        if step.collective is None and not moves:
            continue
        taken = {plan.slots[slot].memory for slot in step.takes}
        into = {plan.slots[slot].memory for slot in given_slots(step.given)}
        # In place, and collectives: what is first among the arguments receives.
        if step.takes and (step.collective is not None or not into):
            into = {plan.slots[step.takes[0]].memory}
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
    """Arguments of a step by place, tensors with their slots."""

    def __init__(self, step: Step, plan: Plan) -> None:
        values = list(step.positional) + [value for _, value in step.keywords]
        self.values: list[Any] = values
        self._plan = plan
        self._names = () if step.call is None else step.call.names
        self._keywords = dict(step.keywords)
        given = list(given_slots(step.given))
        self.given = plan.slots[given[0]].ref if given else None

    @property
    def by_name(self) -> dict[str, Any]:
        """Arguments by name."""
        return dict(zip(self._names, self.values, strict=False)) | self._keywords

    def known(self, value: Any) -> Any:
        """Returns the tensor of an argument, or the argument if it is none."""
        return self.ref_in(value) if isinstance(value, Slot) else value

    def ref(self, at: int) -> TensorRef:
        """Returns the tensor at a place."""
        return self.ref_in(self.values[at])

    def ref_in(self, value: Any) -> TensorRef:
        """Returns the tensor of an argument."""
        assert isinstance(value, Slot)
        return self._plan.slots[value.number].ref

    def ask(self, at: int, demand: Demand) -> tuple[int, Demand] | None:
        """Asks something of the integers at a place."""
        if at >= len(self.values) or not isinstance(self.values[at], Slot):
            return None
        slot = self.values[at].number
        return (slot, demand) if self._plan.slots[slot].ref.dtype in _INTEGERS else None

    def below(self, at: int, limit: int) -> tuple[int, Demand] | None:
        """Asks for values below a limit."""
        return self.ask(at, Demand(DemandKind.RANGE, max(limit, 1)))


_Found = Sequence[tuple[int, Demand] | None]


def _rows_first(arguments: _Arguments) -> _Found:
    return [arguments.below(1, arguments.ref(0).shape[0])]


def _bags(arguments: _Arguments) -> _Found:
    whole = bool(arguments.values[7]) if len(arguments.values) > 7 else False
    offsets = Demand(DemandKind.ASCENDING, arguments.ref(1).elements, whole)
    return [arguments.below(1, arguments.ref(0).shape[0]), arguments.ask(2, offsets)]


def _rows_given(arguments: _Arguments) -> _Found:
    return [arguments.below(1, int(arguments.values[2]))]


def _bags_backward(arguments: _Arguments) -> _Found:
    rows = int(arguments.values[5])
    bags = arguments.ref(0).shape[0]
    return [arguments.below(1, rows), arguments.below(2, bags)]


def _bags_backward_whole(arguments: _Arguments) -> _Found:
    rows = int(arguments.values[6])
    bags = arguments.ref(0).shape[0]
    return [arguments.below(1, rows), arguments.below(3, bags)]


def _along(arguments: _Arguments) -> _Found:
    return [arguments.below(2, arguments.ref(0).shape[int(arguments.values[1])])]


def _each(arguments: _Arguments) -> _Found:
    shape = arguments.ref(0).shape
    found: list[tuple[int, Demand] | None] = []
    at = 0
    given = arguments.given
    for value in arguments.values[1]:
        if not isinstance(value, Slot):
            at += 1
            continue
        ref = arguments.ref_in(value)
        if ref.dtype in ("bool", "uint8"):
            # A mask gives as many rows as it has marks.
            if given is not None and at < len(given.shape):
                found.append((value.number, Demand(DemandKind.MARKS, given.shape[at])))
            at += len(ref.shape)
            continue
        found.append((value.number, Demand(DemandKind.RANGE, max(shape[at], 1))))
        at += 1
    return found


def _classes(at: int, scores: int) -> Callable[[_Arguments], _Found]:
    def rule(arguments: _Arguments) -> _Found:
        shape = arguments.ref(scores).shape
        return [arguments.below(at, shape[1] if len(shape) > 1 else shape[0])]

    return rule


def _window(arguments: _Arguments) -> _Found:
    shape = arguments.ref(1).shape
    slot = arguments.values[-1]
    if not isinstance(slot, Slot):
        return []
    return [(slot.number, Demand(DemandKind.RANGE, max(shape[-1] * shape[-2], 1)))]


def _positive(arguments: _Arguments) -> _Found:
    slots = [value for value in arguments.values if isinstance(value, Slot)]
    return [(slots[0].number, Demand(DemandKind.POSITIVE))] if slots else []


def _tables(arguments: _Arguments) -> _Found:
    """Tables of FBGEMM and the tensors that describe them."""
    given = arguments.by_name
    layout = table_layout(
        {name: arguments.known(value) for name, value in given.items()},
    )
    if layout is None:
        return []
    _, _, rows = layout
    values = table_values({name: arguments.known(value) for name, value in given.items()})
    found: list[tuple[int, Demand] | None] = [
        (given[name].number, Demand(DemandKind.VALUES, values=numbers))
        for name, numbers in values.items()
        if isinstance(given.get(name), Slot)
    ]
    indices, offsets = given["indices"], given["offsets"]
    ends = Demand(DemandKind.ASCENDING, arguments.ref_in(indices).elements, whole=True)
    return [
        *found,
        (indices.number, Demand(DemandKind.RANGE, rows)),
        (offsets.number, ends),
    ]


def _many_rows(arguments: _Arguments) -> _Found:
    """Bounds that no index reaches; the lookup itself says which do."""
    slot = arguments.values[0]
    return [(slot.number, Demand(DemandKind.VALUES, values=(2**31 - 1,)))]


def _marks(arguments: _Arguments) -> _Found:
    slot = arguments.values[1]
    if arguments.given is None or not isinstance(slot, Slot):
        return []
    return [(slot.number, Demand(DemandKind.MARKS, arguments.given.elements))]


def _squares(arguments: _Arguments) -> _Found:
    """Second moments of fused optimizers: exp_avg_sqs are the fourth list."""
    return [(slot.number, Demand(DemandKind.POSITIVE)) for slot in arguments.values[3]]


_RULES: dict[str, Callable[[_Arguments], _Found]] = {
    "aten::embedding": _rows_first,
    "aten::embedding_bag": _bags,
    "aten::_embedding_bag": _bags,
    "aten::_embedding_bag_forward_only": _bags,
    "aten::embedding_dense_backward": _rows_given,
    "aten::embedding_backward": _rows_given,
    "aten::_embedding_bag_dense_backward": _bags_backward,
    "aten::_embedding_bag_backward": _bags_backward_whole,
    "aten::index_select": _along,
    "aten::index_add": _along,
    "aten::index_add_": _along,
    "aten::index_copy": _along,
    "aten::index_copy_": _along,
    "aten::index_fill": _along,
    "aten::index_fill_": _along,
    "aten::gather": _along,
    "aten::scatter": _along,
    "aten::scatter_": _along,
    "aten::scatter_add": _along,
    "aten::scatter_add_": _along,
    "aten::index": _each,
    "aten::index_put": _each,
    "aten::index_put_": _each,
    "aten::_index_put_impl_": _each,
    "aten::_unsafe_index": _each,
    "aten::nll_loss": _classes(1, 0),
    "aten::nll_loss_nd": _classes(1, 0),
    "aten::nll_loss_forward": _classes(1, 0),
    "aten::nll_loss2d": _classes(1, 0),
    "aten::nll_loss2d_forward": _classes(1, 0),
    "aten::cross_entropy_loss": _classes(1, 0),
    "aten::nll_loss_backward": _classes(2, 1),
    "aten::nll_loss2d_backward": _classes(2, 1),
    "aten::max_pool2d_with_indices_backward": _window,
    "aten::masked_select": _marks,
    "fbgemm::bounds_check_indices": _many_rows,
    "aten::sqrt": _positive,
    "aten::sqrt_": _positive,
    "aten::rsqrt": _positive,
    "aten::log": _positive,
    "aten::log_": _positive,
    "aten::_foreach_sqrt": lambda arguments: [
        (slot.number, Demand(DemandKind.POSITIVE)) for slot in arguments.values[0]
    ],
    "aten::_fused_adam_": _squares,
    "aten::_fused_adamw_": _squares,
}
