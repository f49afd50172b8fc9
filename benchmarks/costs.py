"""What work costs: processor time and memory, of a call, of this process, and of a command."""

from __future__ import annotations

import os
from pathlib import Path
import resource
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from folders import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

#: The operating system counts the largest memory of a process in kilobytes; macOS in bytes.
_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024


def load() -> str:
    """Returns how busy this machine was in the last minutes, in words."""
    return f"load of the machine at the end {', '.join(f'{one:.1f}' for one in os.getloadavg())}"


def processor_s(work: Callable[[], object]) -> float:
    """Returns the processor time of a call, which other programs disturb least."""
    begun_s = time.process_time()
    work()
    return time.process_time() - begun_s


def peak_bytes() -> int:
    """Returns the most resident memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT_BYTES


def resident_bytes(process: Path = Path("/proc/self")) -> int:
    """Returns the resident memory of a process.

    Args:
        process: Its folder under `/proc`.

    Raises:
        OSError: It has ended.
    """
    return int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def command_cost(*arguments: str, codes: Collection[int] = (0,)) -> tuple[float, int]:
    """Runs `dse`; returns its seconds of processor time and its peak of resident memory.

    Args:
        arguments: Of the command.
        codes: With which it may end.

    Raises:
        SystemExit: It ended with another code.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "dse", *arguments]
    child = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    if (code := os.waitstatus_to_exitcode(status)) not in codes:
        raise SystemExit(f"dse {' '.join(arguments)} ended with {code}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss * _UNIT_BYTES
