"""What tables that cannot be spread put on some rank, whatever the plan."""

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

#: Tables whose shard is looked at alone.
_MAX_SINGLE = 3

#: A shard that loads a rank by less than this, of the average load, decides nothing.
_MIN_SHARE = 0.5


def indivisible_shards(
    choices: Choices, model: SlotModel, relaxation: LayoutRelaxation, found: Relaxed, ranks: int
) -> Iterator[IndivisibleShard]:
    """Yields shards that load a rank by more than a solution allows for on average.

    Args:
        choices: Choices of all tables.
        model: What tasks last at least.
        relaxation: The layout's.
        found: Its solution so far.
        ranks: Ranks of the cluster.
    """
    if ranks == 1:
        return
    for group in relaxation.partial_groups:
        inside = relaxation.open_choices & (choices.group == group)
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
    """Seconds beside the launch of what has these features, alone; shape `(choices,)`."""
    sums = _sums_s(model, slot, features)
    return np.maximum.reduce(sums) if sums else np.zeros(features.shape[1])


def _sums_s(
    model: SlotModel, slot: Slot, features: NDArray[np.float64]
) -> list[NDArray[np.float64]]:
    """Additive measures of a task, none of which is above its duration without the launch."""
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
    """Of `k · ranks + 1` shards some rank has `k + 1`: at least the smallest ones."""
    # One linear measure for all shards, so that it adds up: memory or cache, whichever is more.
    linear_s = []
    for slot in (Slot(Slot.POOLED_LOOKUP + group), Slot(Slot.POOLED_UPDATE + group)):
        terms = _sums_s(model, slot, choices.busiest)
        terms.sort(key=lambda values: float(values[inside].sum()))
        linear_s.append(terms[-1] if terms else np.zeros(len(choices.group)))
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
            nothing = np.zeros(len(choices.group))
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
