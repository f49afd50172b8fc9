"""Indivisible shards: loads that some rank has in every plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.workload.dlrm import ExchangeGroup, Slot
from dse.workload.dlrm.solver.bound._layout import IndivisibleShard

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from dse.workload.dlrm.solver.bound._choices import Choices
    from dse.workload.dlrm.solver.bound._durations import SlotModel
    from dse.workload.dlrm.solver.bound._layout import Relaxed
    from dse.workload.dlrm.solver.bound._relaxation import LayoutRelaxation

#: Tables whose shard is considered alone.
_MAX_SINGLE = 3

#: A shard below this share of the average load is ignored.
_MIN_SHARE = 0.5


def indivisible_shards(
    choices: Choices, model: SlotModel, relaxation: LayoutRelaxation, found: Relaxed, ranks: int
) -> Iterator[IndivisibleShard]:
    """Yields shards that load a rank more than the average of a solution.

    Args:
        choices: Choices of all tables.
        model: Lower bounds on durations.
        relaxation: Relaxation of the layout.
        found: Its solution so far.
        ranks: Ranks of the cluster.
    """
    if ranks == 1:
        return
    for group in relaxation.partial_groups:
        inside = relaxation.open_choices & choices.inside(group)
        lookup_s = _alone_s(model, Slot(Slot.POOLED_LOOKUP + group), choices.busiest) * inside
        update_s = _alone_s(model, Slot(Slot.POOLED_UPDATE + group), choices.busiest) * inside
        average_s = (
            found.durations_s[Slot.POOLED_LOOKUP + group]
            + found.durations_s[Slot.POOLED_UPDATE + group]
        )
        yield from _single(choices, group, inside, (lookup_s, update_s), found, average_s)
        if inside.sum() == relaxation.open_choices.sum():
            yield from _together(choices, model, group, inside, ranks)


def _alone_s(model: SlotModel, slot: Slot, features: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns seconds without the launch, given features of a shard alone; shape `(choices,)`."""
    sums = _sums_s(model, slot, features)
    return np.maximum.reduce(sums) if sums else np.zeros(features.shape[1])


def _sums_s(
    model: SlotModel, slot: Slot, features: NDArray[np.float64]
) -> list[NDArray[np.float64]]:
    """Returns additive lower bounds on a task's duration without the launch."""
    return [
        np.sum([term.slope * features[term.feature] for term in together], axis=0)
        for together in model.alternatives(slot)
    ]


def _single(
    choices: Choices,
    group: ExchangeGroup,
    inside: NDArray[np.bool_],
    seconds: tuple[NDArray[np.float64], NDArray[np.float64]],
    found: Relaxed,
    average_s: float,
) -> Iterator[IndivisibleShard]:
    both_s = (seconds[0] + seconds[1]) / choices.counts[choices.table_class]
    load_s = np.bincount(choices.table_class, both_s * found.shares, len(choices.counts))
    for index in np.argsort(-load_s, kind="stable")[:_MAX_SINGLE].tolist():
        if load_s[index] < _MIN_SHARE * average_s or load_s[index] <= 0:
            return
        own = inside & (choices.table_class == index)
        part = own / choices.counts[index]
        label = f"largest indivisible shard: table `{choices.names[index]}` on one rank"
        yield IndivisibleShard(label, group, seconds[0] * part, seconds[1] * part, part)


def _together(
    choices: Choices,
    model: SlotModel,
    group: ExchangeGroup,
    inside: NDArray[np.bool_],
    ranks: int,
) -> Iterator[IndivisibleShard]:
    """Yields the least load of some rank: of `k · ranks + 1` shards it has `k + 1`."""
    # One linear measure for all shards, so that it adds up: the larger of memory and cache.
    linear_s = []
    for slot in (Slot(Slot.POOLED_LOOKUP + group), Slot(Slot.POOLED_UPDATE + group)):
        terms = _sums_s(model, slot, choices.busiest)
        terms.sort(key=lambda values: float(values[inside].sum()))
        linear_s.append(terms[-1] if terms else np.zeros(len(choices.groups)))
    least = np.full((3, len(choices.counts)), np.inf)
    for row, values in enumerate((*linear_s, linear_s[0] + linear_s[1])):
        np.minimum.at(least[row], choices.table_class[inside], values[inside])
    counts = choices.counts.astype(np.int64)
    members = np.repeat(np.arange(len(counts)), counts)
    order = members[np.argsort(-least[2, members], kind="stable")]
    best: IndivisibleShard | None = None
    for together in range(1, (len(order) - 1) // ranks + 1):
        among = order[: together * ranks + 1]
        shared = [float(np.sort(row[among])[: together + 1].sum()) for row in least]
        if best is None or shared[2] > best.shared_s[2]:
            nothing = np.zeros(len(choices.groups))
            label = f"{together + 1} of the {len(among)} largest tables share a rank"
            best = IndivisibleShard(
                label,
                group,
                nothing,
                nothing,
                nothing,
                tuple(np.unique(among).tolist()),
                (shared[0], shared[1], shared[2]),
            )
    if best is not None:
        yield best
