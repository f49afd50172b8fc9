"""The YAML of a search space: pydantic classes, and their expansion to a `SearchSpace`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator
from pydantic_core import PydanticCustomError

from dse.documents import (
    BytesPerSecond,
    Count,
    Document,
    Seconds,
    StrictModel,
    UnitKind,
    parse_quantity,
)
from dse.hardware import LinkKind, LinkSpec, NetworkSpec, Precision
from dse.sharding import PLANNERS, ShardingType
from dse.space._metrics import Metric
from dse.space._space import (
    Constraint,
    Objective,
    Parameter,
    ParameterValue,
    SamplerName,
    SearchSettings,
    SearchSpace,
)

#: Joins the names of a set of sharding types into one value of an outer parameter.
TYPE_SEPARATOR = "+"

#: Default planners: all baselines.
_ALL_PLANNERS = tuple(PLANNERS)

#: Most values that one range may expand to.
_MAX_CHOICES = 1024

_LIMIT_UNITS = {
    Metric.ITERATION_TIME: UnitKind.TIME,
    Metric.PRICE: UnitKind.PRICE,
    Metric.MEMORY_HEADROOM: UnitKind.FRACTION,
}


class Range(StrictModel):
    """Whole numbers from `low` to `high`, by a constant step or a constant factor."""

    low: Count
    high: Count
    step: Count | None = None
    factor: Annotated[int, Field(ge=2)] | None = None

    @model_validator(mode="after")
    def _check(self) -> Range:
        if self.high < self.low:
            raise PydanticCustomError(
                "range", f"expected high ≥ low, found low {self.low} and high {self.high}"
            )
        if (self.step is None) == (self.factor is None):
            raise PydanticCustomError("range", "expected exactly one of `step` and `factor`")
        if len(self.values()) > _MAX_CHOICES:
            raise PydanticCustomError(
                "range", f"expected at most {_MAX_CHOICES} values; use a larger step"
            )
        return self

    def values(self) -> tuple[int, ...]:
        """Returns the numbers, ascending."""
        if self.step is not None:
            stop = min(self.high, self.low + self.step * _MAX_CHOICES)
            return tuple(range(self.low, stop + 1, self.step))
        values = []
        value = self.low
        while value <= self.high:
            values.append(value)
            value *= self.factor or 2
        return tuple(values)


def _as_list(value: object) -> object:
    """Lets a single value stand for a list of one."""
    return value if isinstance(value, list | dict) else [value]


def _as_type_sets(value: object) -> object:
    """Lets one list of sharding types stand for a list of one such list."""
    if isinstance(value, str):
        return [[value]]
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return [value]
    return value


Name = Annotated[str, Field(min_length=1, max_length=200)]
Names = Annotated[list[Name], Field(min_length=1), BeforeValidator(_as_list)]
Counts = Annotated[
    Annotated[list[Count], Field(min_length=1), Tag("list")] | Annotated[Range, Tag("range")],
    Discriminator(lambda value: "range" if isinstance(value, dict | Range) else "list"),
    BeforeValidator(_as_list),
]
Switches = Annotated[list[bool], Field(min_length=1), BeforeValidator(_as_list)]
Precisions = Annotated[list[Precision], Field(min_length=1), BeforeValidator(_as_list)]
LaunchModes = Annotated[
    list[Literal["eager", "cuda_graphs"]], Field(min_length=1), BeforeValidator(_as_list)
]
WirePrecisions = Annotated[
    list[Literal["fp32", "fp16"]], Field(min_length=1), BeforeValidator(_as_list)
]
TypeSets = Annotated[
    list[Annotated[list[ShardingType], Field(min_length=1)]],
    Field(min_length=1),
    BeforeValidator(_as_type_sets),
]


class ParametersBlock(StrictModel):
    """The outer choices; each is a value, a list of values, or a range."""

    platform: Names
    world_size: Counts
    global_batch_size: Counts | None = None
    local_batch_size: Counts | None = None
    link: Names = ["default"]
    network: Names = ["default"]
    precision: Precisions | None = None
    launch: LaunchModes = ["eager"]
    overlap_dense_all_reduce: Switches = [True]
    prefetch_input: Switches = [True]
    communication_precision: WirePrecisions = ["fp32"]
    sharding_types: TypeSets = [
        [ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE, ShardingType.ROW_WISE]
    ]

    @model_validator(mode="after")
    def _one_batch_size(self) -> ParametersBlock:
        if (self.global_batch_size is None) == (self.local_batch_size is None):
            raise PydanticCustomError(
                "batch", "expected exactly one of `global_batch_size` and `local_batch_size`"
            )
        return self

    def expand(self) -> tuple[Parameter, ...]:
        """Returns the choices in the order of this class's fields."""
        parameters = []
        for name in type(self).model_fields:
            value = getattr(self, name)
            if value is not None:
                parameters.append(Parameter(name, _choices(value)))
        return tuple(parameters)


