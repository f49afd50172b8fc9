"""Signals of what a server forks; the server imports this, nothing else does.

A server that we start blocks SIGINT and SIGTERM, so that Ctrl-C during its imports prints no
traceback, and its forks begin with that. Our processes unblock both when they have their own
handlers. Processes that the calling program asks of the same server know nothing of it.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.util import register_after_fork
import signal

from dse._processes import OWN_PREFIX


def _unblock_others(_: object) -> None:
    if not multiprocessing.current_process().name.startswith(OWN_PREFIX):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})


register_after_fork(_unblock_others, _unblock_others)
