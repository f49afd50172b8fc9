"""This machine, as its operating system describes it, and the environment of processes."""

from __future__ import annotations

from contextlib import contextmanager
import os
from pathlib import Path
import platform
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path("/")


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Sets variables of the environment in the block, and what they were after it."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def read_system_file(path: str | Path, root: Path = ROOT) -> str:
    """Returns the text of a file below the root; empty if it cannot be read."""
    try:
        return (root / path).read_text(errors="replace").strip()
    except OSError:
        return ""


def cpu_name(root: Path = ROOT) -> str:
    """Returns the model of the processor."""
    cores = read_system_file("proc/cpuinfo", root)
    found = re.search(r"^model name\s*:\s*(.+)$", cores, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or "unknown processor"


def memory_bytes(figure: str, root: Path = ROOT) -> int | None:
    """Returns a figure of the memory, such as `MemTotal`, in bytes; None if it is unknown."""
    figures = read_system_file("proc/meminfo", root)
    found = re.search(rf"^{figure}:\s*(\d+) kB$", figures, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def available_cores() -> int:
    """Returns the logical cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every operating system
        return os.cpu_count() or 1
