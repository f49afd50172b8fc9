"""Versions of communication libraries, as measurements and platforms name them."""

from __future__ import annotations

#: What a version looks like: numbers with dots.
NCCL_VERSION = r"\d{1,4}(\.\d{1,4}){0,3}"

#: In the place of a version: the newest one that was measured.
NEWEST = "newest"


def version_parts(version: str) -> tuple[int, ...]:
    """Returns the numbers of a version, by which versions are ordered; none of an unknown one."""
    return tuple(int(part) for part in version.split(".") if part)


def is_version(version: str, wanted: str) -> bool:
    """Returns whether a version is the wanted one, or one of it: 2.27.3 is a version 2.27."""
    parts = version_parts(wanted)
    return version_parts(version)[: len(parts)] == parts
