"""Removal of tasks: what waited for a removed task waits for what that task waited for."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def bypass_removed(
    rows: list[list[int]], after: list[list[int]], removed: Sequence[int], stream: Sequence[int]
) -> None:
    """Takes removed tasks off their streams and replaces them in dependencies.

    A removed task stands for its own dependencies and its predecessor on the stream.

    Args:
        rows: Tasks of each stream in order; changed in place.
        after: Dependencies of each task; changed in place.
        removed: Whether each task was removed.
        stream: Stream of each task.
    """
    if not any(removed):
        return
    bypass = _Bypass(rows, after, removed, stream)
    for row in rows:
        for task in row:
            if removed[task]:
                bypass.resolve(task)
    for task, waits in enumerate(after):
        if not removed[task]:
            after[task] = bypass.kept(task, waits)
    rows[:] = [[task for task in row if not removed[task]] for row in rows]


class _Bypass:
    def __init__(
        self,
        rows: list[list[int]],
        after: list[list[int]],
        removed: Sequence[int],
        stream: Sequence[int],
    ) -> None:
        self._after, self._removed, self._stream = after, removed, stream
        self._previous = {later: earlier for row in rows for earlier, later in pairwise(row)}
        self._position = {task: at for row in rows for at, task in enumerate(row)}

    def resolve(self, first: int) -> None:
        """Makes a removed task, and the removed ones before it, wait for present tasks only."""
        stack, entered = [first], set()
        while stack:
            task = stack[-1]
            if task in self._previous:
                self._after[task].append(self._previous.pop(task))
            if task not in entered:
                entered.add(task)
                stack += [
                    other
                    for other in self._after[task]
                    if self._removed[other] and other not in entered
                ]
                continue
            stack.pop()
            self._after[task] = self._replaced(self._after[task])

    def kept(self, task: int, waits: list[int]) -> list[int]:
        """Returns the dependencies of a present task, once all removed ones are resolved."""
        before = self._previous.get(task)
        if before is not None and self._removed[before]:
            return self._replaced([*waits, before])
        return self._replaced(waits) if any(self._removed[other] for other in waits) else waits

    def _replaced(self, tasks: Sequence[int]) -> list[int]:
        """Returns tasks with removed ones replaced by what these wait for by now.

        Of several on one stream the last is enough: it comes after the others. Otherwise, waits
        inherited over long stretches of removed tasks would pile up.
        """
        last: dict[int, int] = {}
        for task in tasks:
            for other in self._after[task] if self._removed[task] else [task]:
                if self._removed[other]:
                    continue
                stream = self._stream[other]
                known = last.get(stream)
                if known is None or self._position.get(other, -1) > self._position.get(known, -1):
                    last[stream] = other
        return list(last.values())
