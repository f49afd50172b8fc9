"""Exit codes, and SIGTERM as Ctrl-C."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


class ExitCode(IntEnum):
    """Exit codes of all commands."""

    SUCCESS = 0
    #: Nothing is feasible, a plan does not fit, a target is missed, or a validation failed.
    FAILED = 1
    BAD_INPUT = 2
    INTERRUPTED = 128 + signal.SIGINT
    TERMINATED = 128 + signal.SIGTERM


@dataclass(slots=True)
class Ending:
    """How a command is being ended.

    Attributes:
        exit_code: Exit code of the command when it was interrupted.
        requested: Whether a signal has come.
    """

    exit_code: int = ExitCode.INTERRUPTED
    requested: bool = False


@contextmanager
def terminable() -> Iterator[Ending]:
    """Turns SIGTERM into Ctrl-C within the block, and notes both."""
    ending = Ending()
    if threading.current_thread() is not threading.main_thread():
        yield ending
        return

    def end(number: int, frame: FrameType | None) -> None:
        ending.exit_code = ExitCode(128 + number)
        ending.requested = True
        raise KeyboardInterrupt

    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell may ignore it
        numbers.append(signal.SIGINT)
    former = {number: signal.signal(number, end) for number in numbers}
    try:
        yield ending
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
