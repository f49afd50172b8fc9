"""Embedding tables on the ranks of a captured step: moving them, and what that changes."""

from __future__ import annotations

from dataclasses import dataclass, replace
import math
from typing import TYPE_CHECKING

from dse.errors import ConfigError
from dse.trace import COMPUTING, TaskRole, TrainingPhase
from dse.trace.whatif.core import Selector
from dse.trace.whatif.retime._collectives import resize_collectives
from dse.trace.whatif.retime._kernels import describe_inputs, kernel_times, retime_kernels
from dse.trace.whatif.retime._lookups import ChangedLookups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.machine import Cluster
    from dse.machine.platforms import Platform
    from dse.trace import CollectiveInfo, OperatorInputs
    from dse.trace.whatif.core import StepEditor
    from dse.trace.whatif.retime._lookups import Lookup, LookupTasks

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
        """Returns a share of the table and the rest: columns are divided, rows are not."""
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
    """Assignment of tables to ranks; the tables of one lookup are taken to be alike.

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

        Tables from other ranks join the first lookup of the rank.
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

    def lookup_s(self, editor: StepEditor, rank: int, platform: Platform) -> float:
        """Returns the time of the lookups of a rank and their gradients, in seconds.

        Measured times, scaled by the kernel models.
        """
        total = 0.0
        for group, new in self.lookups(rank):
            for tasks, forward in ((group.forward, True), (group.backward, False)):
                old_s = group.lookup.call(forward=forward).time_s(platform)
                new_s = new.call(forward=forward).time_s(platform)
                total += sum(map(editor.duration_of, tasks)) * (new_s / old_s if old_s else 1.0)
        return total

    def balance(self, editor: StepEditor, platform: Platform) -> list[tuple[int, int]]:
        """Moves whole tables from the slowest rank to the fastest while that helps.

        Every rank keeps one table, and a gain below one percent is not worth a move.

        Args:
            editor: The captured step.
            platform: Whose kernel models.

        Returns:
            Source and target of each move.
        """
        times = {rank: self.lookup_s(editor, rank, platform) for rank in self.ranks}
        moves: list[tuple[int, int]] = []
        # Each move lowers the larger of two ranks, so this ends; the bound is for rounding.
        for _ in range(sum(math.ceil(self.count(rank)) for rank in self.ranks) ** 2):
            slow = max(times, key=lambda rank: (times[rank], -rank))
            fast = min(times, key=lambda rank: (times[rank], rank))
            if slow == fast or self.count(slow) < 2:
                break
            self.move(slow, fast, 1)
            after = {rank: self.lookup_s(editor, rank, platform) for rank in (slow, fast)}
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


# --- re-timing ----------------------------------------------------------------------------------


def retime_lookups(
    editor: StepEditor, pairs: Sequence[tuple[LookupTasks, Lookup]], platform: Platform
) -> None:
    """Re-times lookups, and what handles their indices and results on the same rank.

    Args:
        editor: The captured step.
        pairs: Each lookup with its work after the change.
        platform: Whose kernel models.
    """
    changed = ChangedLookups(pairs)
    after: dict[int, OperatorInputs] = {}
    for task in editor.select(Selector(role=COMPUTING)):
        inputs = editor.inputs_of(task)
        if inputs is not None:
            new = changed.inputs_after(editor, task, inputs)
            if new is not inputs:
                after[task] = new
    # A rank without tables has no lookup any more, but its tasks are still there. Gradients are
    # read together with the lookups, whether their inputs change or not.
    lookups = {task: new for group, new in pairs for task in group.tasks}
    tasks = tuple({**after, **lookups})
    before_s = kernel_times(editor, tasks, platform)
    for task, inputs in after.items():
        describe_inputs(editor, task, inputs)
    retime_kernels(editor, tasks, before_s, kernel_times(editor, tasks, platform, lookups=lookups))


def retime_all_to_alls(
    editor: StepEditor, pairs: Sequence[tuple[LookupTasks, Lookup]], cluster: Cluster
) -> bool:
    """Re-times the all-to-alls of indices, lengths, pooled results and their gradients.

    Args:
        editor: The captured step.
        pairs: Each lookup with its work after the change.
        cluster: Cluster that the step runs on.

    Returns:
        Whether any all-to-all carries pooled results.
    """
    work = _rank_work(pairs)
    after: dict[int, CollectiveInfo] = {}
    pooled = False
    for members in editor.by_collective(editor.select(Selector(role=(TaskRole.COLLECTIVE,)))):
        infos = {task: info for task in members if (info := editor.collective_of(task))}
        mine = {task: info for task, info in infos.items() if editor.rank_of(task) in work}
        if not mine or any(info.operation != "all_to_all" for info in infos.values()):
            continue
        kind = _kind_of(editor, mine, work)
        pooled |= kind == "result"
        for task, info in mine.items() if kind else ():
            after[task] = _resharded(info, kind, work[editor.rank_of(task)])
    if after:
        resize_collectives(editor, after, cluster)
    return pooled


#: Values of one rank's lookups before and after: indices, bags, pooled results.
_Work = dict[str, tuple[int, int]]


def _rank_work(pairs: Sequence[tuple[LookupTasks, Lookup]]) -> dict[int, _Work]:
    result: dict[int, _Work] = {}
    for group, new in pairs:
        old, known = group.lookup, result.setdefault(group.rank, {})
        figures = {
            "result": (old.batch * old.total_dim, new.batch * new.total_dim),
            "indices": (old.indices, new.indices),
            "lengths": (old.tables * old.batch, new.tables * new.batch),
        }
        for name, (before, after) in figures.items():
            total = known.get(name, (0, 0))
            known[name] = (total[0] + before, total[1] + after)
    return result


def _kind_of(editor: StepEditor, mine: dict[int, CollectiveInfo], work: dict[int, _Work]) -> str:
    """Returns what an all-to-all carries: by its sizes on all ranks, its type and its phase."""

    def fits(kind: str, *, sent: bool) -> bool:
        return all(
            (info.input_elements if sent else info.output_elements)
            == work[editor.rank_of(task)][kind][0]
            for task, info in mine.items()
        )

    integers = all(info.dtype in ("int32", "int64") for info in mine.values())
    if integers:
        return next((kind for kind in ("indices", "lengths") if fits(kind, sent=False)), "")
    backward = all(editor.phase_of(task) == TrainingPhase.BACKWARD for task in mine)
    if backward:
        return "gradient" if fits("result", sent=False) else ""
    return "result" if fits("result", sent=True) else ""


def _resharded(info: CollectiveInfo, kind: str, work: _Work) -> CollectiveInfo:
    """Returns an all-to-all with the side that depends on the tables of its rank."""
    figure = work["result" if kind == "gradient" else kind][1]
    if kind != "result":
        return replace(info, output_elements=figure, output_splits=())
    value_bytes = info.message_bytes / info.input_elements if info.input_elements else 0
    size = round(figure * value_bytes) if info.message_bytes >= 0 else -1
    return replace(info, input_elements=figure, input_splits=(), message_bytes=size)
