"""Spaces whose workload is a model: what may be chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from dse.config import StrictModel
from dse.search.space._fields import (
    Counts,
    Name,
    Names,
    ParametersBlock,
    Precisions,
    RankCounts,
    Switches,
    as_list,
)
from dse.search.space._space import ModelWorkload, Parameter, ParameterValue, WorkloadKind
from dse.sharding import ShardingType

if TYPE_CHECKING:
    from dse.search.space._metrics import Metric

#: Joins the names of a set of sharding types into one value of an outer parameter.
TYPE_SEPARATOR = "+"

#: Begins the name of the outer parameter that places a table, with `plan: joint`.
PLACEMENT_PREFIX = "plan."


def _as_type_sets(value: object) -> object:
    """Lets one list of sharding types stand for a list of one such list."""
    if isinstance(value, str):
        return [[value]]
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return [value]
    return value


LaunchModes = Annotated[
    list[Literal["eager", "cuda_graphs"]], Field(min_length=1), BeforeValidator(as_list)
]
WirePrecisions = Annotated[
    list[Literal["fp32", "fp16"]], Field(min_length=1), BeforeValidator(as_list)
]
TypeSets = Annotated[
    list[Annotated[list[ShardingType], Field(min_length=1)]],
    Field(min_length=1),
    BeforeValidator(_as_type_sets),
]


#: Parameters that a software profile decides.
_SOFTWARE = (
    "launch",
    "overlap_dense_all_reduce",
    "prefetch_input",
    "communication_precision",
)


class ModelParameters(ParametersBlock):
    """The outer choices; each is a value, a list of values, or a range."""

    platform: Names
    world_size: RankCounts
    global_batch_size: Counts | None = None
    local_batch_size: Counts | None = None
    link: Names = ["default"]
    network: Names = ["default"]
    precision: Precisions | None = None
    launch: LaunchModes = ["eager"]
    overlap_dense_all_reduce: Switches = [True]
    prefetch_input: Switches = [True]
    communication_precision: WirePrecisions = ["fp32"]
    software_profile: Names | None = None
    sharding_types: TypeSets = [
        [ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE, ShardingType.ROW_WISE]
    ]

    @model_validator(mode="after")
    def _one_batch_size(self) -> ModelParameters:
        if (self.global_batch_size is None) == (self.local_batch_size is None):
            raise PydanticCustomError(
                "batch", "expected exactly one of `global_batch_size` and `local_batch_size`"
            )
        return self

    @model_validator(mode="after")
    def _one_description_of_software(self) -> ModelParameters:
        beside = [name for name in _SOFTWARE if name in self.model_fields_set]
        if self.software_profile is not None and beside:
            raise PydanticCustomError(
                "software",
                "expected `software_profile` or `{name}`, found both; a profile decides it",
                {"name": beside[0]},
            )
        return self

    def expand(self) -> tuple[Parameter, ...]:
        """Returns the choices; a software profile leaves nothing open of what it decides."""
        parameters = super().expand()
        if self.software_profile is None:
            return parameters
        return tuple(parameter for parameter in parameters if parameter.name not in _SOFTWARE)

    @staticmethod
    def choices_of(values: list[object]) -> tuple[ParameterValue, ...]:
        """Joins sets of sharding types; numbers ascend, others keep their order."""
        plain: list[ParameterValue] = []
        for item in values:
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


class ModelWorkloadBlock(StrictModel):
    """A model that is trained, by name or path; the parameters say which kind of model."""

    model: Name

    def missing_for(self, metric: Metric) -> str:
        """Returns the field without which a metric is not known; a model has them all."""
        del metric
        return ""

    def to_workload(self, folder: str, kind: WorkloadKind) -> ModelWorkload:
        """Returns the plain value; models are looked for as on the command line."""
        del folder
        return ModelWorkload(self.model, kind)
