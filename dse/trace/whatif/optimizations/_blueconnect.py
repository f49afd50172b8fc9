"""BlueConnect: an all-reduce as reduce-scatters and all-gathers, one level of the network each."""

from __future__ import annotations

from dataclasses import dataclass, replace
import math
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from dse.errors import ConfigError
from dse.machine.collectives import CollectiveOp, Group, collective_time_s
from dse.trace import Role
from dse.trace.whatif._gradient_reduces import (
    all_reduces,
    meet_by_stage,
    one_after_the_other,
    take_out,
)
from dse.trace.whatif._steps import Optimization

if TYPE_CHECKING:
    from dse.machine import Cluster
    from dse.trace.whatif._gradient_reduces import AllReduce
    from dse.trace.whatif._job import Job


def _as_sizes(value: object) -> object:
    """Reads `2x4`."""
    if not isinstance(value, str):
        return value
    parts = value.lower().replace("×", "x").split("x")
    if len(parts) < 2 or not all(part.strip().isdecimal() for part in parts):
        raise PydanticCustomError(
            "stages",
            "expected sizes of groups such as `2x4`, one for each of two or more levels, found "
            "`{found}`",
            {"found": value},
        )
    return [int(part) for part in parts]


@dataclass(frozen=True, slots=True)
class _Stage:
    operation: CollectiveOp
    level: int
    size_bytes: float
    ranks: int
    model_s: float


class BlueConnect(Optimization):
    """All-reduces decomposed into a reduce-scatter and an all-gather for each network level.

    Attributes:
        stages: Sizes of the groups of each level, the innermost first; by default the ranks of
            a node, then the nodes.
    """

    main_option: ClassVar[str] = "stages"

    optimization: Literal["blueconnect"] = "blueconnect"
    stages: (
        Annotated[
            list[Annotated[int, Field(ge=2)]], Field(min_length=2), BeforeValidator(_as_sizes)
        ]
        | None
    ) = None

    def apply(self, job: Job) -> None:
        """Replaces each all-reduce by its stages; stages of one level share a lane."""
        cluster = job.machine.cluster("blueconnect")
        order: dict[int, float] = {}
        reduces = one_after_the_other(job, all_reduces(job, cluster), "blueconnect")
        followers = job.followers()
        for place, one in enumerate(reduces):
            stages = self._plan(cluster, one)
            met: dict[int, list[int]] = {}
            for task, transfer_s, wait_s in zip(
                one.members, one.transfer_s, one.wait_s, strict=True
            ):
                last = -1
                for number, stage in enumerate(stages):
                    last = job.insert(
                        f"{stage.operation.value.replace('_', '-')} of level {stage.level}",
                        Role.COLLECTIVE,
                        (job.rank_of(task), f"all-reduce level {stage.level}"),
                        stage.model_s / one.model_s * transfer_s + (0.0 if number else wait_s),
                        after=(last,) if number else job.waits_of(task),
                        before=() if number < len(stages) - 1 else followers.get(task, ()),
                        like=task,
                        collective=replace(
                            one.info,
                            operation=stage.operation.value,
                            message_bytes=round(stage.size_bytes),
                            group_size=stage.ranks,
                            ranks=(),
                            input_elements=-1,
                            output_elements=-1,
                        ),
                    )
                    met.setdefault(number, []).append(last)
                    order[last] = place
            meet_by_stage(job, met)
        take_out(job, reduces)
        job.schedule(job.lanes_of(order), lambda task: order.get(task, -1.0))

    def _plan(self, cluster: Cluster, one: AllReduce) -> list[_Stage]:
        sizes = self.stages or _levels(cluster, one.group_size)
        if math.prod(sizes) != one.group_size:
            raise ConfigError(
                f"stages {'x'.join(map(str, sizes))} make {math.prod(sizes)} ranks, the "
                f"all-reduce has {one.group_size}; give stages whose product is that"
            )
        inside = 1
        scatters: list[_Stage] = []
        gathers: list[_Stage] = []
        for level, size in enumerate(sizes):
            group, whole = _group(cluster, inside, size), one.info.message_bytes / inside
            for operation, found in (
                (CollectiveOp.REDUCE_SCATTER, scatters),
                (CollectiveOp.ALL_GATHER, gathers),
            ):
                model_s = float(collective_time_s(cluster, operation, max(whole, 1.0), group))
                found.append(_Stage(operation, level, whole, size, model_s))
            inside *= size
        return [*scatters, *reversed(gathers)]


def _levels(cluster: Cluster, ranks: int) -> list[int]:
    local = min(cluster.local_size, ranks)
    if ranks % local or ranks == local or local < 2:
        raise ConfigError(
            f"an all-reduce over {ranks} ranks has no second level on nodes of "
            f"{cluster.devices_per_node}; give the sizes of the groups, such as stages=2x4"
        )
    return [local, ranks // local]


def _group(cluster: Cluster, inside: int, size: int) -> Group:
    """Returns the ranks `inside` apart that make one group of a level."""
    per_node = cluster.devices_per_node
    nodes = len({place * inside // per_node for place in range(size)})
    # All groups of the level that have members on a node send through its cards at once.
    sharers = min(inside, per_node) if nodes > 1 else 1
    return Group(nodes, -(-size // nodes), sharers)
