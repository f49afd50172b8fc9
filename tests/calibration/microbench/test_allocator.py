"""Keeping freed memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: Page faults of filling and freeing 64 MiB five times, after a first time.
_PROGRAM = """
import ctypes, resource, sys
from dse.calibration.microbench._machine import keep_freed_memory
kept = keep_freed_memory() if sys.argv[1] == "keep" else None
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
def once():
    block = libc.malloc(64 * 2**20)
    ctypes.memset(block, 1, 64 * 2**20)
    libc.free(block)
once()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    once()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode: str) -> tuple[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, mode], capture_output=True, text=True, check=True
    )
    kept, count = done.stdout.split()
    return kept, int(count)


@pytest.mark.slow
def test_large_blocks_are_kept():
    kept, count = faults("keep")
    if kept == "False":
        pytest.skip("the C library has no such settings")
    # Without it each of the five blocks is paid for page by page, or by huge pages.
    assert count < faults("leave")[1] / 4
