"""Kernels that convert pooled embeddings for the wire, and how long they take.

The collective waits for the rank that converts most, so a conversion lasts on every rank as long
as there.
"""

from __future__ import annotations

from enum import Enum, auto
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dse.machine.kernels import elementwise_time_s, streaming_estimate
from dse.workload.dlrm.iteration._exchanges import over_nodes
from dse.workload.dlrm.scoring._features import ExchangeGroup, GroupFeature, group_column
from dse.workload.dlrm.scoring._slots import CODEC_SLOTS, Slot

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from dse.workload.dlrm._problem import DlrmProblem
    from dse.workload.dlrm.program._wire import WireFormat, WireFormats


class _Values(Enum):
    """What a kernel converts.

    HELD: what a rank holds of the whole batch. INSIDE: that of the part of the batch that is its
    own among the ranks of its node. RECEIVED: all columns for its own samples.
    """

    HELD = auto()
    INSIDE = auto()
    RECEIVED = auto()


class CodecKernel(NamedTuple):
    """One kernel of a conversion: what it converts, and the bytes it moves for each value."""

    values: _Values
    value_bytes: float


def encode_slot(group: ExchangeGroup, *, backward: bool = False) -> Slot | None:
    """Returns the conversion before a group's exchange; None for replicated tables."""
    return _slot(Slot.POOLED_GRADIENT_ENCODE if backward else Slot.POOLED_ENCODE, group)


def decode_slot(group: ExchangeGroup, *, backward: bool = False) -> Slot | None:
    """Returns the conversion after a group's exchange; None for replicated tables."""
    return _slot(Slot.POOLED_GRADIENT_DECODE if backward else Slot.POOLED_DECODE, group)


def _slot(first: Slot, group: ExchangeGroup) -> Slot | None:
    return None if group is ExchangeGroup.REPLICATED else Slot(first + group)


def codec_kernels(problem: DlrmProblem, layout: int) -> Mapping[Slot, tuple[CodecKernel, ...]]:
    """Returns the kernels of every conversion of an iteration.

    Args:
        problem: Everything but the plan.
        layout: Exchange groups in use.
    """
    cluster, wire = problem.cluster, problem.software.wire
    if cluster.world_size == 1 or not (wire.codec and wire.narrow):
        return {}
    return _kernels(wire, layout, cluster.domain_count > 1, cluster.domain_size > 1)


@lru_cache(maxsize=256)
def _kernels(
    wire: WireFormats, layout: int, between: bool, inside: bool
) -> dict[Slot, tuple[CodecKernel, ...]]:
    whole, partial = wire.whole, wire.reduced
    found: dict[Slot, tuple[CodecKernel, ...]] = {}
    for group, formats in ((ExchangeGroup.POOLED, whole), (ExchangeGroup.ROW, partial)):
        if layout >> group & 1:
            found |= _both_ways(group, (formats[0],), (formats[1],), (_Values.HELD,), wire.pooled)
    if layout >> ExchangeGroup.NODE & 1:
        # A reduce-scatter inside the node, then an all-to-all of a part of the batch.
        steps = [step for step, used in ((0, inside), (1, between)) if used]
        held = (_Values.HELD, _Values.INSIDE if inside else _Values.HELD)
        found |= _both_ways(
            ExchangeGroup.NODE,
            tuple((partial[0], whole[0])[step] for step in steps),
            tuple((partial[1], whole[1])[step] for step in steps),
            tuple(held[step] for step in steps),
            wire.pooled,
        )
    return {slot: kernels for slot, kernels in sorted(found.items()) if kernels}


