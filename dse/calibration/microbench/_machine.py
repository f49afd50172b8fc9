"""This machine: its description, torch, and the memory of this process."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
import platform
import re

import numpy as np

from dse._process.system import available_cores, cpu_name, read_system_file
from dse._torch import load_torch
from dse.calibration.microbench.plan._points import MachineInfo
from dse.errors import CalibrationError

_CACHE_FOLDER = Path("/sys/devices/system/cpu/cpu0/cache")
_SIZE_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def describe_machine(device: str) -> MachineInfo:
    """Describes the machine at hand.

    Args:
        device: ``cpu`` or ``cuda``; of several GPUs the first is described.

    Raises:
        CalibrationError: There is no such device.
        OptionalDependencyError: torch is not installed.
    """
    torch = load_torch()
    libraries = (
        ("python", platform.python_version()),
        ("torch", str(torch.__version__)),
        ("numpy", np.__version__),
    )
    cores = available_cores()
    # Without the distributor's suffix, which says nothing of speed.
    release = platform.release().split("-")[0]
    system = f"{platform.system()} {release} {platform.machine()}"
    if device == "cpu":
        return MachineInfo(
            device="cpu",
            device_name=cpu_name(),
            device_count=1,
            compute_units=cores,
            driver="",
            cores=cores,
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            last_level_cache_bytes=_last_level_cache_bytes(_CACHE_FOLDER),
            operating_system=system,
            libraries=libraries,
        )
    if not torch.cuda.is_available():
        raise CalibrationError("torch finds no CUDA device on this machine; use the device cpu")
    properties = torch.cuda.get_device_properties(0)
    return MachineInfo(
        device="cuda",
        device_name=str(properties.name),
        device_count=int(torch.cuda.device_count()),
        compute_units=int(properties.multi_processor_count),
        driver=_driver_version(),
        cores=cores,
        memory_bytes=int(properties.total_memory),
        last_level_cache_bytes=int(properties.L2_cache_size),
        operating_system=system,
        libraries=(
            *libraries,
            ("cuda", str(torch.version.cuda)),
            ("nccl", ".".join(str(part) for part in torch.cuda.nccl.version())),
        ),
    )


def _last_level_cache_bytes(folder: Path) -> int:
    """Size of the highest cache level that the first core sees, 0 when the system does not say."""
    sizes = [(0, 0)]
    for index in folder.glob("index*"):
        size = re.fullmatch(r"(\d+)([KMG]?)", read_system_file(index / "size"))
        level = read_system_file(index / "level")
        if size and level.isdigit():
            sizes.append((int(level), int(size[1]) * _SIZE_UNITS[size[2]]))
    return max(sizes)[1]


def _driver_version() -> str:
    text = read_system_file("proc/driver/nvidia/version")
    found = re.search(r"Kernel Module.*?(\d+\.\d+[.\d]*)", text)
    return found[1] if found else ""


#: Parameters of glibc's mallopt, from malloc.h.
_TRIM_THRESHOLD = -1
_MMAP_MAX = -4


def keep_freed_memory() -> bool:
    """Makes this process keep freed memory until it ends.

    The C library returns large blocks to the system when they are freed, so that every result of
    more than 32 MiB is paid for by page faults: a tenth of the speed from one size on. Training
    processes avoid that by an allocator that keeps its memory (jemalloc, tcmalloc).

    Returns:
        Whether the C library took the settings; false where it is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # No separate mappings for large requests, and no trimming of the heap.
    return bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, 2**31 - 1))
