"""Relaxation of one layout: shares of choices for plans, averages for ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dse.workload.dlrm import ExchangeGroup, Slot
from dse.workload.dlrm.solver.bound._fullest import below_and_beyond, fullest_limit
from dse.workload.dlrm.solver.bound._layout import Missed, Plans
from dse.workload.dlrm.solver.bound._program import solved

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.machine import Cluster
    from dse.workload.dlrm.solver.bound._choices import Choices
    from dse.workload.dlrm.solver.bound._durations import Curve, SlotModel
    from dse.workload.dlrm.solver.bound._layout import IndivisibleShard, Relaxed, SlotGraph

#: Values at which envelopes are included at first, as shares of the largest value; those that
#: matter are added while solving.
_FIRST_LOOKS = (1e-3, 0.05, 0.2, 0.5, 0.8, 1.0)
_MAX_ROUNDS = 6
_ROUND_TOLERANCE = 2e-5

#: Least gain of a split at a bend, as a share of what the envelope misses, to be preferred.
_BEND_SHARE = 0.5

#: Least share of a choice in a solution that counts as taken.
_USED_SHARE = 1e-6

#: Relative rounding of caps.
_CAP_ROUNDING = 1e-9

#: Tables added in one round for exchanges that they alone keep busy.
_MAX_ALONE = 8


class LayoutRelaxation:
    """Bounds the plans of one layout.

    Args:
        plans: The plans and the demands on them.
    """

    def __init__(self, plans: Plans) -> None:
        self._plans = plans

    @staticmethod
    def of(
        choices: Choices, model: SlotModel, graph: SlotGraph, layout: int, cluster: Cluster
    ) -> LayoutRelaxation:
        """Returns the relaxation of all plans of a layout.

        Args:
            choices: Choices of all tables.
            model: Lower bounds on durations.
            graph: One rank's iteration in this layout.
            layout: Exchange groups in use.
            cluster: The cluster.
        """
        plans = Plans(
            choices=choices,
            model=model,
            graph=graph,
            cluster=cluster,
            groups=tuple(group for group in ExchangeGroup if layout >> group & 1),
            open=(choices.groups & ~layout) == 0,
            least={},
            caps={},
            looks={},
            alone={},
            floors={},
            holders={},
            limits={},
        )
        least = {feature: _least_of(plans, feature) for feature in plans.features}
        looks = {slot: set(_FIRST_LOOKS) for slot in plans.slots}
        return LayoutRelaxation(replace(plans, least=least, looks=looks))

    def copy(self) -> LayoutRelaxation:
        """Returns the same relaxation, whose solutions add nothing to what this one looks at."""
        looks = {slot: set(shares) for slot, shares in self._plans.looks.items()}
        alone = {slot: set(tables) for slot, tables in self._plans.alone.items()}
        return LayoutRelaxation(replace(self._plans, looks=looks, alone=alone))

    def split_by_choice(self, table_class: int, found: Relaxed) -> tuple[LayoutRelaxation, ...]:
        """Splits the plans by what all tables of a class take.

        Choices of the same exchange groups are close to one another, and even more so those that
        differ in hot rows alone, so they stay together while the solution mixes others.
        """
        plans, choices = self._plans, self._plans.choices
        mine = np.flatnonzero(plans.open & (choices.table_class == table_class))
        used = found.shares[mine] > _USED_SHARE
        known: dict[object, int] = {}
        cuts = np.array([known.setdefault(choices.cuts[each][:3], len(known)) for each in mine])
        for kinds in (choices.groups[mine], cuts, mine):
            if len(np.unique(kinds[used])) > 1:
                break
        others = plans.open & (choices.table_class != table_class)
        parts = []
        for kind in np.unique(kinds):
            left = others.copy()
            left[mine[kinds == kind]] = True
            parts.append(LayoutRelaxation(replace(plans, open=left)))
        return tuple(parts)

    def without(self, coarse: NDArray[np.bool_]) -> LayoutRelaxation:
        """Returns the relaxation of plans without some choices, where a table has others.

        Args:
            coarse: Choices to exclude; shape `(choices,)`.
        """
        choices, open_choices = self._plans.choices, self._plans.open
        left = np.bincount(choices.table_class[open_choices & ~coarse], minlength=1)
        others = np.zeros(len(choices.counts), dtype=bool)
        others[: len(left)] = left > 0
        kept = open_choices & ~(coarse & others[choices.table_class])
        return LayoutRelaxation(replace(self._plans, open=kept))

    def split(self, feature: int, value: float) -> tuple[LayoutRelaxation, LayoutRelaxation]:
        """Returns the relaxations of plans with an average feature below, or above, a value."""
        plans = self._plans
        below = replace(plans, caps={**plans.caps, feature: value})
        above = replace(plans, least={**plans.least, feature: max(value, plans.least[feature])})
        return LayoutRelaxation(below), LayoutRelaxation(above)

    def split_by_holders(self, group: ExchangeGroup) -> tuple[LayoutRelaxation, LayoutRelaxation]:
        """Splits the plans by the share of ranks, or nodes, that a partial group keeps busy."""
        plans = self._plans
        low, high = plans.holders_of(group)
        count = round(1.0 / plans.unit(group))
        middle = (round(low * count) + round(high * count)) // 2
        few = replace(plans, holders={**plans.holders, group: (low, middle / count)})
        many = replace(plans, holders={**plans.holders, group: ((middle + 1) / count, high)})
        if not middle:
            full = plans.choices.full & plans.choices.inside(group)
            few = replace(few, open=plans.open & ~full)
        return LayoutRelaxation(few), LayoutRelaxation(many)

    def idle(self, found: Relaxed) -> tuple[float, ExchangeGroup]:
        """Returns the partial group whose launches a solution undercuts most, as ranks are idle.

        Returns:
            Seconds of the iteration, zero if there is none; and the group.
        """
        plans = self._plans
        worst = (0.0, ExchangeGroup.POOLED)
        for group in plans.partial:
            low, high = plans.holders_of(group)
            if group not in found.working or high - low < 0.5 * plans.unit(group):
                continue
            slots = (Slot.POOLED_LOOKUP + group, Slot.POOLED_UPDATE + group)
            launches_s = sum(
                min((term.launch_s for term in plans.model.linear if term.slot == slot), default=0)
                for slot in slots
            )
            for curve in plans.curves:
                if group is ExchangeGroup.NODE and plans.by_node(curve.slot):
                    known = found.envelopes[curve.slot]
                    piece = known.piece_at(float(found.features[curve.feature]))
                    constant_s = max(0.0, float(known.intercepts[piece]))
                    launches_s += plans.times(curve.slot) * constant_s
            worst = max(worst, ((high - found.working[group]) * launches_s, group))
        return worst

    def split_by_largest(
        self, slot: int, limit_s: float
    ) -> tuple[LayoutRelaxation, LayoutRelaxation]:
        """Splits the plans by the largest shard in an exchange.

        Args:
            slot: An exchange that lasts equally long on all ranks.
            limit_s: In the first relaxation no table takes a choice that alone lasts longer; in
                the second some table does, if such a choice exists.
        """
        plans = self._plans
        alone_s = plans.choices.alone_s[slot]
        large = plans.open & (alone_s > limit_s)
        shortest_s = float(alone_s[large].min()) if large.any() else 0.0
        least_s = max(shortest_s, plans.floors.get(slot, 0.0))
        small = replace(plans, open=plans.open & ~large)
        return (
            LayoutRelaxation(small),
            LayoutRelaxation(replace(plans, floors={**plans.floors, slot: least_s})),
        )

    def fullest(self, found: Relaxed) -> tuple[float, ExchangeGroup, float]:
        """Returns a limit on what single ranks, or nodes, exchange that a solution exceeds.

        Returns:
            The gain in seconds of the iteration, zero if there is none; the group; and the limit.
        """
        return fullest_limit(self._plans, found)

    def split_by_fullest(
        self, group: ExchangeGroup, limit: float
    ) -> tuple[LayoutRelaxation, LayoutRelaxation]:
        """Splits the plans by what the fullest rank, or node, exchanges: below a limit, or not."""
        below, beyond = below_and_beyond(self._plans, group, limit)
        return LayoutRelaxation(below), LayoutRelaxation(beyond)

    def filled(self, slot: int, largest_s: float, feature: int, most: float) -> LayoutRelaxation:
        """Returns the relaxation of plans with a given largest shard in an exchange.

        Args:
            slot: An exchange that lasts equally long on all ranks.
            largest_s: How long that shard alone keeps it busy.
            feature: Feature that the exchange depends on.
            most: The largest average of the feature.
        """
        plans = self._plans
        floors = {**plans.floors, slot: max(largest_s, plans.floors.get(slot, 0.0))}
        caps = {**plans.caps, feature: min(most, plans.caps.get(feature, np.inf))}
        left = plans.open & (plans.choices.alone_s[slot] <= largest_s)
        return LayoutRelaxation(replace(plans, open=left, floors=floors, caps=caps))

    def largest_shard(self, found: Relaxed) -> tuple[float, int, float]:
        """Returns the exchange that some shard of the solution exceeds most.

        Returns:
            The gain in seconds of the iteration, the slot, and a limit that separates the shards
            of the solution that exceed the exchange.
        """
        worst, most = (0.0, -1, 0.0), 0.0
        if self._plans.cluster.domain_count == 1:
            # On one node shards are small compared with an exchange; deciding tables gains more.
            return worst
        used = self._plans.open & (found.shares > _USED_SHARE)
        for slot in self._plans.slots:
            if slot < Slot.INPUT_EXCHANGE or self._plans.by_node(slot):
                continue
            alone_s = self._plans.choices.alone_s[slot]
            limit_s = float(found.durations_s[slot]) * (1.0 + _ROUND_TOLERANCE)
            large = np.flatnonzero(used & (alone_s > limit_s))
            if not len(large):
                continue
            # The higher the limit, the more the plans with a larger shard gain, and the fewer
            # tables of the others have to be cut differently.
            large = large[np.argsort(-alone_s[large], kind="stable")]
            times = self._plans.times(slot)
            beyond_s = times * (alone_s[large] - limit_s)
            worth_s = beyond_s * np.cumsum(found.shares[large])
            best = int(np.argmax(worth_s))
            if worth_s[best] > most:
                most = float(worth_s[best])
                below = self._plans.open & (alone_s < alone_s[large[best]])
                limit_s = max(limit_s, float(alone_s[below].max(initial=0.0)))
                worst = (float(beyond_s[best]), slot, limit_s)
        return worst

    def widest_envelope(self, found: Relaxed) -> Missed:
        """Returns the exchange whose duration the solution undercuts most."""
        worst = Missed(0.0, -1, 0.0, at_bend=False)
        for curve in self._plans.curves:
            # A solution may exceed a cap by rounding; plans do not, and were split there already.
            below = self._plans.caps.get(curve.feature, np.inf) * (1.0 - _CAP_ROUNDING)
            value = min(float(found.features[curve.feature]), below)
            if not self._plans.by_node(curve.slot) and value > self._plans.least[curve.feature]:
                times = self._plans.times(curve.slot)
                gap_s = times * (curve.at(value) - float(found.durations_s[curve.slot]))
                if gap_s > worst.seconds:
                    several = self._plans.cluster.domain_count > 1
                    most = found.most[curve.feature]
                    bend = self._bend(curve, value, most) if several else None
                    split = value if bend is None else bend
                    worst = Missed(gap_s, curve.feature, split, at_bend=bend is not None)
        return worst

    def _bend(self, curve: Curve, value: float, most: float) -> float | None:
        """Returns the best value to split an exchange at, if it is not the solution's value.

        A curve that bends down, for example at a change of protocol, is furthest from its envelope
        at the bend. One split there replaces many at the solution's values.
        """
        least = self._plans.least[curve.feature]
        now = curve.between(least, most)
        missed_s = curve.at(value) - now.at(value)
        lines_s = now.slopes[:, None] * curve.grid + now.intercepts[:, None]
        over_s = curve.duration_s - lines_s.max(axis=0)
        best_s, best = _BEND_SHARE * missed_s, None
        for low, high in ((least, value), (value, most)):
            inside = (curve.grid > low) & (curve.grid < high)
            if not inside.any():
                continue
            bend = float(curve.grid[np.argmax(np.where(inside, over_s, -np.inf))])
            side = curve.between(bend, most) if bend < value else curve.between(least, bend)
            gained_s = side.at(value) - now.at(value)
            if gained_s > max(0.0, best_s):
                best_s, best = gained_s, bend
        return best

    @property
    def partial_groups(self) -> tuple[ExchangeGroup, ...]:
        """Groups in use whose shards may be on some of the ranks only."""
        return tuple(self._plans.partial)

    @property
    def open_choices(self) -> NDArray[np.bool_]:
        """Remaining choices; shape `(choices,)`."""
        return self._plans.open

    @property
    def possible(self) -> bool:
        """Whether every table has a choice in this layout."""
        choices = self._plans.choices
        return len(np.unique(choices.table_class[self._plans.open])) == len(choices.counts)

    def solve(
        self,
        shards: tuple[IndivisibleShard, ...] = (),
        enough_s: float = np.inf,
        coarse: Relaxed | None = None,
    ) -> Relaxed | None:
        """Returns the relaxation's solution, or None where no plan of the layout fits.

        Args:
            shards: Shards that some rank must hold.
            enough_s: Stop refining when the value exceeds this.
            coarse: A solution that was not refined, to go on from.
        """
        if coarse is not None and (coarse.value_s >= enough_s or not self._refine(coarse)):
            return coarse
        result = None
        for _ in range(_MAX_ROUNDS - (coarse is not None)):
            result = solved(self._plans, shards)
            if result is None or result.value_s >= enough_s:
                return result
            if not self._refine(result):
                break
        return result

    def alone_s(self, shard: IndivisibleShard, found: Relaxed) -> float:
        """Returns the iteration time of a rank that holds a shard and nothing else."""
        lasts_s = found.durations_s.copy()
        for group in self._plans.partial:
            lasts_s[[Slot.POOLED_LOOKUP + group, Slot.POOLED_UPDATE + group]] = 0.0
        lookup_s = float(shard.lookup_s @ found.shares) + shard.shared_s[0]
        update_s = float(shard.update_s @ found.shares) + shard.shared_s[2] - shard.shared_s[0]
        lasts_s[Slot.POOLED_LOOKUP + shard.group] = lookup_s
        lasts_s[Slot.POOLED_UPDATE + shard.group] = update_s
        return self._plans.graph.makespan_s(lasts_s)

    def _refine(self, found: Relaxed) -> bool:
        """Adds pieces of envelopes that the solution undercuts; returns whether that matters."""
        missed_s = 0.0
        for curve in self._plans.curves:
            value = found.features[curve.feature]
            if self._plans.by_node(curve.slot):
                continue
            gap_s = found.envelopes[curve.slot].at(value) - found.durations_s[curve.slot]
            share = value / found.most[curve.feature]
            if gap_s > 0 and share not in self._plans.looks[curve.slot]:
                self._plans.looks[curve.slot].add(share)
                missed_s += gap_s
        missed_s += self._refine_alone(found)
        return missed_s > _ROUND_TOLERANCE * found.value_s

    def _refine_alone(self, found: Relaxed) -> float:
        """Adds tables that alone keep an exchange busy for longer than in the solution."""
        choices = self._plans.choices
        shares = found.shares / choices.counts[choices.table_class]
        missed_s = 0.0
        for slot in self._plans.slots:
            if slot < Slot.INPUT_EXCHANGE or self._plans.by_node(slot):
                continue
            alone_s = np.bincount(
                choices.table_class, shares * choices.alone_s[slot], len(choices.counts)
            )
            known = self._plans.alone.setdefault(slot, set())
            for index in np.argsort(-alone_s, kind="stable")[:_MAX_ALONE].tolist():
                gap_s = float(alone_s[index] - found.durations_s[slot])
                if index not in known and gap_s > _ROUND_TOLERANCE * found.value_s:
                    known.add(index)
                    missed_s += gap_s
        return missed_s


def _least_of(plans: Plans, feature: int) -> float:
    """Returns the least average of a feature, given that some table is in each group."""
    choices = plans.choices
    values = np.where(plans.open, choices.total[feature], np.inf)
    least = np.full(len(choices.counts), np.inf)
    np.minimum.at(least, choices.table_class, values)
    found = [float((least * choices.counts).sum())]
    found += [float(values[choices.inside(group)].min(initial=np.inf)) for group in plans.groups]
    return max(value for value in [0.0, *found] if np.isfinite(value)) / plans.cluster.world_size
