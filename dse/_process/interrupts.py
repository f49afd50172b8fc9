"""Deferred interrupts: Ctrl-C between two steps, not within one."""

from __future__ import annotations

from contextlib import contextmanager
from multiprocessing import resource_tracker
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Signals that request the end of a run.
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def defer_interrupts() -> Iterator[None]:
    """Defers SIGINT and SIGTERM to the end of the block.

    The program's own handlers run after the block, so files and memory cannot get out of step.
    Signals without a Python handler are not deferred, and threads other than the main one never
    receive any.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    handlers = {number: signal.getsignal(number) for number in _INTERRUPTS}
    handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
    try:
        for number in handlers:
            signal.signal(number, lambda number, frame: received.append(number))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for deferred in dict.fromkeys(received):
            signal.raise_signal(deferred)


@contextmanager
def shield_children_from_interrupts() -> Iterator[None]:
    """Starts the block's child processes with SIGINT and SIGTERM blocked until they unblock them.

    The terminal sends Ctrl-C to children as well, and each would print a traceback while it is
    still importing. The parent defers both signals too: interrupted while it sends arguments to a
    child, it would leave the child with half a message.
    """
    with defer_interrupts():
        if not hasattr(signal, "pthread_sigmask"):  # not on every operating system
            yield
            return
        # Python unblocks both signals when it starts this helper, so start it first.
        resource_tracker.ensure_running()
        # Children inherit the mask of this thread. Other threads still receive signals, which
        # Python raises here, so blocking alone does not defer them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, set(_INTERRUPTS))
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
