"""Arguments of calls: tensors put in place of slots, and results put back into slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dse.trace.replay.plan import TensorSlot

#: Does something with the tensors in the slots.
Action = Callable[[list[Any]], None]


def call_action(
    function: Any,
    positional: tuple[Any, ...],
    keywords: tuple[tuple[str, Any], ...],
    given: tuple[Any, ...],
    kept: set[int],
    frees: tuple[int, ...],
) -> Action:
    """Returns an action with as little Python as possible: operators take only microseconds."""
    template = list(positional)
    singles = [
        (at, value.number) for at, value in enumerate(template) if isinstance(value, TensorSlot)
    ]
    lists = [
        (at, value)
        for at, value in enumerate(template)
        if isinstance(value, list) and has_slot(value)
    ]
    named = dict(keywords)
    named_slots = [(key, value) for key, value in keywords if has_slot(value)]
    single = -1
    if len(given) == 1 and not isinstance(given[0], list) and given[0] in kept:
        single = given[0]
    several = single < 0 and bool(kept)

    def act(slots: list[Any]) -> None:
        arguments = template.copy()
        for at, slot in singles:
            arguments[at] = slots[slot]
        for at, value in lists:
            arguments[at] = filled(value, slots)
        if named_slots:
            names = named.copy()
            for key, value in named_slots:
                names[key] = filled([value], slots)[0]
            results = function(*arguments, **names)
        else:
            results = function(*arguments, **named)
        if single >= 0:
            slots[single] = results[0] if type(results) is tuple else results
        elif several:
            found: dict[int, Any] = {}
            collect_results(given, results, found)
            for slot, tensor in found.items():
                if slot in kept:
                    slots[slot] = tensor
        for slot in frees:
            slots[slot] = None

    return act


def collect_results(given: Sequence[Any], results: Any, found: dict[int, Any]) -> None:
    """Sorts results into slots, as far as they have the recorded form."""
    if len(given) == 1 and not isinstance(results, tuple):
        results = (results,)
    if not isinstance(results, list | tuple):
        return
    for slot, result in zip(given, results, strict=False):
        if isinstance(slot, list):
            collect_results(
                slot, tuple(result) if isinstance(result, list | tuple) else result, found
            )
        elif slot >= 0 and hasattr(result, "untyped_storage"):
            found[slot] = result


def filled(
    values: Sequence[Any], slots: list[Any], turned: Callable[[Any], Any] | None = None
) -> list[Any]:
    """Returns values with tensors in place of slots."""
    found: list[Any] = []
    for value in values:
        if isinstance(value, TensorSlot):
            tensor = slots[value.number]
            found.append(tensor if turned is None else turned(tensor))
        elif isinstance(value, list):
            found.append(filled(value, slots, turned))
        else:
            found.append(value)
    return found


def named_filled(
    keywords: Sequence[tuple[str, Any]],
    slots: list[Any],
    turned: Callable[[Any], Any] | None = None,
) -> dict[str, Any]:
    """Returns arguments by name with tensors in place of slots."""
    values = filled([value for _, value in keywords], slots, turned)
    return dict(zip((key for key, _ in keywords), values, strict=True))


def has_slot(value: Any) -> bool:
    """Returns whether an argument contains tensors."""
    if isinstance(value, list):
        return any(has_slot(item) for item in value)
    return isinstance(value, TensorSlot)


def swapped(value: Any, old: int, new: int) -> Any:
    """Returns an argument with another slot in place of one."""
    if isinstance(value, list):
        return [swapped(item, old, new) for item in value]
    return TensorSlot(new) if value == TensorSlot(old) else value


def on_meta(value: Any) -> Any:
    """Returns `meta` in place of a device, so that factories allocate nothing."""
    return "meta" if type(value).__name__ == "device" else value
