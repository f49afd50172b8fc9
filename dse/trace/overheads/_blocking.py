"""Which calls only wait, and which belong to the start of a program."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from dse.trace import Category

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.trace import Links, RankTrace

_WAITS = re.compile(r"Synchronize|^(cuda|hip|cu)Memcpy(?!.*(Async|Batch))")
#: Calls that allocate, load code or make streams: the first steps make them, later ones do not.
_SET_UP = re.compile(
    r"(Malloc|Free|HostAlloc|HostRegister|HostUnregister|StreamCreate\w*|ModuleLoad\w*|"
    r"LibraryLoad\w*|MemAlloc\w*|MemMap|MemCreate|GetDeviceProperties\w*)(?!.*Async)"
)
_CALLS = (Category.RUNTIME, Category.DRIVER)
_WORK = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)


def blocking_calls(trace: RankTrace, links: Links) -> NDArray[np.bool_]:
    """Says which events are calls whose time is no overhead of an operator.

    Synchronisations and synchronous copies wait for the device, whoever made them (`.item()`
    makes both). A pageable copy waits if its call ends no earlier than the copy. Allocations and
    the loading of code are rare and long.

    Args:
        trace: The trace.
        links: Its links.

    Returns:
        Shape `(events,)`.
    """
    calls = trace.where(*_CALLS)
    by_name = np.array(
        [bool(_WAITS.search(name) or _SET_UP.search(name)) for name in trace.names], dtype=np.bool_
    )
    pageable = np.array(["Pageable" in name for name in trace.names], dtype=np.bool_)
    blocking = calls & by_name[trace.name]
    copies = np.flatnonzero(
        trace.where(Category.MEMCPY) & pageable[trace.name] & (links.launch >= 0)
    )
    waited = trace.end_ns[links.launch[copies]] >= trace.end_ns[copies]
    blocking[links.launch[copies[waited]]] = True
    return blocking


def launching_calls(trace: RankTrace, links: Links) -> NDArray[np.bool_]:
    """Says which events are calls that launched work of a device; shape `(events,)`."""
    result = np.zeros(len(trace), dtype=np.bool_)
    launched = trace.where(*_WORK) & (links.launch >= 0)
    result[links.launch[launched]] = True
    result &= trace.where(*_CALLS) & (trace.thread >= 0)
    return result


def kernel_calls(trace: RankTrace, links: Links) -> NDArray[np.bool_]:
    """Says which events are calls that launched kernels; shape `(events,)`."""
    result = np.zeros(len(trace), dtype=np.bool_)
    launched = trace.where(Category.KERNEL) & (links.launch >= 0)
    result[links.launch[launched]] = True
    return result
