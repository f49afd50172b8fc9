"""Rows of the linear program that averages of ranks meet, and its variables.

Variables are the shares of choices, what a rank holds on average, and the duration of each
plan-dependent task on a rank. All rows are inequalities that every plan meets (docs/method.md,
"Lower bound").
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.workload.dlrm import ExchangeGroup, Slot
from dse.workload.dlrm.solver.bound._fullest import places_taken
from dse.workload.dlrm.solver.bound._linear_program import LinearProgram
from dse.workload.dlrm.solver.bound._steps import steps_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from dse.workload.dlrm.solver.bound._durations import Curve, Envelope
    from dse.workload.dlrm.solver.bound._layout import IndivisibleShard, Plans


#: Share by which a solution is lowered, for the tolerances of HiGHS (1e-7, values near one).
SAFETY = 2e-6


#: Tables whose shards are considered as the largest of a node in the input exchange.
_MAX_LARGEST = 8

#: Tables that are looked at to see whether a group has shards on all ranks of some nodes.
_MAX_FULL = 8

#: Values at which envelopes of what one node holds are included, as shares of the largest.
NODE_LOOKS = tuple(np.geomspace(0.02, 1.0, 16).tolist())


#: Unit of time in the program, so that its values are near one.
UNIT_S = 1e-3


class AverageRows:
    """The rows that averages of ranks meet.

    Args:
        plans: The plans and the demands on them.
        shards: Shards that some rank must hold.
    """

    def __init__(self, plans: Plans, shards: tuple[IndivisibleShard, ...]) -> None:
        self._plans, self._shards = plans, shards
        self._choices = plans.choices
        self._ranks = plans.cluster.world_size
        self._launches_s: dict[int, float] = {}
        self._program = LinearProgram()
        self._places = {
            group: places_taken(self._choices.sizes * self._choices.inside(group), limit)
            / plans.places(group)
            for group, limit in plans.limits.items()
        }
        self._chosen = np.flatnonzero(self._worthwhile())
        self._shares = self._program.variables(len(self._chosen))
        self._variable_of = dict(zip(self._chosen.tolist(), self._shares, strict=True))
        self._most = {feature: self._most_of(feature) for feature in plans.features}
        self._scale = {
            feature: max(float(self._choices.total[feature, self._chosen].sum()), 1e-300)
            / self._ranks
            for feature in plans.features
        }
        self._features = {feature: self._average(feature) for feature in plans.features}
        slots = plans.slots
        self._durations = dict(zip(slots, self._program.variables(len(slots)), strict=True))
        self._present: dict[ExchangeGroup, int] = {}
        self._working: dict[ExchangeGroup, int] = {}
        self._everywhere: dict[ExchangeGroup, int] = {}
        self._add_presence()
        self._envelopes: dict[int, Envelope] = {}

    # --- variables --------------------------------------------------------------------------

    def _worthwhile(self) -> NDArray[np.bool_]:
        """Returns the remaining choices that no other one of the same groups dominates."""
        plans, choices = self._plans, self._choices
        # With other hot rows a choice has less of some feature, so it is not looked at.
        _, first, inverse = np.unique(
            np.where(plans.open, choices.alike, -1), return_index=True, return_inverse=True
        )
        base = first[inverse]
        sums = choices.total[plans.features], choices.least[plans.features]
        costs = np.vstack((*sums, *self._places.values(), choices.memory_bytes, choices.active))
        dominated = (costs >= costs[:, base]).all(axis=0) & (base != np.arange(len(base)))
        for shard in self._shards:
            dominated &= shard.launch == 0
        for tables in plans.alone.values():
            dominated &= ~np.isin(choices.table_class, list(tables))
        return np.asarray(plans.open & ~dominated, dtype=np.bool_)

    def _most_of(self, feature: int, *, among: NDArray[np.int64] | None = None) -> float:
        """Returns the largest average of a feature that some choices allow."""
        choices = self._choices
        chosen = self._chosen if among is None else among
        most = np.zeros(len(choices.counts))
        np.maximum.at(most, choices.table_class[chosen], choices.total[feature, chosen])
        together = float((most * choices.counts).sum()) / self._ranks
        capped = min(together, self._plans.caps.get(feature, np.inf))
        return max(capped, self._plans.least[feature], 1e-300)

    def _average(self, feature: int) -> int:
        """Adds the average of a feature over ranks, scaled by the sum over all choices."""
        values = self._choices.total[feature, self._chosen] / self._ranks
        scale = self._scale[feature]
        low = self._plans.least[feature] / scale * (1.0 - SAFETY)
        high = self._plans.caps.get(feature, np.inf) / scale * (1.0 + SAFETY)
        variable = self._program.variables(1, low, high)[0]
        present = np.flatnonzero(values)
        # At least, not equal: dominated choices have been removed.
        self._program.at_least_sum(variable, present + self._shares.start, values[present] / scale)
        return variable

    def _add_presence(self) -> None:
        """Adds the shares of ranks that hold a group, where groups may be on different ranks.

        Averages are those of the ranks that hold some group. Where the work of groups on all ranks
        differs between them, they are those of all ranks: a rank that holds nothing else may have
        more of it than others. Of ranks that hold a group, some may have none of the rows.
        """
        plans, program = self._plans, self._program
        for group in plans.uneven:
            least = self._least_active(group)
            if least < 1.0:
                self._working[group] = program.variables(1, least, 1.0)[0]
                self._add_taken(self._working[group], group, self._choices.active)
                self._everywhere[group] = program.variables(1, 0.0, 1.0)[0]
                self._add_taken(self._everywhere[group], group, self._choices.full)
        if len(plans.partial) < 2 and not (plans.partial and plans.uneven):
            return
        for group in plans.partial:
            low, _ = plans.holders_of(group)
            present = program.variables(1, max(low, plans.unit(group)), 1.0)[0]
            self._present[group] = self._working[group] = present
            least = self._least_active(group)
            if least < 1.0:
                self._working[group] = program.variables(1, low, 1.0)[0]
                terms = [(self._working[group], 1.0), (present, -least)]
                program.at_least(terms, 0.0)
        if not plans.uneven:
            program.at_least([(variable, 1.0) for variable in self._present.values()], 1.0)

    def _least_active(self, group: ExchangeGroup) -> float:
        """Returns the least share of ranks on which a choice has rows, of those it is on."""
        inside = self._plans.open & self._choices.inside(group)
        # Copies are on all ranks, whatever the other rows of their table are.
        copies = group is ExchangeGroup.REPLICATED
        return 1.0 if copies else float(self._choices.active[inside].min(initial=1.0))

    def _add_taken(
        self,
        variable: int,
        group: ExchangeGroup,
        share: NDArray[np.float64] | NDArray[np.bool_],
    ) -> None:
        """Demands that a variable is not below a share, if a table takes a choice of a group.

        Args:
            variable: The variable.
            group: The exchange group.
            share: Of each choice; shape `(choices,)`.
        """
        choices = self._choices
        inside = self._plans.open & choices.inside(group)
        busy_s = np.where(inside, choices.alone_s[: Slot.INPUT_EXCHANGE].sum(axis=0), 0.0)
        most_s = np.zeros(len(choices.counts))
        np.maximum.at(most_s, choices.table_class, busy_s)
        part = np.where(inside, share, 0.0) / choices.counts[choices.table_class]
        for index in np.argsort(-most_s, kind="stable")[:_MAX_FULL].tolist():
            held = self._parts(-part * (choices.table_class == index))
            self._program.at_least([(variable, 1.0), *held], 0.0)

    # --- rows -------------------------------------------------------------------------------

    def _add_choices(self) -> None:
        of_class: dict[int, list[int]] = {}
        classes = self._choices.table_class[self._chosen].tolist()
        for index, variable in zip(classes, self._shares, strict=True):
            of_class.setdefault(index, []).append(variable)
        for index, variables in of_class.items():
            count = float(self._choices.counts[index])
            self._program.equal(variables, [1.0] * len(variables), count)

    def _add_places(self) -> None:
        """Demands that shards have places where no rank, or node, exchanges as much as a limit."""
        for measures in self._places.values():
            for taken in measures:
                held = self._parts(-taken)
                if held:
                    self._program.at_least(held, -1.0 - SAFETY)

    def _add_lookups(self) -> None:
        for slot, duration in self._durations.items():
            if slot >= Slot.INPUT_EXCHANGE:
                continue
            group = ExchangeGroup(slot % len(ExchangeGroup))
            launch_s = self._launch_s(slot)
            if group not in self._working:
                launch_s *= self._least_active(group)
            for terms in self._work(slot, duration, self._features):
                self._add_launched(terms, launch_s, self._working.get(group))

    def _work(
        self, slot: int, duration: int, features: dict[int, int]
    ) -> Iterator[list[tuple[int, float]]]:
        """Yields a duration less the work of a rank, for each sum that bounds it."""
        for together in self._plans.model.alternatives(slot):
            terms = [(duration, 1.0)]
            for term in together:
                slope = term.slope * self._scale[term.feature] / UNIT_S
                terms.append((features[term.feature], -slope))
            yield terms

    def _add_exchanges(self) -> None:
        plans = self._plans
        for curve in plans.curves:
            slot, feature = curve.slot, curve.feature
            if plans.by_node(slot):
                # One node may hold as many times the average as there are nodes.
                most = self._most_of(feature, among=np.flatnonzero(plans.open))
                found = curve.between(curve.grid[0], most * plans.cluster.domain_count)
            else:
                most = self._most[feature]
                found = curve.between(plans.least[feature], most)
            self._envelopes[slot] = found
            share = self._present.get(ExchangeGroup.NODE) if plans.by_node(slot) else None
            for piece in sorted({found.piece_at(look * most) for look in plans.looks[slot]}):
                slope = float(found.slopes[piece]) * self._scale[feature] / UNIT_S
                terms = [(self._durations[slot], 1.0), (self._features[feature], -slope)]
                self._add_launched(terms, float(found.intercepts[piece]), share)

    def _add_steps(self) -> None:
        """Demands that an exchange in two steps is not shorter than both together."""
        for slot, duration in self._durations.items():
            steps = [self._durations[row] for row in steps_of(slot) if row in self._durations]
            if slot < len(Slot) and steps:
                self._program.at_least([(duration, 1.0), *((step, -1.0) for step in steps)], 0.0)

    def _add_launched(
        self, terms: list[tuple[int, float]], launch_s: float, share: int | None
    ) -> None:
        """Adds a constant part, of which a rank has a share on average, or all of it."""
        launch = launch_s / UNIT_S
        if share is not None:
            self._program.at_least([*terms, (share, -launch)], 0.0)
        else:
            self._program.at_least(terms, launch)

    def _launch_s(self, slot: int) -> float:
        """Returns the launch of a lookup or update; zero if some table has nothing to look up."""
        if slot not in self._launches_s:
            self._launches_s[slot] = self._least_launch_s(slot)
        return self._launches_s[slot]

    def _least_launch_s(self, slot: int) -> float:
        terms = [term for term in self._plans.model.linear if term.slot == slot]
        group = ExchangeGroup(slot % len(ExchangeGroup))
        inside = self._plans.open & self._choices.inside(group)
        work = self._choices.total[[term.feature for term in terms]][:, inside].sum(axis=0)
        if not (work > 0).all():
            return 0.0
        return min((term.launch_s for term in terms), default=0.0)

    def _add_alone(self) -> None:
        """Adds the time that single tables alone keep an exchange busy."""
        choices = self._choices
        for slot, tables in self._plans.alone.items():
            for index in sorted(tables):
                part = (choices.table_class == index) / choices.counts[index]
                held = self._held(choices.alone_s[slot] * part)
                self._program.at_least([(self._durations[slot], 1.0), *held], 0.0)
        for slot, least_s in self._plans.floors.items():
            if self._plans.by_node(slot):
                continue
            self._program.at_least([(self._durations[slot], 1.0)], least_s / UNIT_S)

    def _add_largest_input(self) -> None:
        """Adds the input of the node, and of the rank, that holds the largest shard of a table.

        The input exchange lasts at least as long as if all ranks held what the ranks of any node
        hold on average, and as if any rank alone held something. That is all that is spread over
        every rank, and such a shard.
        """
        plans, choices, cluster = self._plans, self._choices, self._plans.cluster
        alone = plans.model.input_of_one
        if alone is None or alone.slot not in self._durations:
            return
        shard = choices.busiest[alone.feature]
        self._add_largest(alone, shard, choices.least[alone.feature])
        by_rows = choices.inside(ExchangeGroup.NODE)
        on_node = np.where(by_rows, choices.node_input, shard / cluster.domain_size)
        of_nodes = (Slot.INPUT_EXCHANGE, steps_of(Slot.INPUT_EXCHANGE)[1])
        for curve in plans.curves:
            if curve.slot in of_nodes:
                self._add_largest(curve, on_node, choices.node_input)

    def _add_largest(
        self, curve: Curve, shard: NDArray[np.float64], spread: NDArray[np.float64]
    ) -> None:
        """Demands that an exchange is not shorter than with the largest shard of a table.

        Args:
            curve: The exchange, of what a node or rank holds.
            shard: What each choice adds where its largest shard is; shape `(choices,)`.
            spread: What a choice on all ranks adds to each of them; shape `(choices,)`.
        """
        plans, choices = self._plans, self._choices
        scale = self._scale[curve.feature]
        on_all = plans.open & choices.inside(ExchangeGroup.ROW)
        largest_of = shard / choices.counts[choices.table_class]
        # Copies exchange no input.
        largest_of[on_all | (choices.groups == 1 << ExchangeGroup.REPLICATED)] = 0.0
        everywhere = self._program.variables(1)[0]
        parts = self._parts(spread * on_all / scale)
        self._program.equal(
            [everywhere, *(variable for variable, _ in parts)],
            [1.0, *(-value for _, value in parts)],
            0.0,
        )
        most = np.zeros(len(choices.counts))
        np.maximum.at(most, choices.table_class, np.where(plans.open, largest_of, 0.0))
        tables = np.argsort(-most, kind="stable")[:_MAX_LARGEST]
        largest = self._program.variables(1)[0]
        for index in tables[most[tables] > 0].tolist():
            held = self._parts(-largest_of * (choices.table_class == index) / scale)
            self._program.at_least([(largest, 1.0), (everywhere, -1.0), *held], 0.0)
        top = min(self._most[curve.feature] + float(most.max()), float(curve.grid[-1]))
        found = curve.between(plans.least[curve.feature], top)
        duration = self._durations[curve.slot]
        for piece in sorted({found.piece_at(share * top) for share in NODE_LOOKS}):
            slope = float(found.slopes[piece]) * scale / UNIT_S
            intercept = float(found.intercepts[piece]) / UNIT_S
            self._program.at_least([(duration, 1.0), (largest, -slope)], intercept)

    def _parts(self, values: NDArray[np.float64]) -> list[tuple[int, float]]:
        """Returns terms of the shares of choices, without those that are zero."""
        return [
            (self._variable_of[choice], float(values[choice]))
            for choice in np.flatnonzero(values).tolist()
            if choice in self._variable_of
        ]

    def _held(self, seconds: NDArray[np.float64]) -> list[tuple[int, float]]:
        """Returns terms that subtract seconds of each choice, times its share."""
        return self._parts(-seconds / UNIT_S)

    def _add_memory(self) -> None:
        if np.isfinite(self._choices.free_memory_bytes):
            limit = max(self._choices.free_memory_bytes, 1.0) * self._ranks
            memory = (-self._choices.memory_bytes[self._chosen] / limit).tolist()
            self._program.at_least(zip(self._shares, memory, strict=True), -1.0 - SAFETY)

    def _add_graph(self, makespan: int, durations: dict[int, int]) -> None:
        """Demands that the makespan is not below any path through one rank's iteration."""
        graph = self._plans.graph
        ends = np.array(self._program.variables(len(graph.kind)), dtype=np.int64)
        lasts = np.array([durations[kind] for kind in graph.kind.tolist()], dtype=np.int64)
        # Nothing is waited for at the start of the iteration.
        waited = np.concatenate(([-1], ends))
        before, after = graph.before_s / UNIT_S, graph.after_s / UNIT_S
        node, source = np.nonzero(np.isfinite(before))
        terms = np.stack((ends[node], lasts[node], waited[source]), axis=1)
        self._program.at_least_each(terms, (1.0, -1.0, -1.0), before[node, source])
        (source,) = np.nonzero(np.isfinite(after))
        terms = np.stack((np.full(len(source), makespan), waited[source]), axis=1)
        self._program.at_least_each(terms, (1.0, -1.0), after[source])
