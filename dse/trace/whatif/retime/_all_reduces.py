"""All-reduces of a captured step, and what replaces them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dse.errors import ConfigError
from dse.graph import union_length
from dse.trace import TaskRole
from dse.trace.whatif.core import Selector
from dse.trace.whatif.retime._collectives import collective_model_s

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dse.machine import Cluster
    from dse.trace import CollectiveInfo
    from dse.trace.whatif.core import StepEditor

#: All-reduces that overlap by less than a hundredth were measured one after the other.
_ALONE = 0.99


@dataclass(frozen=True, slots=True)
class AllReduce:
    """One all-reduce.

    Attributes:
        tasks: Its tasks, one for each traced rank.
        info: Operation, size and group; of several tasks the largest.
        group_size: Ranks that take part, traced or not.
        model_s: Its transfer by the platform's model, in seconds.
        transfer_s: Measured transfer of each task; where only one rank was traced, at most what
            the model says.
        wait_s: The rest of the duration of each task.
    """

    tasks: tuple[int, ...]
    info: CollectiveInfo
    group_size: int
    model_s: float
    transfer_s: tuple[float, ...]
    wait_s: tuple[float, ...]

    def insert(
        self,
        editor: StepEditor,
        name: str,
        info: CollectiveInfo,
        share: float,
        *,
        stream: str | None = None,
        after: Sequence[Iterable[int]],
        before: Sequence[Iterable[int]] | None = None,
        first: bool = True,
    ) -> list[int]:
        """Inserts a collective that takes the place of this one, or of a part of it.

        Args:
            editor: The captured step.
            name: Name of the tasks; `{}` stands for the name of the all-reduce.
            info: What it is.
            share: Its duration over the measured transfer.
            stream: Stream on each rank; by default right behind the all-reduce.
            after: For each task of the all-reduce, what the new one waits for.
            before: For each task, what waits for the new one.
            first: Whether ranks also wait in it as long as they did in the all-reduce.

        Returns:
            The new task for each task of the all-reduce.
        """
        inserted = [
            editor.insert(
                name.format(editor.name_of(task)),
                TaskRole.COLLECTIVE,
                (editor.rank_of(task), editor.stream_of(task) if stream is None else stream),
                share * self.transfer_s[at] + (self.wait_s[at] if first else 0.0),
                after=after[at],
                before=() if before is None else before[at],
                behind=task if stream is None else None,
                like=task,
                collective=info,
            )
            for at, task in enumerate(self.tasks)
        ]
        editor.join(inserted)
        return inserted


def all_reduces(editor: StepEditor, cluster: Cluster) -> list[AllReduce]:
    """Returns the all-reduces of known size over several ranks, in order of time.

    Raises:
        ConfigError: There are none.
    """
    selector = Selector(role=(TaskRole.COLLECTIVE,), collective=("all_reduce",))
    found = []
    for tasks in editor.by_collective(editor.select(selector)):
        infos = [info for task in tasks if (info := editor.collective_of(task)) is not None]
        info = max(infos, key=lambda info: info.message_bytes)
        size = info.group_size or len(info.ranks) or cluster.world_size
        if info.message_bytes <= 0 or size < 2:
            continue
        model_s = collective_model_s(cluster, info)
        lasts = [editor.duration_of(task) for task in tasks]
        transfers = [min(last, model_s) if len(tasks) == 1 else last for last in lasts]
        waits = [last - transfer for last, transfer in zip(lasts, transfers, strict=True)]
        found.append(AllReduce(tasks, info, size, model_s, tuple(transfers), tuple(waits)))
    if not found:
        raise ConfigError(
            "the captured step has no all-reduce of known size over several ranks; for a step of "
            "one rank use `data_parallel` first"
        )
    return found


def serialized(editor: StepEditor, reduces: list[AllReduce], why: str) -> list[AllReduce]:
    """Returns all-reduces as long as they would be on one stream, with the links to themselves.

    All-reduces that were measured at the same time share the links, so their durations include the
    contention. One after the other they take what they took together: each is scaled by the union
    of the measured intervals of its rank over their sum.

    Args:
        editor: The captured step.
        reduces: The all-reduces.
        why: Optimization that needs them, for the note.
    """
    spans: dict[int, list[tuple[float, float]]] = {}
    streams: dict[int, set[str]] = {}
    for one in reduces:
        for task, transfer_s, wait_s in zip(one.tasks, one.transfer_s, one.wait_s, strict=True):
            rank, end_s = editor.rank_of(task), 1e-9 * editor.start_of(task) + wait_s + transfer_s
            spans.setdefault(rank, []).append((end_s - transfer_s, end_s))
            streams.setdefault(rank, set()).add(editor.stream_of(task))
    shares = {
        rank: float(union_length(*np.array(pairs).T)) / sum(end - start for start, end in pairs)
        for rank, pairs in spans.items()
        # Inserted tasks have no measured time, and already wait for their stream.
        if len(streams[rank]) > 1 and any(end > start for start, end in pairs)
    }
    smallest = min(shares.values(), default=1.0)
    if smallest > _ALONE:
        return reduces
    most = max(len(streams[rank]) for rank in shares)
    editor.notes.append(
        f"{why}: all-reduces were measured on up to {most} streams at once; one after the other "
        f"each takes {100 * smallest:.0f} to {100 * max(shares.values()):.0f} % of its measured "
        "time, so that together they take as long as measured"
    )
    return [
        replace(
            one,
            transfer_s=tuple(
                transfer_s * shares.get(editor.rank_of(task), 1.0)
                for task, transfer_s in zip(one.tasks, one.transfer_s, strict=True)
            ),
        )
        for one in reduces
    ]


def remove_all_reduces(editor: StepEditor, reduces: Sequence[AllReduce]) -> None:
    """Removes all-reduces; their launches stay, for they launch what replaces them."""
    editor.remove([task for one in reduces for task in one.tasks], launches=False)
