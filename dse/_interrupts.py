"""Ctrl-C between two steps, never in the middle of one, nor of a process that is starting."""

from __future__ import annotations

from contextlib import contextmanager
from multiprocessing import resource_tracker
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


@contextmanager
def interrupts_kept_from_new_processes() -> Iterator[None]:
    """Processes that start in the block hold back SIGINT and SIGTERM until they unblock them.

    The terminal sends Ctrl-C to them as well; while they still import, each would print a
    traceback. The starter holds both back too, in all its threads: one that was interrupted
    while it tells a new process what to do would leave that process with half a message.
    """
    with interrupts_held_back():
        if not hasattr(signal, "pthread_sigmask"):  # not on every operating system
            yield
            return
        # Python unblocks both when it starts this helper, so it must be there before.
        resource_tracker.ensure_running()
        # New processes inherit what is blocked in this thread. Other threads still get signals,
        # and Python would raise them here, so blocking alone does not hold them back.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, set(_ENDING))
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
