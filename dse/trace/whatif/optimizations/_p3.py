"""Priority-based parameter propagation: small slices of gradients, the first layers first."""

from __future__ import annotations

from dataclasses import replace
import math
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from dse.config import Bytes, UnitKind, format_quantity
from dse.errors import ConfigError
from dse.trace import Role
from dse.trace.whatif._gradient_reduces import (
    all_reduces,
    meet_by_stage,
    one_after_the_other,
    take_out,
)
from dse.trace.whatif._passes import training_passes
from dse.trace.whatif._retime_collectives import collective_model_s
from dse.trace.whatif._steps import Optimization

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.trace import CollectiveInfo
    from dse.trace.whatif._gradient_reduces import AllReduce
    from dse.trace.whatif._job import Job
    from dse.trace.whatif._passes import TrainingPass

_LANE = "all-reduces by priority"
#: Each slice is a task on each traced rank.
_MOST_SLICES = 100_000


class P3(Optimization):
    """Priority-based parameter propagation: all-reduces in slices, first layers first.

    Attributes:
        slice: Largest slice of a gradient.
    """

    main_option: ClassVar[str] = "slice"

    optimization: Literal["p3"] = "p3"
    slice: Annotated[Bytes, Field(gt=0)] = 4 * 2**20

    def apply(self, job: Job) -> None:
        """Slices the all-reduces, lets forward layers wait for them, and orders them."""
        cluster = job.machine.cluster("p3")
        reduces = one_after_the_other(job, all_reduces(job, cluster), "p3")
        slices = sum(math.ceil(one.info.message_bytes / self.slice) for one in reduces)
        if slices > _MOST_SLICES:
            raise ConfigError(
                f"slices of {format_quantity(self.slice, UnitKind.SIZE)} make {slices:,} of them; "
                f"at most {_MOST_SLICES:,} are simulated, so give larger ones"
            )
        passes = {rank: training_passes(job, rank) for rank in job.ranks}
        priority: dict[int, tuple[int, int, int]] = {}
        for one in reduces:
            for task in one.members:
                priority[task] = _position(job, passes[job.rank_of(task)], task)
        # Members of a collective have to agree; tasks of one layer go as they came.
        order: dict[int, float] = {}
        ranked = sorted(reduces, key=lambda one: (*priority[one.members[0]], one.members[0]))
        for place, one in enumerate(ranked):
            for task in self._slices(job, one, passes, priority):
                order[task] = place
        take_out(job, reduces)
        job.schedule(job.lanes_of(order), lambda task: order.get(task, -1.0))
        job.notes.append(
            "p3: weight updates do not wait for all-reduces, the next forward pass does, layer by "
            "layer; of the last captured pass all of the transfer counts"
        )

    def _slices(
        self,
        job: Job,
        one: AllReduce,
        passes: dict[int, list[TrainingPass]],
        priority: dict[int, tuple[int, int, int]],
    ) -> list[int]:
        cluster = job.machine.cluster("p3")
        size = one.info.message_bytes
        count = math.ceil(size / self.slice)
        info = _resized(one, math.ceil(size / count))
        share = collective_model_s(cluster, info) / one.model_s
        stages: dict[int, list[int]] = {}
        for task, transfer_s, wait_s in zip(one.members, one.transfer_s, one.wait_s, strict=True):
            rank = job.rank_of(task)
            number, layer, _ = priority[task]
            # Other slices are on their lane in their own order already.
            lane = _LANE if job.lane_of(task) != _LANE else f"{_LANE}, again"
            before = _first_of_layer(job, passes[rank], number + 1, layer)
            for place in range(count):
                inserted = job.insert(
                    f"{job.name_of(task)}, slice {place + 1} of {count}",
                    Role.COLLECTIVE,
                    (rank, lane),
                    share * transfer_s + (0.0 if place else wait_s),
                    after=job.waits_of(task),
                    before=before,
                    like=task,
                    collective=info,
                )
                stages.setdefault(place, []).append(inserted)
        meet_by_stage(job, stages)
        return [task for members in stages.values() for task in members]


def _resized(one: AllReduce, size_bytes: int) -> CollectiveInfo:
    return replace(one.info, message_bytes=size_bytes, input_elements=-1, output_elements=-1)


def _position(job: Job, passes: Sequence[TrainingPass], task: int) -> tuple[int, int, int]:
    """Returns the pass of an all-reduce, its layer counted from the pass's first, and its time.

    The layer is the lowest whose backward work had begun by then.
    """
    start = job.start_of(task)
    number = max(
        (
            place
            for place, one in enumerate(passes)
            if one.backward and job.start_of(one.backward[0]) <= start
        ),
        default=0,
    )
    one = passes[number]
    layers = [
        job.layer_of(work)
        for work in one.backward
        if job.layer_of(work) >= 0 and job.start_of(work) <= start
    ]
    first = _first_layer(job, one)
    return number, max(min(layers, default=first) - first, 0), -start


def _first_layer(job: Job, one: TrainingPass) -> int:
    return min((job.layer_of(task) for task in one.forward if job.layer_of(task) >= 0), default=0)


def _first_of_layer(
    job: Job, passes: Sequence[TrainingPass], number: int, layer: int
) -> list[int]:
    """Returns the first forward work of a layer, or of the next one that has work."""
    if number >= len(passes):
        return []
    one = passes[number]
    wanted = _first_layer(job, one) + layer
    return [task for task in one.forward if job.layer_of(task) >= wanted][:1]
