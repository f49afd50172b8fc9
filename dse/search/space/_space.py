"""A search space, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dse.machine import LinkSpec, NetworkSpec
    from dse.machine.platforms import DerivedPlatform
    from dse.search.space._workload_blocks import ModelReference, TraceReference
    from dse.sharding import TableConstraints
    from dse.workload import Metric, Parameter, ParameterValue


class SamplerName(StrEnum):
    """Ways to search a space, by their names in YAML.

    ``auto``: the whole front with a proof where the space can be enumerated, NSGA-II elsewhere.
    The others are Optuna's samplers.
    """

    AUTO = "auto"
    NSGA2 = "nsga2"
    TPE = "tpe"
    GP = "gp"
    RANDOM = "random"
    GRID = "grid"


class PlanSearch(StrEnum):
    """How the sharding plan of a configuration is found.

    ``solver``: by the inner search, for each configuration. ``joint``: the placement of every
    table is one more outer choice, which the sampler makes.
    """

    SOLVER = "solver"
    JOINT = "joint"


@dataclass(frozen=True, slots=True)
class Objective:
    """One axis of the Pareto front.

    Attributes:
        metric: Name of what is measured.
        maximize: Direction.
    """

    metric: str
    maximize: bool


@dataclass(frozen=True, slots=True)
class Constraint:
    """A limit that every answer has to keep.

    Attributes:
        metric: Name of what is limited.
        at_most: Upper limit in SI units, or None.
        at_least: Lower limit in SI units, or None.
    """

    metric: str
    at_most: float | None
    at_least: float | None

    def violation(self, value: float) -> float:
        """Returns by how much `value` breaks the limit; zero or less when it keeps it."""
        over = -math.inf if self.at_most is None else value - self.at_most
        under = -math.inf if self.at_least is None else self.at_least - value
        return max(over, under)

    def reason(self, value: float, metric: Metric) -> str:
        """Says in words how `value` breaks the limit.

        Args:
            value: In SI units; NaN where it is not known.
            metric: What is limited.
        """
        if math.isnan(value):
            return f"{metric.noun}: not known, so no limit on it is met"
        high = self.at_most is not None and value > self.at_most
        side, limit = ("above", self.at_most) if high else ("below", self.at_least)
        assert limit is not None
        found, allowed = metric.text(value), metric.text(limit)
        if found == allowed:
            # Where they are closer than people usually look.
            found, allowed = (f"{each * metric.scale:.6g}" for each in (value, limit))
        found, allowed = (f"{text} {metric.unit}".rstrip() for text in (found, allowed))
        return f"{metric.noun}: {found}, {side} the limit of {allowed}"


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """How the space is searched, unless the command line says otherwise.

    Attributes:
        sampler: Proposes outer configurations.
        trials: Configurations to evaluate at most; None for as many as the sampler needs.
        seed: Seed of all randomness.
        batch: Configurations proposed before any of them is answered; fixed, so that the result
            does not depend on the number of worker processes.
        planners: Baseline planners that start the inner search.
        improvement_rounds: Rounds of local search on the sharding plan.
        plan: How the sharding plan is found.
    """

    sampler: SamplerName
    trials: int | None
    seed: int
    batch: int
    planners: tuple[str, ...]
    improvement_rounds: int
    plan: PlanSearch = PlanSearch.SOLVER


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """What may be chosen, what is wanted, and how to look for it.

    Attributes:
        name: Name of the space.
        description: One line.
        workload: What is trained: a model, or a captured job.
        parameters: Outer choices in a fixed order.
        objectives: Axes of the front, the leading one first.
        constraints: Limits.
        price_basis: Which list prices count.
        price_provider: Restricts prices to one provider; empty for the cheapest of all.
        links: Interconnects the space adds to every platform's own.
        networks: Networks the space adds to every platform's own.
        search: Search settings.
        derived_platforms: Platforms among the choices that are given by what differs from others.
        table_constraints: Constraints on tables by the names that parameters choose among.
    """

    name: str
    description: str
    workload: ModelReference | TraceReference
    parameters: tuple[Parameter, ...]
    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...]
    price_basis: str
    price_provider: str
    links: tuple[LinkSpec, ...]
    networks: tuple[NetworkSpec, ...]
    search: SearchSettings
    derived_platforms: tuple[DerivedPlatform, ...] = ()
    table_constraints: tuple[tuple[str, tuple[TableConstraints, ...]], ...] = ()

    def __repr__(self) -> str:
        wanted = ", ".join(axis.metric for axis in self.objectives)
        return f"SearchSpace({self.name}: {self.size:,} combinations, {wanted})"

    @property
    def size(self) -> int:
        """Number of combinations of outer choices."""
        return math.prod(len(parameter.choices) for parameter in self.parameters)

    def choices(self, name: str) -> tuple[ParameterValue, ...]:
        """Returns the choices of a parameter.

        Raises:
            KeyError: The space has no such parameter.
        """
        for parameter in self.parameters:
            if parameter.name == name:
                return parameter.choices
        raise KeyError(name)
