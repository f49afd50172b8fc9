"""BlueConnect: an all-reduce as reduce-scatters and all-gathers, one for each network level."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from dse.errors import ConfigError
from dse.machine.collectives import CollectiveOp, collective_time_s
from dse.trace.whatif.core import Optimization
from dse.trace.whatif.retime import (
    all_reduces,
    remove_all_reduces,
    serialized,
    strided_group,
    with_message,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.machine import Cluster
    from dse.trace.whatif.core import StepEditor


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

    def apply(self, editor: StepEditor) -> None:
        """Replaces each all-reduce by its stages; stages of one level share a stream."""
        cluster = editor.machine.cluster("blueconnect")
        reduces = serialized(editor, all_reduces(editor, cluster), "blueconnect")
        followers = editor.followers()
        order: dict[int, float] = {}
        for place, reduce in enumerate(reduces):
            sizes = self._sizes(cluster, reduce.group_size)
            levels = range(len(sizes))
            stages = [(CollectiveOp.REDUCE_SCATTER, level) for level in levels]
            stages += [(CollectiveOp.ALL_GATHER, level) for level in reversed(levels)]
            after: Sequence[Sequence[int]] = [editor.waits_of(task) for task in reduce.tasks]
            for number, (operation, level) in enumerate(stages):
                inside, last = math.prod(sizes[:level]), number == len(stages) - 1
                size = reduce.info.message_bytes / inside
                group = strided_group(cluster, inside, sizes[level])
                model_s = float(collective_time_s(cluster, operation, max(size, 1.0), group))
                info = with_message(
                    reduce.info,
                    round(size),
                    operation=operation.value,
                    group_size=sizes[level],
                    ranks=(),
                )
                inserted = reduce.insert(
                    editor,
                    f"{operation.value.replace('_', '-')} of level {level}",
                    info,
                    model_s / reduce.model_s,
                    stream=f"all-reduce level {level}",
                    after=after,
                    before=[followers.get(task, ()) for task in reduce.tasks] if last else None,
                    first=not number,
                )
                after = [(task,) for task in inserted]
                order.update(dict.fromkeys(inserted, place))
        remove_all_reduces(editor, reduces)
        editor.schedule(editor.streams_of(order), lambda task: order.get(task, -1.0))

    def _sizes(self, cluster: Cluster, ranks: int) -> list[int]:
        """Returns the sizes of the groups of each level for an all-reduce over some ranks."""
        local = min(cluster.domain_size, ranks)
        if not self.stages and (ranks % local or ranks == local or local < 2):
            raise ConfigError(
                f"an all-reduce over {ranks} ranks has no second level on nodes of "
                f"{cluster.devices_per_domain}; give the sizes of the groups, such as stages=2x4"
            )
        sizes = self.stages or [local, ranks // local]
        if math.prod(sizes) != ranks:
            raise ConfigError(
                f"stages {'x'.join(map(str, sizes))} make {math.prod(sizes)} ranks, the "
                f"all-reduce has {ranks}; give stages whose product is that"
            )
        return sizes
