"""What is known of the plans of one layout, and what is asked and found of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dse.workload.dlrm import ExchangeGroup, Slot

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dse.machine import Cluster
    from dse.workload.dlrm.solver._bound_curves import Envelope
    from dse.workload.dlrm.solver._bound_graph import SlotGraph
    from dse.workload.dlrm.solver._bound_options import Choices
    from dse.workload.dlrm.solver._bound_slots import Curve, SlotModel


@dataclass(frozen=True, slots=True)
class Relaxed:
    """The solution of one layout.

    Attributes:
        value_s: No plan of the layout is faster.
        durations_s: Durations of the plan-dependent tasks there; shape `(slots,)`.
        shares: Tables of its class that take each choice; shape `(choices,)`.
        features: What a rank holds on average; shape `(features,)`.
        envelopes: Of exchanges, by slot.
        most: The largest average of each feature.
    """

    value_s: float
    durations_s: NDArray[np.float64]
    shares: NDArray[np.float64]
    features: NDArray[np.float64]
    envelopes: dict[int, Envelope]
    most: dict[int, float]


@dataclass(frozen=True, slots=True)
class Piece:
    """What some rank has to look up and update in any plan, in seconds beside the launches.

    Attributes:
        label: What it is, in words.
        group: The exchange group.
        lookup_s: What each choice adds to it, times its share; shape `(choices,)`.
        update_s: The same of the update.
        launch: What each choice adds of a launch; shape `(choices,)`.
        members: Classes whose tables are all in the group, or else `shared_s` is void.
        shared_s: Then the rank has at least this for lookup, update, and both together.
    """

    label: str
    group: ExchangeGroup
    lookup_s: NDArray[np.float64]
    update_s: NDArray[np.float64]
    launch: NDArray[np.float64]
    members: tuple[int, ...] = ()
    shared_s: tuple[float, float, float] = (0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Missed:
    """What a solution undercuts an exchange by.

    Attributes:
        seconds: Of the iteration.
        feature: What the exchange depends on; -1 where nothing is undercut.
        value: Average of the feature at which plans are told apart.
        at_bend: Whether that is where the duration bends, not where the solution is.
    """

    seconds: float
    feature: int
    value: float
    at_bend: bool


@dataclass(frozen=True, slots=True)
class Plans:
    """The plans that a relaxation is about, and the demands that are in it so far.

    Attributes:
        choices: Choices of all tables.
        model: What tasks last at least.
        graph: One rank's iteration.
        cluster: Where.
        groups: Exchange groups in use; some table is in each.
        open: Choices that are left; shape `(choices,)`.
        least: The least average of each feature.
        caps: The largest average of some features, where it has been limited.
        looks: Values at which the envelope of an exchange is looked at, as shares of its range.
        alone: Tables that alone keep an exchange busy for longer than averages say.
        floors: What some exchanges last at least, for a choice that some table takes; by slot.
    """

    choices: Choices
    model: SlotModel
    graph: SlotGraph
    cluster: Cluster
    groups: tuple[ExchangeGroup, ...]
    open: NDArray[np.bool_]
    least: dict[int, float]
    caps: dict[int, float]
    looks: dict[int, set[float]]
    alone: dict[int, set[int]]
    floors: dict[int, float]

    @property
    def slots(self) -> list[int]:
        """Plan-dependent tasks of this layout."""
        return sorted({int(kind) for kind in self.graph.kind})

    @property
    def partial(self) -> list[ExchangeGroup]:
        """Groups in use whose pieces may sit on some of the ranks only."""
        several = self.cluster.node_count > 1
        return [
            group
            for group in self.groups
            if group is ExchangeGroup.POOLED or (group is ExchangeGroup.NODE and several)
        ]

    @property
    def features(self) -> list[int]:
        """Placement features that matter in this layout."""
        slots = set(self.slots)
        terms = {term.feature for term in self.model.linear if term.slot in slots}
        return sorted(terms | {curve.feature for curve in self.curves})

    @property
    def curves(self) -> list[Curve]:
        """Exchanges of this layout."""
        slots = set(self.slots)
        return [curve for curve in self.model.curves if curve.slot in slots]

    def by_node(self, slot: int) -> bool:
        """Whether the durations of an exchange differ between nodes."""
        return slot == Slot.NODE_EXCHANGE_INSIDE and self.cluster.node_count > 1
