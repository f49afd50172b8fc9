"""Signals and errors of a fork server and its forks; only the server imports this.

A server that we start blocks SIGINT and SIGTERM, so that Ctrl-C during its imports prints no
traceback, and its forks begin with that. Our processes unblock both when they have their own
handlers. Processes that the calling program asks of the same server know nothing of it.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.util import register_after_fork
import signal
import sys
from typing import TYPE_CHECKING

from dse._process.starting import OWN_PREFIX

if TYPE_CHECKING:
    from types import TracebackType


def _unblock_others(_: object) -> None:
    if not multiprocessing.current_process().name.startswith(OWN_PREFIX):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})


def _end_quietly(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Ends the server without a traceback where the system gives it no further process.

    Who has asked for one says so.
    """
    if not issubclass(kind, OSError):
        sys.__excepthook__(kind, error, trace)


def _as_usual(_: object) -> None:
    sys.excepthook = sys.__excepthook__


sys.excepthook = _end_quietly
register_after_fork(_end_quietly, _as_usual)
register_after_fork(_unblock_others, _unblock_others)