def _choices(value: Range | list[object]) -> tuple[ParameterValue, ...]:
    if isinstance(value, Range):
        return value.values()
    plain: list[ParameterValue] = []
    for item in value:
        if isinstance(item, list):
            chosen: ParameterValue = TYPE_SEPARATOR.join(
                kind.value for kind in ShardingType if kind in item
            )
        else:
            chosen = item if isinstance(item, bool | int | float) else str(item)
        if chosen not in plain:
            plain.append(chosen)
    if all(isinstance(item, int) and not isinstance(item, bool) for item in plain):
        plain.sort(key=int)
    return tuple(plain)


class ObjectiveBlock(StrictModel):
    """One objective with its direction."""

    metric: Metric
    direction: Literal["maximize", "minimize"]


class ConstraintBlock(StrictModel):
    """One limit; figures with a unit are written with it, for example `500 USD/h` or `20 ms`."""

    metric: Metric
    at_most: str | float | None = None
    at_least: str | float | None = None

    @model_validator(mode="after")
    def _check(self) -> ConstraintBlock:
        if self.at_most is None and self.at_least is None:
            raise PydanticCustomError("limit", "expected `at_most`, `at_least` or both")
        self.to_constraint()
        return self

    def to_constraint(self) -> Constraint:
        """Returns the limit in SI units."""
        return Constraint(self.metric, self._limit(self.at_most), self._limit(self.at_least))

    def _limit(self, value: str | float | None) -> float | None:
        if value is None:
            return None
        unit = _LIMIT_UNITS.get(self.metric)
        try:
            if isinstance(value, str) and unit is not None:
                return parse_quantity(value, unit)
            number = float(value)
        except ValueError as error:
            raise PydanticCustomError("limit", "{problem}", {"problem": str(error)}) from error
        if unit in (UnitKind.TIME, UnitKind.PRICE):
            example = "20 ms" if unit is UnitKind.TIME else "500 USD/h"
            raise PydanticCustomError(
                "limit", f"expected a limit with its unit such as `{example}`, found `{value}`"
            )
        return number


class PricingBlock(StrictModel):
    """Which list prices count."""

    basis: Literal["on_demand", "capacity_block", "reserved", "spot"] = "on_demand"
    provider: str = ""


class LinkBlock(StrictModel):
    """An interconnect inside a node that the space offers on every platform."""

    kind: LinkKind
    bandwidth: BytesPerSecond
    latency: Seconds

    def to_spec(self, name: str) -> LinkSpec:
        """Returns the interconnect under a name."""
        return LinkSpec(name, self.kind, self.bandwidth, self.latency)


class NetworkBlock(StrictModel):
    """A network between nodes that the space offers on every platform."""

    kind: Name
    nics: Count
    bandwidth: BytesPerSecond
    latency: Seconds

    def to_spec(self, name: str) -> NetworkSpec:
        """Returns the network under a name."""
        return NetworkSpec(name, self.kind, self.nics, self.bandwidth, self.latency)


class SearchBlock(StrictModel):
    """How to look."""

    sampler: SamplerName = SamplerName.NSGA2
    trials: Count = 200
    seed: Annotated[int, Field(ge=0)] = 0
    batch: Annotated[int, Field(ge=1, le=1000)] = 20
    planners: Annotated[list[Name], Field(min_length=1)] = list(_ALL_PLANNERS)
    improvement_rounds: Annotated[int, Field(ge=0, le=1000)] = 12

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


class WorkloadBlock(StrictModel):
    """What is trained."""

    model: Name


class SpaceDocument(Document):
    """A search space: what may be chosen, what is wanted, and how to look for it."""

    name: Name
    description: str = ""
    workload: WorkloadBlock
    parameters: ParametersBlock
    objectives: Annotated[list[ObjectiveBlock], Field(min_length=1, max_length=3)]
    constraints: list[ConstraintBlock] = []
    pricing: PricingBlock = PricingBlock()
    links: dict[Name, LinkBlock] = {}
    networks: dict[Name, NetworkBlock] = {}
    search: SearchBlock = SearchBlock()

    @field_validator("objectives")
    @classmethod
    def _different_objectives(cls, value: list[ObjectiveBlock]) -> list[ObjectiveBlock]:
        metrics = [objective.metric for objective in value]
        if len(set(metrics)) < len(metrics):
            raise PydanticCustomError("objectives", "expected different metrics, one was repeated")
        return value

    def to_space(self) -> SearchSpace:
        """Returns the space as plain values."""
        return SearchSpace(
            name=self.name,
            description=self.description,
            model=self.workload.model,
            parameters=self.parameters.expand(),
            objectives=tuple(
                Objective(block.metric, block.direction == "maximize") for block in self.objectives
            ),
            constraints=tuple(block.to_constraint() for block in self.constraints),
            price_basis=self.pricing.basis,
            price_provider=self.pricing.provider,
            links=tuple(block.to_spec(name) for name, block in self.links.items()),
            networks=tuple(block.to_spec(name) for name, block in self.networks.items()),
            search=SearchSettings(
                sampler=self.search.sampler,
                trials=self.search.trials,
                seed=self.search.seed,
                batch=self.search.batch,
                planners=tuple(self.search.planners),
                improvement_rounds=self.search.improvement_rounds,
            ),
        )
