"""Call of a point, and the state of the caches before it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING
import zlib

import numpy as np

from dse._torch import load_torch
from dse.calibration.microbench._machine import describe_machine
from dse.calibration.microbench.operators._dense import make_kernel
from dse.machine import Precision

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dse.calibration.microbench.plan._points import KernelPoint

#: Operators whose operands other tables have evicted from the caches before each call.
_COLD_OPERATORS = frozenset(
    {"embedding_forward", "embedding_backward", "fbgemm_forward", "fbgemm_backward"}
)

#: Size of a last-level cache that the system does not report.
_ASSUMED_CACHE_BYTES = 2**25

#: Rows, width, batch and pooling of the tables whose turn it is before, from a few hundred lookups
#: to some ten thousand. What they leave behind differs: code and freed memory in the caches are of
#: use to a table of the same size and less so to a smaller one.
_NEIGHBOURS = (
    (10_000, 32, 256, 2),
    (30_000, 64, 256, 8),
    (100_000, 32, 512, 20),
    (100_000, 64, 512, 60),
)
_NEIGHBOUR_ALPHA = 0.9


def point_kernel(point: KernelPoint, device: str, seed: int) -> Callable[[], object]:
    """Makes the operands of a point, which depend on the seed and the point only."""
    number = zlib.crc32(repr((point.op, point.sizes, point.precision)).encode())
    rng = np.random.default_rng((seed, number))
    return make_kernel(point.op, dict(point.sizes), point.precision, device, rng)


@dataclass(frozen=True, slots=True)
class OtherTables:
    """What happens to a CPU between two lookups of a table, in this order.

    Attributes:
        evict: Writes twice what the last cache holds, together with its sharers.
        neighbour: Does the same with another table, of each of some sizes in turn.
    """

    evict: Callable[[], object]
    neighbour: Callable[[], object]

    def __call__(self) -> None:
        """Does both."""
        self.evict()
        self.neighbour()


class ColdCaches:
    """Brings a CPU into the state that other tables leave behind.

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
            self._made[op] = OtherTables(block.zero_, _in_turn(self._neighbours(op)))
        return self._made[op]

    def _neighbours(self, op: str) -> list[Callable[[], object]]:
        names = ("rows", "dim", "batch", "pooling")
        same = {"alpha": _NEIGHBOUR_ALPHA, "value_bytes": 4.0}
        rng = np.random.default_rng(self._seed)
        return [
            make_kernel(
                op,
                dict(zip(names, map(float, sizes), strict=True)) | same,
                Precision.FP32,
                "cpu",
                rng,
            )
            for sizes in _NEIGHBOURS
        ]


def _in_turn(calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
    turn = cycle(calls)
    return lambda: next(turn)()
