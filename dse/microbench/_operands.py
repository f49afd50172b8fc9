"""The callable of a point, and the caches that it finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
import zlib

import numpy as np

from dse.hardware import Precision
from dse.microbench._kernels import make_kernel
from dse.microbench._machine import describe_machine
from dse.microbench._torch import load_torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from dse.microbench._types import KernelPoint

#: Operators whose operands other tables have driven out of the caches when it is their turn.
_COLD_OPERATORS = frozenset({"embedding_forward", "embedding_backward"})

#: Size of a last cache that the system does not tell.
_ASSUMED_CACHE_BYTES = 2**25

#: A table that is used after that, so that only data are cold and not the code.
_SMALL_TABLE = {
    "rows": 1000.0,
    "dim": 16.0,
    "batch": 32.0,
    "pooling": 2.0,
    "alpha": 0.0,
    "value_bytes": 4.0,
}


def point_kernel(point: KernelPoint, device: str, seed: int) -> Callable[[], object]:
    """Makes the operands of a point, which depend on the seed and the point only."""
    number = zlib.crc32(repr((point.op, point.sizes, point.precision)).encode())
    rng = np.random.default_rng((seed, number))
    return make_kernel(point.op, dict(point.sizes), point.precision, device, rng)


@dataclass(frozen=True, slots=True)
class OtherTables:
    """What happens to the caches of a CPU between two lookups of a table, in this order.

    Attributes:
        evict: Writes twice what the last cache holds, together with its sharers.
        warm_code: Uses a small table.
    """

    evict: Callable[[], object]
    warm_code: Callable[[], object]

    def __call__(self) -> None:
        """Does both."""
        self.evict()
        self.warm_code()


class ColdCaches:
    """Brings the caches of a CPU into the state that other tables leave behind.

    Args:
        seed: Seed of the operands.
        sharers: Processes that share the last cache and empty it together.
    """

    def __init__(self, seed: int, sharers: int = 1) -> None:
        self._seed, self._sharers = seed, sharers
        self._made: dict[str, OtherTables] = {}

    def before(self, op: str) -> OtherTables | None:
        """Returns what is called before each call of an operator, None if caches stay warm."""
        if op not in _COLD_OPERATORS:
            return None
        if op not in self._made:
            torch = load_torch()
            cache_bytes = describe_machine("cpu").last_level_cache_bytes
            block_bytes = 2 * (cache_bytes or _ASSUMED_CACHE_BYTES) // self._sharers
            block = torch.empty(block_bytes, dtype=torch.int8)
            rng = np.random.default_rng(self._seed)
            small = make_kernel(op, _SMALL_TABLE, Precision.FP32, "cpu", rng)
            self._made[op] = OtherTables(block.zero_, small)
        return self._made[op]
