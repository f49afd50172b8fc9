"""Data-parallel training of a step that was captured on one rank."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from dse.config import Bytes
from dse.errors import ConfigError
from dse.trace import COMPUTING, CollectiveInfo, Phase, Role
from dse.trace.whatif._gradients import gradients_of
from dse.trace.whatif._passes import training_passes
from dse.trace.whatif._retime_collectives import collective_model_s
from dse.trace.whatif._steps import Factor, Optimization

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.trace.whatif._gradients import Gradient
    from dse.trace.whatif._job import Job
    from dse.trace.whatif._passes import TrainingPass

_MEBI = 2**20
#: More devices than any system trains one model on; collective models were never checked there.
_MOST_RANKS = 65536
_LANE = "data-parallel all-reduces"


@dataclass(frozen=True, slots=True)
class _Bucket:
    gradients: tuple[Gradient, ...]

    @property
    def size_bytes(self) -> float:
        return sum(gradient.size_bytes for gradient in self.gradients)


class DataParallel(Optimization):
    """Data parallelism over N ranks: gradients are all-reduced in buckets during backward.

    Attributes:
        ranks: Number of ranks, at most 65536.
        bucket: A bucket is reduced once it holds at least this much.
        first_bucket: The same of the first bucket of each backward pass.
        gradients: Size of all gradients, spread evenly, where the traces have no shapes.
        overlap_slowdown: All-reduces that overlap computation take this much longer.
    """

    main_option: ClassVar[str] = "ranks"

    optimization: Literal["data_parallel"] = "data_parallel"
    ranks: Annotated[int, Field(ge=2, le=_MOST_RANKS)]
    bucket: Annotated[Bytes, Field(gt=0)] = 25 * _MEBI
    first_bucket: Annotated[Bytes, Field(gt=0)] = _MEBI
    gradients: Annotated[Bytes, Field(gt=0)] | None = None
    overlap_slowdown: Annotated[Factor, Field(ge=1)] = 1.0

    def apply(self, job: Job) -> None:
        """Inserts the all-reduces of every backward pass."""
        if job.machine.world_size > 1 or len(job.ranks) > 1:
            raise ConfigError(
                f"the step was captured on {job.machine.world_size} ranks already; data_parallel "
                "starts from a step of a single rank"
            )
        (rank,) = job.ranks
        passes = [one for one in training_passes(job, rank) if one.backward]
        if not passes:
            raise ConfigError("the captured step has no backward pass, so there is no gradient")
        job.machine.cluster("data_parallel", self.ranks)
        found = gradients_of(job, passes, self.gradients)
        for one, gradients in zip(passes, found, strict=True):
            self._reduce(job, one, self._buckets(gradients))
        job.work_factor *= self.ranks
        job.machine = replace(job.machine, world_size=self.ranks)

    def _buckets(self, gradients: Sequence[Gradient]) -> list[_Bucket]:
        buckets: list[_Bucket] = []
        inside: list[Gradient] = []
        for gradient in gradients:
            inside.append(gradient)
            limit = self.bucket if buckets else min(self.first_bucket, self.bucket)
            if sum(one.size_bytes for one in inside) >= limit:
                buckets.append(_Bucket(tuple(inside)))
                inside = []
        return [*buckets, _Bucket(tuple(inside))] if inside else buckets

    def _reduce(self, job: Job, one: TrainingPass, buckets: Sequence[_Bucket]) -> None:
        cluster = job.machine.cluster("data_parallel", self.ranks)
        after_it = _next_works(job, one)
        for number, bucket in enumerate(buckets):
            info = CollectiveInfo(
                "all_reduce", round(bucket.size_bytes), "fp32", group_size=self.ranks
            )
            # Nothing is left to overlap with once the last gradient is there.
            slower = self.overlap_slowdown if number < len(buckets) - 1 else 1.0
            ready = dict.fromkeys(task for one in bucket.gradients for task in one.ready)
            job.insert(
                f"all-reduce of bucket {number}",
                Role.COLLECTIVE,
                (one.rank, _LANE),
                slower * collective_model_s(cluster, info),
                after=ready,
                before=after_it,
                like=bucket.gradients[-1].ready[-1],
                collective=info,
            )


def _next_works(job: Job, one: TrainingPass) -> list[int]:
    """Returns what follows a backward pass on each lane that it ran on.

    Streams wait for the all-reduces before their next work. Where the CPU is the device the thread
    itself waits for gloo before `backward()` returns, so nothing that follows overlaps.
    """
    mine = frozenset(one.backward)
    following: list[int] = []
    for lane in job.lanes_of(one.backward):
        row = job.tasks_on(*lane)
        last = max(place for place, task in enumerate(row) if task in mine)
        if job.machine.kind == "cpu":
            following += row[_end_of_backward(job, row, last) + 1 :][:1]
            continue
        rest = (task for task in row[last + 1 :] if job.role_of(task) in COMPUTING)
        following += [task for task in rest if job.phase_of(task) != Phase.BACKWARD][:1]
    return following


def _end_of_backward(job: Job, row: Sequence[int], last: int) -> int:
    """Returns the place of the last task of a pass on a thread, hand-overs of gradients included.

    Args:
        job: The job.
        row: Tasks of the thread.
        last: Place of the last computing work of the pass.
    """
    for place in range(last + 1, len(row)):
        phase = job.phase_of(row[place])
        if phase == Phase.BACKWARD:
            last = place
        elif phase in (Phase.FORWARD, Phase.OPTIMIZER):
            break
    return last
