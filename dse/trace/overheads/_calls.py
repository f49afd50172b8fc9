"""Kinds of calls: blocking, launching, and launching kernels."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from dse.trace.read import CALLS, DEVICE_WORK, Category

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.trace import Links, RankTrace

_WAITS = re.compile(r"Synchronize|^(cuda|hip|cu)Memcpy(?!.*(Async|Batch))")
#: Calls that allocate, load code or create streams; they belong to the start of a program.
_SET_UP = re.compile(
    r"(Malloc|Free|HostAlloc|HostRegister|HostUnregister|StreamCreate\w*|ModuleLoad\w*|"
    r"LibraryLoad\w*|MemAlloc\w*|MemMap|MemCreate|GetDeviceProperties\w*)(?!.*Async)"
)


def blocking_calls(trace: RankTrace, links: Links) -> NDArray[np.bool_]:
    """Returns which events are calls whose time is no overhead of an operator.

    Synchronisations and synchronous copies wait for the device (`.item()` makes both). A pageable
    copy waits if its call ends no earlier than the copy. Allocations and the loading of code are
    rare and long.

    Args:
        trace: The trace.
        links: Its links.

    Returns:
        Shape `(events,)`.
    """
    calls = trace.where(*CALLS)
    blocking = calls & trace.named(lambda name: _WAITS.search(name) or _SET_UP.search(name))
    pageable = trace.where(Category.MEMCPY) & trace.named(lambda name: "Pageable" in name)
    copies = np.flatnonzero(pageable & (links.launch >= 0))
    waited = trace.end_ns[links.launch[copies]] >= trace.end_ns[copies]
    blocking[links.launch[copies[waited]]] = True
    return blocking


def launching_calls(
    trace: RankTrace, links: Links, work: tuple[Category, ...] = DEVICE_WORK
) -> NDArray[np.bool_]:
    """Returns which events are calls that launched such work; shape `(events,)`."""
    result = np.zeros(len(trace), dtype=np.bool_)
    launched = trace.where(*work) & (links.launch >= 0)
    result[links.launch[launched]] = True
    result &= trace.where(*CALLS) & (trace.thread >= 0)
    return result
