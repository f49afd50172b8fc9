"""Priority-based parameter propagation: small slices of gradients, the first layers first."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from dse.config import Bytes, UnitKind, format_quantity
from dse.errors import ConfigError
from dse.trace.whatif.core import (
    Optimization,
    backward_position,
    first_of_layer,
    training_passes,
)
from dse.trace.whatif.retime import (
    all_reduces,
    collective_model_s,
    remove_all_reduces,
    serialized,
    with_message,
)

if TYPE_CHECKING:
    from dse.trace.whatif.core import StepEditor
    from dse.trace.whatif.retime import AllReduce

_STREAM = "all-reduces by priority"
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

    def apply(self, editor: StepEditor) -> None:
        """Slices the all-reduces, makes forward layers wait for them, and orders them."""
        cluster = editor.machine.cluster("p3")
        reduces = serialized(editor, all_reduces(editor, cluster), "p3")
        slices = sum(self._count(reduce) for reduce in reduces)
        if slices > _MOST_SLICES:
            raise ConfigError(
                f"slices of {format_quantity(self.slice, UnitKind.SIZE)} make {slices:,} of them; "
                f"at most {_MOST_SLICES:,} are simulated, so give larger ones"
            )
        passes = {rank: training_passes(editor, rank) for rank in editor.ranks}
        position = {
            task: backward_position(editor, passes[editor.rank_of(task)], task)
            for reduce in reduces
            for task in reduce.tasks
        }

        def priority(reduce: AllReduce) -> tuple[int, ...]:
            # All ranks have to agree; of one layer the last one goes first.
            task = reduce.tasks[0]
            return (*position[task], -editor.start_of(task), task)

        order: dict[int, float] = {}
        for place, reduce in enumerate(sorted(reduces, key=priority)):
            count = self._count(reduce)
            info = with_message(reduce.info, math.ceil(reduce.info.message_bytes / count))
            before = []
            for task in reduce.tasks:
                number, layer = position[task]
                of_rank = passes[editor.rank_of(task)]
                before.append(first_of_layer(editor, of_rank, number + 1, layer))
            # Slices of an earlier p3 keep their own stream and order.
            sliced = editor.stream_of(reduce.tasks[0]) == _STREAM
            for number in range(count):
                inserted = reduce.insert(
                    editor,
                    f"{{}}, slice {number + 1} of {count}",
                    info,
                    collective_model_s(cluster, info) / reduce.model_s,
                    stream=f"{_STREAM}, again" if sliced else _STREAM,
                    after=[editor.waits_of(task) for task in reduce.tasks],
                    before=before,
                    first=not number,
                )
                order.update(dict.fromkeys(inserted, place))
        remove_all_reduces(editor, reduces)
        editor.schedule(editor.streams_of(order), lambda task: order.get(task, -1.0))
        editor.notes.append(
            "p3: weight updates do not wait for all-reduces, the next forward pass does, layer by "
            "layer; of the last captured pass all of the transfer counts"
        )

    def _count(self, reduce: AllReduce) -> int:
        return math.ceil(reduce.info.message_bytes / self.slice)
