"""Embedding tables on the ranks of a captured step, and moving them."""

from __future__ import annotations

from dataclasses import dataclass, replace
import math
from typing import TYPE_CHECKING

from dse.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.machine.platforms import Platform
    from dse.trace.whatif._job import Job
    from dse.trace.whatif._lookups import Lookup, LookupTasks

#: A table is worth moving if the longer lookups of two ranks become shorter by this share.
_GAIN = 0.01
#: Fractions of a table below this are rounding.
_TINY = 1e-9


@dataclass(frozen=True, slots=True)
class TablePart:
    """One table, or columns of one.

    Attributes:
        share: Share of its columns; 1 for a whole table.
        indices: Rows that are read from it.
        dim: Columns of the part.
        weights: Values of the part.
    """

    share: float
    indices: float
    dim: float
    weights: float

    def cut(self, share: float) -> tuple[TablePart, TablePart]:
        """Returns so much of the table, and what is left: columns are divided, rows are not."""
        taken, left = share / self.share, 1.0 - share / self.share
        return (
            TablePart(share, self.indices, self.dim * taken, self.weights * taken),
            TablePart(self.share - share, self.indices, self.dim * left, self.weights * left),
        )

    def joined(self, other: TablePart) -> TablePart:
        """Returns both parts of one table together."""
        return TablePart(
            self.share + other.share,
            max(self.indices, other.indices),
            self.dim + other.dim,
            self.weights + other.weights,
        )


class Tables:
    """Which rank looks up which tables; the tables of one lookup are taken to be alike.

    What is moved to a rank comes to the end of its list, and the end of a list is moved first, so
    tables that are moved there and back are the same ones.

    Args:
        groups: Sharded lookups of all ranks.
    """

    def __init__(self, groups: Sequence[LookupTasks]) -> None:
        self._groups = tuple(groups)
        self._parts: dict[int, dict[tuple[int, int], TablePart]] = {}
        for at, group in enumerate(groups):
            one, parts = group.lookup, self._parts.setdefault(group.rank, {})
            count = one.tables
            for table in range(count):
                parts[at, table] = TablePart(
                    1.0, one.indices / count, one.total_dim / count, one.weights / count
                )

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks with lookups."""
        return tuple(self._parts)

    def count(self, rank: int) -> float:
        """Returns the number of tables of a rank; parts count as such."""
        return sum(part.share for part in self._parts[rank].values())

    def move(self, source: int, target: int, tables: float) -> None:
        """Moves tables, the last ones first; a fraction is a cut along the columns.

        Args:
            source: Rank that gives them.
            target: Rank that gets them.
            tables: How many.

        Raises:
            ConfigError: A rank has no lookups, both are the same, or the tables do not suffice.
        """
        for rank in (source, target):
            if rank not in self._parts:
                raise ConfigError(
                    f"rank {rank} has no sharded embedding lookup in the step; ranks "
                    f"{', '.join(map(str, self.ranks))} have"
                )
        if source == target:
            raise ConfigError(f"tables would move from rank {source} to itself")
        there = self.count(source)
        if tables > there + _TINY:
            raise ConfigError(
                f"rank {source} has {there:g} tables, so {tables:g} cannot move to rank {target}"
            )
        left = tables
        while left > _TINY and self._parts[source]:
            name, part = self._parts[source].popitem()
            taken = part
            if part.share > left + _TINY:
                taken, rest = part.cut(left)
                self._parts[source][name] = rest
            own = self._parts[target].pop(name, None)
            self._parts[target][name] = taken if own is None else own.joined(taken)
            left -= taken.share

    def lookups(self, rank: int) -> tuple[tuple[LookupTasks, Lookup], ...]:
        """Returns the lookups of a rank as they were and as they are now.

        What came from elsewhere is looked up by the first lookup of the rank.
        """
        mine = [(at, group) for at, group in enumerate(self._groups) if group.rank == rank]
        result = []
        for place, (at, group) in enumerate(mine):
            others = {other for other, _ in mine if other != at}
            parts = [
                part
                for (of, _), part in self._parts[rank].items()
                if of == at or (place == 0 and of not in others)
            ]
            result.append((group, _with_parts(group.lookup, parts)))
        return tuple(result)

    def weight_bytes(self, rank: int) -> tuple[int, int]:
        """Returns the bytes of the tables of a rank, before and now."""
        pairs = self.lookups(rank)
        return sum(g.lookup.weight_bytes for g, _ in pairs), sum(n.weight_bytes for _, n in pairs)

    def lookup_s(self, job: Job, rank: int, platform: Platform) -> float:
        """Returns the time of the lookups of a rank and their gradients, in seconds.

        Measured times, scaled by the kernel models.
        """
        total = 0.0
        for group, new in self.lookups(rank):
            for tasks, forward in ((group.forward, True), (group.backward, False)):
                old_s = group.lookup.call(forward=forward).time_s(platform)
                new_s = new.call(forward=forward).time_s(platform)
                total += sum(map(job.duration_of, tasks)) * (new_s / old_s if old_s else 1.0)
        return total

    def balance(self, job: Job, platform: Platform) -> list[tuple[int, int]]:
        """Moves whole tables from the slowest rank to the fastest while that helps.

        Every rank keeps one, and what helps by less than a hundredth is not worth a move.

        Args:
            job: The job.
            platform: Whose kernel models.

        Returns:
            Source and target of each move.
        """
        times = {rank: self.lookup_s(job, rank, platform) for rank in self.ranks}
        moves: list[tuple[int, int]] = []
        # Each move lowers the larger of two ranks, so this ends; the bound is for rounding.
        for _ in range(sum(math.ceil(self.count(rank)) for rank in self.ranks) ** 2):
            slow = max(times, key=lambda rank: (times[rank], -rank))
            fast = min(times, key=lambda rank: (times[rank], rank))
            if slow == fast or self.count(slow) < 2:
                break
            self.move(slow, fast, 1)
            after = {rank: self.lookup_s(job, rank, platform) for rank in (slow, fast)}
            if max(after.values()) > (1 - _GAIN) * times[slow]:
                self.move(fast, slow, 1)
                break
            times |= after
            moves.append((slow, fast))
        return moves


def _with_parts(lookup: Lookup, parts: Sequence[TablePart]) -> Lookup:
    return replace(
        lookup,
        tables=len(parts),
        indices=round(sum(part.indices for part in parts)),
        total_dim=round(sum(part.dim for part in parts)),
        weights=round(sum(part.weights for part in parts)),
    )
