"""Memory that is freed stays with the process."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

#: Prints the page faults of ten times eight arrays of 2 MiB, which are freed together.
PROGRAM = """
import resource
from dse._process.memory import keep_freed_memory
{first}
def use():
    arrays = [b"x" * 2**21 for _ in range(8)]
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(first: str = "") -> int:
    """Of a process of its own: this one may have freed large blocks before."""
    program = PROGRAM.format(first=first)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have other limits")
def test_what_was_freed_is_used_again_without_page_faults():
    assert page_faults("keep_freed_memory()") < page_faults() / 10
