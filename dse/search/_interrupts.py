"""Ctrl-C between two steps, never in the middle of one."""

from __future__ import annotations

from contextlib import contextmanager
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Signals by which a run is asked to end, where the program has a handler for them.
_ENDING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Lets SIGINT and SIGTERM wait until the block has ended.

    What they do is left to the program's own handlers, which are called after the block. So what
    is written and what is remembered of it cannot differ. Signals that have no handler, and
    threads that do not get any, are left alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    handlers = {number: signal.getsignal(number) for number in _ENDING}
    handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
    try:
        for number in handlers:
            signal.signal(number, lambda number, frame: came.append(number))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for late in dict.fromkeys(came):
            signal.raise_signal(late)
