"""Limits of the control groups of this process, as containers and schedulers set them.

Both versions of control groups are read. Every function takes what reads a file under the root of
the file system and returns nothing where there is none, so that tests can give other files.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def read_system_file(path: str) -> str:
    """Returns the text of a file under the root, nothing if it cannot be read."""
    try:
        return (Path("/") / path).read_text(errors="replace")
    except OSError:
        return ""


def memory_limits_bytes(read: Callable[[str], str] = read_system_file) -> Iterator[int]:
    """Yields the limits of memory, in bytes."""
    for folder in _folders("memory", read):
        for file in ("memory.max", "memory.limit_in_bytes"):
            text = read(f"{folder}/{file}").strip()
            if text.isdecimal() and int(text) > 0:
                yield int(text)


def processor_shares(read: Callable[[str], str] = read_system_file) -> Iterator[float]:
    """Yields the cores that quotas of processor time amount to."""
    for folder in _folders("cpu", read):
        words = read(f"{folder}/cpu.max").split() or [
            read(f"{folder}/cpu.cfs_quota_us").strip(),
            read(f"{folder}/cpu.cfs_period_us").strip(),
        ]
        if len(words) == 2 and all(word.isdecimal() and int(word) > 0 for word in words):
            yield int(words[0]) / int(words[1])


def _folders(controller: str, read: Callable[[str], str]) -> Iterator[str]:
    """Yields the folders of this process's control groups and their parents, of both versions."""
    for line in read("proc/self/cgroup").splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        if not parts[1]:
            base = "sys/fs/cgroup"
        elif controller in parts[1].split(","):
            base = f"sys/fs/cgroup/{controller}"
        else:
            continue
        # A container sees its own group as the root, whatever the path says.
        path = [part for part in parts[2].split("/") if part not in ("", "..")]
        for length in range(len(path), -1, -1):
            yield "/".join([base, *path[:length]])
