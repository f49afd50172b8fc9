"""Keeps cores awake: ``python _awake.py STARTER CORE...``, a process for each, ended with STARTER.

They belong to the scheduler's idle class: whatever else wants to run does so at once. Nothing of
this package is imported, because this is started for every measurement.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

#: Number of the Linux call that has a process ended with its parent.
_PR_SET_PDEATHSIG = 1


def _keep_awake(starter: int, cores: list[int]) -> None:
    # First of all, and without it nothing: at another class this would take time from the ranks.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    _end_with(starter)
    own, *others = cores
    parent = os.getpid()
    for core in others:
        if os.fork() == 0:
            _end_with(parent)
            own = core
            break
    os.sched_setaffinity(0, {own})
    while True:
        pass


def _end_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


if __name__ == "__main__":
    _keep_awake(int(sys.argv[1]), [int(core) for core in sys.argv[2:]])
