"""Durations of exchanges of input, vectors and partial sums, for a batch of plans at once."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from dse.machine import COLLECTIVE_SLOWDOWN, has_own_engines
from dse.workload.dlrm.iteration._exchanges import (
    all_to_all_s,
    between_nodes_s,
    first_step_s,
    reduce_inside_s,
    reduce_scatter_s,
)
from dse.workload.dlrm.program._software import InputPath
from dse.workload.dlrm.scoring._features import (
    LENGTH_BYTES,
    ExchangeGroup,
    GroupFeature,
    RankFeature,
    group_column,
    rank_column,
)
from dse.workload.dlrm.scoring._slots import GRADIENT_SLOTS, Slot

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from dse.workload.dlrm._problem import DlrmProblem
    from dse.workload.dlrm.program._wire import WireFormat, WireFormats


def fill_all_to_alls(
    problem: DlrmProblem,
    layout: int,
    features: NDArray[np.float64],
    durations: NDArray[np.float64],
    node_counts: NDArray[np.float64] | None,
) -> None:
    """Fills the exchanges of whole pooled vectors and of the input."""
    exchanges = _all_to_alls(problem, layout, features)
    if exchanges:
        lasts_s = partial(all_to_all_s, problem, node_counts=node_counts)
        _add_times(exchanges, lasts_s, durations)


def first_steps_s(
    problem: DlrmProblem, layout: int, features: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Returns durations of the first step of exchanges in two steps; zero for all other tasks.

    Args:
        problem: Everything but the plan.
        layout: Exchange groups in use.
        features: Shape `(features, ranks, candidates)`.

    Returns:
        Seconds; shape `(slots, ranks, candidates)`.
    """
    durations = np.zeros((len(Slot), *features.shape[1:]))
    exchanges = _all_to_alls(problem, layout, features)
    if exchanges and problem.cluster.world_size > 1:
        _add_times(exchanges, partial(first_step_s, problem), durations)
    return durations


#: An exchange, a factor on its duration, and the bytes that each rank distributes in it.
_AllToAll = tuple[Slot, float, "NDArray[np.float64]"]


def _all_to_alls(
    problem: DlrmProblem, layout: int, features: NDArray[np.float64]
) -> list[_AllToAll]:
    """Returns the all-to-alls of whole pooled vectors and of the input."""
    cluster, wire = problem.cluster, problem.software.wire
    exchanges: list[_AllToAll] = []
    if layout >> ExchangeGroup.POOLED & 1:
        exchanged = features[group_column(ExchangeGroup.POOLED, GroupFeature.EXCHANGED)]
        held = problem.global_batch_size * exchanged
        ways = exchange_ways(wire, Slot.POOLED_EXCHANGE, wire.whole)
        exchanges += [(slot, 1.0, value_bytes * held) for slot, value_bytes in ways]
    exchanges_input = problem.software.input_path is InputPath.BY_SAMPLE
    if exchanges_input and layout != 1 << ExchangeGroup.REPLICATED:
        # Prefetched, it overlaps with this batch's lookups.
        ahead = problem.software.pipeline.distributes_ahead
        overlaps = ahead and has_own_engines(cluster.device)
        slowdown = COLLECTIVE_SLOWDOWN if overlaps else 1.0
        input_bytes = features[rank_column(RankFeature.INPUT)]
        exchanges += [
            (Slot.INPUT_EXCHANGE, slowdown, part * input_bytes) for part in _input_parts(problem)
        ]
    return exchanges


def _add_times(
    exchanges: list[_AllToAll],
    time_s: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    durations: NDArray[np.float64],
) -> None:
    """Adds the time of each exchange to that of its task."""
    # All of them go through the same formula.
    held_bytes = np.concatenate([held for _, _, held in exchanges], axis=1)
    seconds = time_s(held_bytes).reshape(len(exchanges), -1)
    for (slot, factor, _), lasts_s in zip(exchanges, seconds, strict=True):
        durations[slot] += factor * lasts_s


def fill_reductions(
    problem: DlrmProblem,
    layout: int,
    features: NDArray[np.float64],
    durations: NDArray[np.float64],
    node_counts: NDArray[np.float64] | None,
) -> None:
    """Fills the exchanges of partial sums, over all ranks and over those of a node.

    Every rank holds partial sums of all columns for the whole batch; forward they are reduced and
    scattered, backward the gradients are gathered: the same volume.
    """
    samples, wire = problem.global_batch_size, problem.software.wire
    if layout >> ExchangeGroup.ROW & 1:
        held = samples * features[group_column(ExchangeGroup.ROW, GroupFeature.EXCHANGED)]
        for slot, value_bytes in exchange_ways(wire, Slot.ROW_EXCHANGE, wire.reduced):
            durations[slot] = reduce_scatter_s(problem, value_bytes * held, node_counts)
    if layout >> ExchangeGroup.NODE & 1:
        held = samples * features[group_column(ExchangeGroup.NODE, GroupFeature.EXCHANGED)]
        for slot, value_bytes in exchange_ways(wire, Slot.NODE_EXCHANGE_INSIDE, wire.reduced):
            durations[slot] = reduce_inside_s(problem.cluster, value_bytes * held)
        # The ranks of a domain hold the same, and send a part each.
        local = problem.cluster.domain_size
        part = held[::local] / local
        for slot, value_bytes in exchange_ways(wire, Slot.NODE_EXCHANGE_BETWEEN, wire.whole):
            durations[slot] = between_nodes_s(problem.cluster, value_bytes * part, node_counts)


def exchange_ways(
    wire: WireFormats, slot: Slot, formats: tuple[WireFormat, WireFormat]
) -> list[tuple[Slot, float]]:
    """Returns an exchange of outputs, and that of gradients where it is not the same task.

    Args:
        wire: Formats on the wire.
        slot: The exchange of outputs.
        formats: Those of its values and of their gradients.

    Returns:
        Slot and bytes of a value.
    """
    found = [(slot, formats[0].value_bytes)]
    if not wire.mirrored:
        found.append((GRADIENT_SLOTS[slot], formats[1].value_bytes))
    return found


def _input_parts(problem: DlrmProblem) -> tuple[float, ...]:
    """Shares of the input's bytes that its collectives carry.

    Lengths and indices have the same ratio on every rank as in the whole batch: a table's are
    sent to the same ranks.
    """
    if not problem.software.lengths_first:
        return (1.0,)
    tables = problem.model.tables
    lengths = float(LENGTH_BYTES * sum(table.bag_count for table in tables))
    indices = sum(table.lookup_bytes * table.lookups_per_sample for table in tables)
    share = lengths / (lengths + indices)
    return (share, 1.0 - share)
