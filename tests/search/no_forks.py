"""Imported by a server of forks: the system has no room for a process, as under `ulimit -u`."""

from __future__ import annotations

import errno
import os


def _refused():
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


os.fork = _refused
