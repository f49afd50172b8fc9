"""SIGTERM as Ctrl-C: a command that is told to end keeps what it has."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

#: Exit codes of what a signal has ended: 128 and its number.
EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_TERMINATED = 128 + signal.SIGTERM


class Terminated(KeyboardInterrupt):
    """SIGTERM came; whoever takes Ctrl-C takes this too."""


@dataclass(slots=True)
class Ending:
    """How a command is being ended.

    Attributes:
        exit_code: Of the command when it was interrupted.
    """

    exit_code: int = EXIT_INTERRUPTED


@contextmanager
def terminable() -> Iterator[Ending]:
    """Turns SIGTERM into :class:`Terminated` within the block."""
    ending = Ending()
    if threading.current_thread() is not threading.main_thread():
        yield ending
        return

    def end(number: int, frame: FrameType | None) -> None:
        ending.exit_code = EXIT_TERMINATED
        raise Terminated

    former = signal.signal(signal.SIGTERM, end)
    try:
        yield ending
    finally:
        signal.signal(signal.SIGTERM, former)
