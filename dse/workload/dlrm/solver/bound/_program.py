"""Linear program of a relaxation: averages, demands on single ranks, and its solution.

To the rows of averages it adds the ends of tasks, of which the last is minimized, and the same for
ranks that hold certain shards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.workload.dlrm import NODE_SLOTS, ExchangeGroup, Slot
from dse.workload.dlrm.solver.bound._averages import NODE_LOOKS, SAFETY, UNIT_S, AverageRows
from dse.workload.dlrm.solver.bound._layout import BETWEEN_SLOTS, Relaxed
from dse.workload.dlrm.solver.bound._steps import ROWS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.workload.dlrm.solver.bound._layout import IndivisibleShard, Plans
    from dse.workload.dlrm.solver.bound._linear_program import Optimum


def solved(plans: Plans, shards: tuple[IndivisibleShard, ...]) -> Relaxed | None:
    """Returns the solution of the relaxation, or None where no plan fits.

    Args:
        plans: The plans and the demands on them.
        shards: Shards that some rank must hold.
    """
    return _Rows(plans, shards).solve()


class _Rows(AverageRows):
    def __init__(self, plans: Plans, shards: tuple[IndivisibleShard, ...]) -> None:
        super().__init__(plans, shards)
        self._shown: dict[int, list[int]] = {}

    def solve(self) -> Relaxed | None:
        """Puts the rows together and solves them."""
        self._add_choices()
        self._add_places()
        self._add_lookups()
        self._add_exchanges()
        self._add_steps()
        self._add_alone()
        self._add_largest_input()
        self._add_memory()
        makespan = self._program.variables(1)[0]
        self._add_graph(makespan, self._durations)
        self._add_holders(makespan)
        self._add_fullest_node(makespan)
        for shard in self._shards:
            self._add_shard(makespan, shard)
        optimum = self._program.minimize(makespan)
        return None if optimum is None else self._result(optimum)

    def _add_holders(self, makespan: int) -> None:
        """Demands that of the ranks with shards of one group, where averages are of others too.

        Only shards with rows on all ranks of their nodes count, so that all of these ranks work.
        """
        plans, choices = self._plans, self._choices
        for group in plans.partial:
            full = choices.inside(group) & choices.full
            every = bool(full[plans.open & choices.inside(group)].all())
            _, high = plans.holders_of(group)
            if not high or (every and group not in self._present):
                continue
            taken = None
            if not every:
                taken = self._program.variables(1, 0.0, 1.0)[0]
                self._add_taken(taken, group, full)
            held = {
                feature: self._held_by(feature, full, high, every=every)
                for feature in plans.features_of(group)
            }
            self._add_graph(makespan, self._of_holders(group, held, high, taken))
            if group is ExchangeGroup.NODE and high < 1.0:
                self._add_between(held, high)

    def _held_by(self, feature: int, full: NDArray[np.bool_], high: float, *, every: bool) -> int:
        """Returns what the ranks that share some choices hold on average, at least."""
        if every and high == 1.0:
            return self._features[feature]
        variable = self._program.variables(1)[0]
        share = np.zeros(len(full))
        chosen = self._chosen[full[self._chosen]]
        share[chosen] = self._choices.total[feature, chosen] / self._scale[feature]
        self._program.at_least([(variable, 1.0), *self._parts(-share / (high * self._ranks))], 0.0)
        return variable

    def _of_holders(
        self, group: ExchangeGroup, held: dict[int, int], high: float, taken: int | None
    ) -> dict[int, int]:
        """Adds the durations on the ranks that hold a group.

        Args:
            group: The group.
            held: What they hold on average, by feature.
            high: The largest share of ranks that they are.
            taken: Whether there are such ranks; None if there are.
        """
        plans = self._plans
        own = self._of_some_rank()
        for slot in (Slot.POOLED_LOOKUP + group, Slot.POOLED_UPDATE + group):
            for terms in self._work(slot, own[slot], held):
                self._add_launched(terms, self._launch_s(slot), taken)
            self._shown.setdefault(slot, []).append(own[slot])
        for curve in plans.curves:
            if not plans.by_node(curve.slot) or group is not ExchangeGroup.NODE:
                continue
            found = self._envelopes[curve.slot]
            top = self._most[curve.feature] / high
            for piece in sorted({found.piece_at(look * top) for look in NODE_LOOKS}):
                slope = float(found.slopes[piece]) * self._scale[curve.feature] / UNIT_S
                terms = [(own[curve.slot], 1.0), (held[curve.feature], -slope)]
                constant_s = float(found.intercepts[piece])
                self._add_launched(terms, constant_s, taken if constant_s > 0 else None)
        return own

    def _add_between(self, held: dict[int, int], high: float) -> None:
        """Adds the exchange between nodes where shards are on some of them only.

        The node that holds most decides, and it holds no less than the average of those.
        """
        for curve in self._plans.curves:
            if curve.slot not in BETWEEN_SLOTS:
                continue
            top = min(self._most[curve.feature] / high, float(curve.grid[-1]))
            found = curve.between(float(curve.grid[0]), top)
            for piece in sorted({found.piece_at(look * top) for look in NODE_LOOKS}):
                slope = float(found.slopes[piece]) * self._scale[curve.feature] / UNIT_S
                terms = [(self._durations[curve.slot], 1.0), (held[curve.feature], -slope)]
                self._program.at_least(terms, float(found.intercepts[piece]) / UNIT_S)

    def _add_fullest_node(self, makespan: int) -> None:
        """Demands that the makespan is not below that of the node that exchanges most."""
        floors = self._plans.floors
        inside = [slot for slot in floors if self._plans.by_node(slot)]
        if not inside:
            return
        own = self._of_some_rank()
        for slot in inside:
            self._program.at_least([(own[slot], 1.0)], floors[slot] / UNIT_S)
        self._add_graph(makespan, own)

    def _of_some_rank(self) -> dict[int, int]:
        """Returns durations on a rank that may hold nothing but what all ranks do."""
        own = dict(self._durations)
        for group in self._plans.partial:
            for slot in (Slot.POOLED_LOOKUP + group, Slot.POOLED_UPDATE + group):
                own[slot] = self._program.variables(1)[0]
        for slot in self._durations:
            if self._plans.by_node(slot):
                own[slot] = self._program.variables(1)[0]
        self._add_least(own)
        return own

    def _add_shard(self, makespan: int, shard: IndivisibleShard) -> None:
        """Demands that the makespan is not below that of the rank that holds a shard."""
        lookup, update = Slot.POOLED_LOOKUP + shard.group, Slot.POOLED_UPDATE + shard.group
        own = self._of_some_rank()
        for inside in NODE_SLOTS:
            if inside in own and self._plans.by_node(inside) and shard.group is ExchangeGroup.NODE:
                held = self._held(self._choices.alone_s[inside] * shard.launch)
                self._program.at_least([(own[inside], 1.0), *held], 0.0)
        for slot, seconds in ((lookup, shard.lookup_s), (update, shard.update_s)):
            held = self._held(seconds + self._launch_s(slot) * shard.launch)
            self._program.at_least([(own[slot], 1.0), *held], 0.0)
        if shard.members:
            self._add_members(shard, own[lookup], own[update])
        self._add_graph(makespan, own)

    def _add_least(self, own: dict[int, int]) -> None:
        """Adds what any rank has of groups on all ranks where the average is no bound on it."""
        choices = self._choices
        for group in self._plans.uneven:
            inside = self._plans.open & choices.inside(group)
            for slot in (Slot.POOLED_LOOKUP + group, Slot.POOLED_UPDATE + group):
                if slot not in own:
                    continue
                own[slot] = self._program.variables(1)[0]
                for together in self._plans.model.alternatives(slot):
                    least_s = np.sum(
                        [term.slope * choices.least[term.feature] for term in together], axis=0
                    )
                    terms = [(own[slot], 1.0), *self._held(least_s * inside)]
                    self._add_launched(terms, self._launch_s(slot), self._everywhere.get(group))

    def _add_members(self, shard: IndivisibleShard, lookup: int, update: int) -> None:
        """Adds what tables together load a rank with, void where one of them is elsewhere."""
        inside = self._choices.inside(shard.group) & np.isin(
            self._choices.table_class, shard.members
        )
        # As many tables of these classes as are elsewhere may be among the members.
        everyone = float(self._choices.counts[list(shard.members)].sum())
        launches = (
            self._launch_s(Slot.POOLED_LOOKUP + shard.group),
            self._launch_s(Slot.POOLED_UPDATE + shard.group),
        )
        for variables, seconds in (
            ((lookup,), shard.shared_s[0] + launches[0]),
            ((update,), shard.shared_s[1] + launches[1]),
            ((lookup, update), shard.shared_s[2] + sum(launches)),
        ):
            held = self._held(np.where(inside, seconds, 0.0))
            terms = [(variable, 1.0) for variable in variables] + held
            self._program.at_least(terms, seconds / UNIT_S * (1.0 - everyone))

    def _result(self, optimum: Optimum) -> Relaxed:
        shares = np.zeros(len(self._choices.groups))
        shares[self._chosen] = optimum.point[self._shares.start : self._shares.stop]
        lasts_s = np.zeros(ROWS)
        for slot, variable in self._durations.items():
            lasts_s[slot] = optimum.point[variable] * UNIT_S
        for slot, variables in self._shown.items():
            most_s = float(optimum.point[variables].max()) * UNIT_S
            lasts_s[slot] = max(lasts_s[slot], most_s)
        at_least_s = self._plans.graph.makespan_s(np.zeros(len(Slot)))
        return Relaxed(
            value_s=(1.0 - SAFETY) * max(optimum.value * UNIT_S, at_least_s),
            durations_s=lasts_s,
            shares=shares,
            features=self._choices.total @ shares / self._ranks,
            envelopes=self._envelopes,
            most=self._most,
            working={g: float(optimum.point[v]) for g, v in self._working.items()},
        )
