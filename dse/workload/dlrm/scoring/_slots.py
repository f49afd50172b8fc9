"""Names of the plan-dependent tasks of an iteration, and a graph that knows where they are."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dse.graph import ExecutionGraph
    from dse.simulate import SyncScope


class Slot(IntEnum):
    """Plan-dependent durations; each has one value per rank and candidate."""

    POOLED_LOOKUP = 0
    ROW_LOOKUP = auto()
    NODE_LOOKUP = auto()
    REPLICATED_LOOKUP = auto()
    POOLED_UPDATE = auto()
    ROW_UPDATE = auto()
    NODE_UPDATE = auto()
    REPLICATED_GRADIENT = auto()
    INPUT_EXCHANGE = auto()
    POOLED_EXCHANGE = auto()
    ROW_EXCHANGE = auto()
    NODE_EXCHANGE_INSIDE = auto()
    NODE_EXCHANGE_BETWEEN = auto()
    REPLICATED_ALL_REDUCE = auto()
    WEIGHT_SYNC = auto()
    REPLICATED_UPDATE = auto()
    ROW_PREFETCH = auto()
    # Only where gradients do not travel like outputs, or other formats than FP32 are converted.
    POOLED_GRADIENTS = auto()
    ROW_GRADIENTS = auto()
    NODE_GRADIENTS_INSIDE = auto()
    NODE_GRADIENTS_BETWEEN = auto()
    POOLED_ENCODE = auto()
    ROW_ENCODE = auto()
    NODE_ENCODE = auto()
    POOLED_DECODE = auto()
    ROW_DECODE = auto()
    NODE_DECODE = auto()
    POOLED_GRADIENT_ENCODE = auto()
    ROW_GRADIENT_ENCODE = auto()
    NODE_GRADIENT_ENCODE = auto()
    POOLED_GRADIENT_DECODE = auto()
    ROW_GRADIENT_DECODE = auto()
    NODE_GRADIENT_DECODE = auto()


#: The exchange of gradients that mirrors each exchange of outputs.
GRADIENT_SLOTS = {
    Slot.POOLED_EXCHANGE: Slot.POOLED_GRADIENTS,
    Slot.ROW_EXCHANGE: Slot.ROW_GRADIENTS,
    Slot.NODE_EXCHANGE_INSIDE: Slot.NODE_GRADIENTS_INSIDE,
    Slot.NODE_EXCHANGE_BETWEEN: Slot.NODE_GRADIENTS_BETWEEN,
}

#: Conversions between FP32 and the format of the wire.
CODEC_SLOTS = tuple(
    Slot(slot) for slot in range(Slot.POOLED_ENCODE, Slot.NODE_GRADIENT_DECODE + 1)
)

#: Exchanges whose durations differ between nodes.
NODE_SLOTS = (Slot.NODE_EXCHANGE_INSIDE, Slot.NODE_GRADIENTS_INSIDE)

#: What ends at the same time for all ranks, whatever each of them holds.
EQUAL_SLOTS = (
    Slot.INPUT_EXCHANGE,
    Slot.POOLED_EXCHANGE,
    Slot.NODE_EXCHANGE_BETWEEN,
    Slot.WEIGHT_SYNC,
    Slot.POOLED_GRADIENTS,
    Slot.NODE_GRADIENTS_BETWEEN,
    *CODEC_SLOTS,
)


@dataclass(frozen=True, slots=True)
class LayoutGraph:
    """A graph whose plan-dependent durations are named.

    Attributes:
        graph: The graph; slot tasks have duration zero.
        slot_task: Tasks to fill, ascending; shape `(slots,)`.
        slot_kind: `Slot` of each of them.
        slot_rank: Rank of each of them.
        duration_class: `DurationClass` of every task; shape `(tasks,)`.
        spread: Standard deviation of the logarithm of actual over expected duration of every task,
            as its model says; shape `(tasks,)`.
        scopes: Which ranks take part in each collective, by its index.
    """

    graph: ExecutionGraph
    slot_task: NDArray[np.int64]
    slot_kind: NDArray[np.int64]
    slot_rank: NDArray[np.int64]
    duration_class: NDArray[np.int8]
    spread: NDArray[np.float64]
    scopes: tuple[SyncScope, ...]