def _both_ways(
    group: ExchangeGroup,
    forward: tuple[WireFormat, ...],
    backward: tuple[WireFormat, ...],
    sent: tuple[_Values, ...],
    pooled: WireFormat,
) -> dict[Slot, tuple[CodecKernel, ...]]:
    """Returns the conversions of a group; what one step receives, the next one sends.

    Args:
        group: The exchange group.
        forward: Format of each step, from the tables to the dense part.
        backward: The same for gradients, which take the steps the other way round.
        sent: What each step sends forward and receives backward.
        pooled: Format that lookups write.
    """
    received = (*sent[1:], _Values.RECEIVED)

    def kernels(sizes: tuple[float, ...], values: _Values) -> tuple[CodecKernel, ...]:
        return tuple(CodecKernel(values, value_bytes) for value_bytes in sizes)

    first, last = forward[0], backward[-1]
    decode = kernels(forward[-1].decode_bytes(pooled), _Values.RECEIVED)
    gradient_decode = kernels(backward[0].decode_bytes(pooled), sent[0])
    for step in range(len(forward) - 1):
        decode = (
            kernels(forward[step].decode_bytes(pooled), received[step])
            + kernels(forward[step + 1].encode_bytes(pooled), received[step])
            + decode
        )
        gradient_decode = (
            kernels(backward[step + 1].decode_bytes(pooled), received[step])
            + kernels(backward[step].encode_bytes(pooled), received[step])
            + gradient_decode
        )
    slots = {
        encode_slot(group): kernels(first.encode_bytes(pooled), sent[0]),
        decode_slot(group): decode,
        encode_slot(group, backward=True): kernels(last.encode_bytes(pooled), _Values.RECEIVED),
        decode_slot(group, backward=True): gradient_decode,
    }
    return {slot: found for slot, found in slots.items() if slot is not None}


def fill_codecs(
    problem: DlrmProblem,
    layout: int,
    features: NDArray[np.float64],
    durations: NDArray[np.float64],
    node_counts: NDArray[np.float64] | None = None,
) -> None:
    """Fills the durations of conversions.

    Args:
        problem: Everything but the plan.
        layout: Exchange groups in use.
        features: Placement features; shape `(features, ranks, candidates)`.
        durations: Seconds, to fill; shape `(slots, ranks, candidates)`.
        node_counts: As in :func:`~dse.workload.dlrm.iteration._exchanges.over_nodes`.
    """
    for slot, kernels in codec_kernels(problem, layout).items():
        for values, value_bytes in kernels:
            traffic_bytes = value_bytes * _converted(problem, slot, values, features, node_counts)
            durations[slot] += elementwise_time_s(problem.cluster.device, traffic_bytes)


def fill_codec_spreads(
    problem: DlrmProblem, features: NDArray[np.float64], spreads: NDArray[np.float64]
) -> None:
    """Fills how far off the durations of conversions of one plan may be.

    Args:
        problem: Everything but the plan.
        features: The plan's placement features; shape `(features, ranks, 1)`.
        spreads: Standard deviations of the logarithm, to fill; shape `(slots,)`.
    """
    every_group = (1 << len(ExchangeGroup)) - 1
    for slot, kernels in codec_kernels(problem, every_group).items():
        traffic_bytes = sum(
            value_bytes * float(_converted(problem, slot, values, features)[0])
            for values, value_bytes in kernels
        )
        spreads[slot] = streaming_estimate(
            problem.cluster.device, "elementwise", {"traffic_bytes": np.array(traffic_bytes)}
        ).spread


def _converted(
    problem: DlrmProblem,
    slot: Slot,
    values: _Values,
    features: NDArray[np.float64],
    node_counts: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Returns the values that the rank with most of them converts; shape `(candidates,)`."""
    cluster, samples = problem.cluster, problem.global_batch_size
    group = ExchangeGroup((slot - CODEC_SLOTS[0]) % _GROUPS)
    columns = features[group_column(group, GroupFeature.EXCHANGED)]
    if values is _Values.HELD:
        return np.asarray(samples * columns.max(axis=0))
    if values is _Values.INSIDE:
        return np.asarray(samples / cluster.domain_size * columns.max(axis=0))
    if group is ExchangeGroup.POOLED:
        rank_counts = None if node_counts is None else node_counts.repeat(cluster.domain_size)
        every = over_nodes(columns, rank_counts)
    elif group is ExchangeGroup.NODE:
        # All ranks of a node hold the same columns.
        every = over_nodes(columns[:: cluster.domain_size], node_counts)
    else:
        every = columns.max(axis=0)
    return np.asarray(samples / cluster.world_size * every)


#: Groups that exchange anything but gradients of copies.
_GROUPS = len(ExchangeGroup) - 1
