"""Blocks that spaces of every kind have: objectives, limits, prices, links, how to look."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field, WithJsonSchema, field_validator, model_validator
from pydantic_core import PydanticCustomError

from dse.config import (
    BytesPerSecond,
    Count,
    Examples,
    Number,
    Seconds,
    StrictModel,
    UnitKind,
    WholeNumber,
    parse_quantity,
)
from dse.machine import LinkKind, LinkSpec, NetworkSpec
from dse.search.space._space import Constraint, PlanSearch, SamplerName, SearchSettings
from dse.sharding import PLANNERS
from dse.workload import Metric, Name, workload_kinds

#: Default planners: all baselines.
_ALL_PLANNERS = tuple(PLANNERS)

PlannerName = Annotated[Name, WithJsonSchema({"enum": list(PLANNERS)})]


def _metrics() -> list[str]:
    """Returns the names of the metrics of all kinds of workloads."""
    kinds = workload_kinds().values()
    return list(dict.fromkeys(metric.name for kind in kinds for metric in kind.metrics))


#: Name of a metric; which ones there are, the workload says.
MetricName = Annotated[Name, Examples(_metrics)]


class ObjectiveBlock(StrictModel):
    """One objective with its direction.

    Attributes:
        metric: What is wanted; docs/formats.md has all.
        direction: Whether more or less of it is better.
    """

    metric: MetricName
    direction: Literal["maximize", "minimize"]


class ConstraintBlock(StrictModel):
    """One limit; figures with a unit are written with it, for example `500 USD/h` or `20 ms`.

    Attributes:
        metric: What is limited; docs/formats.md has all.
        at_most: Upper limit.
        at_least: Lower limit.
    """

    metric: MetricName
    at_most: str | Number | None = None
    at_least: str | Number | None = None

    @model_validator(mode="after")
    def _check(self) -> ConstraintBlock:
        if self.at_most is None and self.at_least is None:
            raise PydanticCustomError("limit", "expected `at_most`, `at_least` or both")
        return self

    def to_constraint(self, metric: Metric) -> Constraint:
        """Returns the limit in SI units.

        Args:
            metric: What the name stands for.

        Raises:
            ValueError: The limit is not a number, or lacks the metric's unit.
        """
        low, high = (
            None if value is None else _limit(value, metric.limit_unit)
            for value in (self.at_least, self.at_most)
        )
        return Constraint(self.metric, high, low)


def _limit(value: str | float, unit: UnitKind | None) -> float:
    if unit is not None and (isinstance(value, str) or unit is not UnitKind.FRACTION):
        return parse_quantity(str(value), unit)
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"expected a finite number, found `{str(value)[:60]}`")
    return number


class PricingBlock(StrictModel):
    """Which list prices count.

    Attributes:
        basis: For how long machines are rented.
        provider: Only prices of this provider; the cheapest of all by default.
    """

    basis: Literal["on_demand", "capacity_block", "reserved", "spot"] = "on_demand"
    provider: str = ""


class LinkBlock(StrictModel):
    """An interconnect inside a node that the space offers on every platform.

    Attributes:
        kind: How the devices are wired.
        bandwidth: Of each device in one direction.
        latency: Time of one hop, software included.
    """

    kind: LinkKind
    bandwidth: BytesPerSecond
    latency: Seconds

    def to_spec(self, name: str) -> LinkSpec:
        """Returns the interconnect under a name."""
        return LinkSpec(name, self.kind, self.bandwidth, self.latency)


class NetworkBlock(StrictModel):
    """A network between nodes that the space offers on every platform.

    Attributes:
        kind: `infiniband`, `ethernet`, `efa` or another label.
        nics: Network cards of a node.
        bandwidth: Of each card in one direction.
        latency: Of a small message between two nodes.
    """

    kind: Name
    nics: Count
    bandwidth: BytesPerSecond
    latency: Seconds

    def to_spec(self, name: str) -> NetworkSpec:
        """Returns the network under a name."""
        return NetworkSpec(name, self.kind, self.nics, self.bandwidth, self.latency)


class SearchBlock(StrictModel):
    """How the space is searched, unless the command line says otherwise."""

    described_by: ClassVar = SearchSettings

    sampler: SamplerName = SamplerName.AUTO
    trials: Annotated[Count, Field(le=10_000_000)] | None = None
    seed: Annotated[WholeNumber, Field(ge=0, lt=2**64)] = 0
    batch: Annotated[WholeNumber, Field(ge=1, le=1000)] = 20
    planners: Annotated[list[PlannerName], Field(min_length=1)] = list(_ALL_PLANNERS)
    improvement_rounds: Annotated[WholeNumber, Field(ge=0, le=1000)] = 12
    plan: PlanSearch = PlanSearch.SOLVER

    @field_validator("planners")
    @classmethod
    def _known_planners(cls, value: list[str]) -> list[str]:
        for name in value:
            if name not in PLANNERS:
                known = ", ".join(PLANNERS)
                raise PydanticCustomError(
                    "planner", f"expected planners out of {known}; found `{name}`"
                )
        return value

    def to_settings(self) -> SearchSettings:
        """Returns the settings as plain values."""
        return SearchSettings(
            sampler=self.sampler,
            trials=self.trials,
            seed=self.seed,
            batch=self.batch,
            planners=tuple(self.planners),
            improvement_rounds=self.improvement_rounds,
            plan=self.plan,
        )
