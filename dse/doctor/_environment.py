"""Where `dse` runs: disk, folders, clock, loopback network, terminal."""

from __future__ import annotations

import contextlib
from itertools import pairwise
import os
from pathlib import Path
import shutil
import socket
import sys
import tempfile
import time
from typing import TYPE_CHECKING

from dse.doctor._types import Finding, Status, Topic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dse.doctor._machine import System

#: A study of some thousand trials takes some ten megabytes.
_LEAST_DISK_BYTES = 512 * 2**20

#: What a local Ray takes there, and more than torch's worker processes do.
_LEAST_SHARED_BYTES = 256 * 2**20

#: Resolution and cost of a reading above which short measurements suffer.
_LEAST_CLOCK_S = 1e-6
_CLOCK_READINGS = 2000


def environment_findings(system: System, folder: Path) -> Iterator[Finding]:
    """Yields what is to be said of the surroundings.

    Args:
        system: Where facts come from.
        folder: Folder that results are written to, whether there is one already or not.
    """
    yield _results(folder)
    yield _disk("disk", nearest_folder(folder), _LEAST_DISK_BYTES, "write to another disk, --out")
    shared = system.root / "dev/shm"
    if shared.is_dir():
        yield _disk(
            "shared memory",
            shared,
            _LEAST_SHARED_BYTES,
            "give the container more (docker run --shm-size 1g); Ray and torch's workers use it",
        )
    yield _clock(system)
    yield loopback()
    yield terminal(getattr(sys.stdout, "encoding", None) or "")


def nearest_folder(path: Path) -> Path:
    """Returns a path, or its nearest parent that exists."""
    for folder in (path, *path.absolute().parents):
        if folder.is_dir():
            return folder
    return Path("/")


def _results(folder: Path) -> Finding:
    place = nearest_folder(folder)
    if not folder.is_dir() and folder.exists():
        text = f"{folder} is a file; results go into a folder"
        return Finding(Topic.MACHINE, "results", Status.WARNING, text, "use --out FOLDER")
    try:
        # Permissions alone do not say it: disks may be mounted for reading only.
        with tempfile.NamedTemporaryFile(prefix=".dse_doctor_", dir=place):
            pass
    except OSError as error:
        text = f"{folder} cannot be written: {error.strerror or error}"
        return Finding(Topic.MACHINE, "results", Status.WARNING, text, "use --out FOLDER")
    return Finding(Topic.MACHINE, "results", Status.OK, f"{folder} can be written")


def _disk(subject: str, folder: Path, least_bytes: int, step: str) -> Finding:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        text = f"free space of {folder} is unknown: {error.strerror or error}"
        return Finding(Topic.MACHINE, subject, Status.WARNING, text)
    short = free < least_bytes
    return Finding(
        Topic.MACHINE,
        subject,
        Status.WARNING if short else Status.OK,
        f"{free / 2**30:.1f} GiB free",
        step if short else "",
    )


def _clock(system: System) -> Finding:
    source = system.read("sys/devices/system/clocksource/clocksource0/current_clocksource")
    readings = [time.perf_counter() for _ in range(_CLOCK_READINGS)]
    steps = [later - earlier for earlier, later in pairwise(readings)]
    # The median: the process may lose its core between two readings.
    cost_s = sorted(steps)[len(steps) // 2]
    return clock_finding(
        source.strip(), max(cost_s, time.get_clock_info("perf_counter").resolution)
    )


def clock_finding(source: str, resolution_s: float) -> Finding:
    """Says whether the clock is good enough to measure kernels.

    Args:
        source: Clock source of the kernel; empty if unknown.
        resolution_s: Between two readings of it.
    """
    named = f"{source}, " if source else ""
    coarse = resolution_s > _LEAST_CLOCK_S
    return Finding(
        Topic.MACHINE,
        "clock",
        Status.WARNING if coarse else Status.OK,
        f"{named}{1e9 * resolution_s:.0f} ns from reading to reading",
        "short kernels are measured badly; choose tsc or the hypervisor's own clock source"
        if coarse
        else "",
    )


def loopback() -> Finding:
    """Says whether processes of this machine can reach each other, as ranks over gloo do."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port), timeout=2) as client:
                accepted, _ = server.accept()
                with accepted:
                    client.sendall(b"1")
                    arrived = accepted.recv(1) == b"1"
    except OSError as error:
        return Finding(
            Topic.MACHINE,
            "loopback",
            Status.WARNING,
            f"no connection to 127.0.0.1: {error.strerror or error}",
            "allow local connections; validate, calibrate --collectives and Ray need them",
        )
    if not arrived:
        return Finding(Topic.MACHINE, "loopback", Status.WARNING, "127.0.0.1 loses what is sent")
    return Finding(Topic.MACHINE, "loopback", Status.OK, "127.0.0.1 connects, for ranks over gloo")


def terminal(encoding: str) -> Finding:
    """Says whether signs such as × and τ can be printed.

    Args:
        encoding: Of the standard output.
    """
    try:
        "×–±µτ…".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return Finding(
            Topic.MACHINE,
            "terminal",
            Status.WARNING,
            f"prints {encoding or 'ASCII'}, which lacks signs such as × and τ",
            "set PYTHONUTF8=1, or LANG=C.UTF-8",
        )
    width = shutil.get_terminal_size().columns
    narrow = sys.stdout.isatty() and width < 80
    with contextlib.suppress(ValueError, OSError):
        narrow = narrow or 0 < int(os.environ.get("COLUMNS", "0")) < 80
    return Finding(
        Topic.MACHINE,
        "terminal",
        Status.WARNING if narrow else Status.OK,
        f"{encoding}, {width} columns" + ("; tables wrap" if narrow else ""),
        "make it at least 80 columns wide, or use --json" if narrow else "",
    )
