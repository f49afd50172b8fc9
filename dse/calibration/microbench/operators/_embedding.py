"""Benchmarks of embedding lookup and update.

In training every iteration brings other lookups. So does every call here: a pool of draws is cut
into index sets that take turns. On a GPU the pool is large enough that the rows of all sets
together do not fit into a cache of twice the usual size, unless the whole table does; so a row is
found in the cache when it is popular or the table is small, not because the same set came before.
On a CPU caches are emptied before every call of a session, and a few sets are enough: they differ
in how many rows are drawn twice, no more.

Row numbers are scattered over the table, as hashing does: popular rows are not neighbours.
"""

from __future__ import annotations

from itertools import cycle
import math
from typing import TYPE_CHECKING, Any

from dse._torch import load_torch
from dse.indices import Uniform, Zipf

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from dse.calibration.microbench.operators._values import Operands

#: Bytes of table rows that the index sets touch together, at least.
_ROTATED_BYTES = 128 * 2**20

#: Index sets where no call finds what others have left in the caches.
_COLD_SETS = 4

#: Draws in the pool at most, beyond two sets.
_MAX_DRAWS = 2**20

#: Learning rate; so small that a table stays what it was however often it is updated.
LEARNING_RATE = 1e-6


def embedding_forward(sizes: Mapping[str, float], operands: Operands) -> Callable[[], Any]:
    """Sum-pooled lookup of one table by ``torch.nn.functional.embedding_bag``.

    Indices and offsets are 64-bit integers and lie on the device. `precision` has no meaning:
    ``value_bytes`` decides the type of the table.
    """
    bags = _Bags(sizes, operands)
    rotation = cycle(bags.index_sets)

    def call() -> Any:
        return bags.lookup(next(rotation))

    return call


def embedding_backward(sizes: Mapping[str, float], operands: Operands) -> Callable[[], Any]:
    """Gradient of one table, and SGD on the rows it touches.

    The timed part makes the gradient of every lookup from that of its bag, coalesces them (a sort
    and a sum by row) and adds the sums to the touched rows of the table: what autograd and an
    optimizer for sparse gradients do, without their own time on the host.
    """
    torch = load_torch()
    bags = _Bags(sizes, operands)
    rotation = cycle(bags.index_sets)
    gradient = torch.ones((bags.batch, bags.dim), device=operands.device)
    table = bags.table

    def call() -> Any:
        indices = next(rotation)
        every = gradient.index_select(0, bags.bag_of_lookup())
        sparse = torch.sparse_coo_tensor(
            indices[None], every, table.shape, check_invariants=False
        ).coalesce()
        values = sparse.values().to(table.dtype)
        table.index_add_(0, sparse.indices()[0], values, alpha=-LEARNING_RATE)
        return table

    return call


class _Bags:
    """A table and the index sets that are looked up in it in turn."""

    def __init__(self, sizes: Mapping[str, float], operands: Operands) -> None:
        torch = self._torch = load_torch()
        rows, pooling = int(sizes["rows"]), int(sizes["pooling"])
        self.batch, self.dim = int(sizes["batch"]), int(sizes["dim"])
        value_bytes = int(sizes.get("value_bytes", 4))
        dtype = {4: torch.float32, 2: torch.float16}[value_bytes]
        # One value everywhere: filling is cheap, and arithmetic does not depend on it.
        self.table = torch.full((rows, self.dim), 0.5, dtype=dtype, device=operands.device)
        lookups = self.batch * pooling
        draws = _COLD_SETS * lookups
        if operands.device != "cpu":
            draws = _draws(lookups, self.dim * value_bytes)
        pool = torch.from_numpy(_pool(rows, draws, float(sizes["alpha"]), operands.rng))
        self.index_sets = pool.to(operands.device).split(lookups)
        self._offsets = torch.arange(0, lookups, pooling, device=operands.device)
        self._lengths = torch.full((self.batch,), pooling, device=operands.device)
        self._lookups = lookups

    def lookup(self, indices: Any) -> Any:
        return self._torch.nn.functional.embedding_bag(
            indices, self.table, self._offsets, mode="sum"
        )

    def bag_of_lookup(self) -> Any:
        """Returns the number of each lookup's bag."""
        torch = self._torch
        bag = torch.arange(self.batch, device=self._lengths.device)
        return torch.repeat_interleave(bag, self._lengths, output_size=self._lookups)


def _draws(lookups: int, row_bytes: int) -> int:
    """Draws in the pool: enough to touch `_ROTATED_BYTES`, a whole number of sets, at least 2."""
    wanted = min(_ROTATED_BYTES // row_bytes, _MAX_DRAWS)
    return lookups * max(2, math.ceil(wanted / lookups))


def _pool(rows: int, draws: int, alpha: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draws row numbers by popularity and scatters them over the table."""
    distribution = Zipf(alpha) if alpha > 0 else Uniform()
    return distribution.sample(rng, rows, draws)
