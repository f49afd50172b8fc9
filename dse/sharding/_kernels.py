"""Compute kernels by name: those that are modelled, and what is nearest to the others."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from dse.sharding._plan import ComputeKernel

_ON_SSD = (
    "keeps rows on SSD behind caches in host and device memory, which is not modelled; "
    "the nearest is `fused_uvm_caching`, whose `cache_load_factor` is the share of rows in the "
    "device's cache: all other rows are then in host memory, so times are lower bounds"
)

#: Kernels of TorchRec that are refused with the nearest that is modelled.
_REFUSED = {
    "key_value": _ON_SSD,
    "ssd_virtual_table": _ON_SSD,
    "dram_virtual_table": (
        "keeps rows of a hash table without a fixed size in host memory, which is not modelled; "
        "the nearest is `fused_uvm_caching`, with the rows that the table comes to hold"
    ),
}


def refused_kernels() -> frozenset[str]:
    """Returns the kernels of TorchRec that are refused by name."""
    return frozenset(_REFUSED)


def kernel_problem(name: str) -> str:
    """Returns why a compute kernel that is none of `ComputeKernel` cannot be predicted."""
    if name in _REFUSED:
        return f"compute kernel `{name}` {_REFUSED[name]}"
    offered = ", ".join(f"`{known.value}`" for known in ComputeKernel)
    why = "serves inference only" if name.startswith("quant") else "is not modelled"
    return f"compute kernel `{name}` {why}; use one of {offered}"


def _not_refused(value: object) -> object:
    if isinstance(value, str) and value in _REFUSED:
        raise PydanticCustomError("kernel", kernel_problem(value))
    return value


#: A compute kernel in a file.
KernelName = Annotated[ComputeKernel, BeforeValidator(_not_refused)]
