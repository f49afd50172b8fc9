"""Parameters of a captured step: what may be changed about it."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from dse.config import Examples, Number, OneOrMany
from dse.errors import ConfigError
from dse.workload._parameters import (
    SAME_PLATFORM,
    LinkNames,
    Name,
    NetworkNames,
    ParametersBlock,
    ParameterValue,
    Platforms,
    RankCounts,
)

#: Joins the optimizations of a set into one value of an outer parameter.
OPTIMIZATION_SEPARATOR = " + "

#: Value of the outer parameter for the empty set.
NO_OPTIMIZATION = "none"

_STEP_FILES = (".yaml", ".yml")


def is_step_file(text: str) -> bool:
    """Returns whether an entry of a set of optimizations is a file of steps."""
    return text.endswith(_STEP_FILES)


def _known_optimization(text: str) -> str:
    if OPTIMIZATION_SEPARATOR in text:
        raise PydanticCustomError(
            "optimization", "expected one optimization; write several as a list"
        )
    if not is_step_file(text):
        _parsed(text)
    return text.strip()


def _as_bandwidth_factor(value: object) -> object:
    """Reads `2x`, `0.5` or `50 %` as the optimization `network` does."""
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return getattr(_parsed(f"network={value}"), "factor", value)
    return value


def _parsed(text: str) -> object:
    from dse.trace.whatif import parse_optimization

    try:
        return parse_optimization(text)
    except ConfigError as error:
        problem = str(error).removeprefix("--optimization ")
        raise PydanticCustomError("optimization", "{problem}", {"problem": problem}) from error


def _optimizations() -> list[str]:
    """Returns the names of all optimizations."""
    from dse.trace.whatif import describe_optimizations

    return [name for name, *_ in describe_optimizations()]


def _as_sets(value: object) -> object:
    """Wraps one optimization, or one list of them, in a list of sets."""
    if isinstance(value, str):
        return [[value]]
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return [value]
    return value


Optimization = Annotated[
    Name, Examples(lambda: _optimizations()), AfterValidator(_known_optimization)
]
OptimizationSets = Annotated[
    list[list[Optimization]],
    Field(min_length=1),
    BeforeValidator(
        _as_sets,
        json_schema_input_type=Annotated[list[list[Optimization]], Field(min_length=1)]
        | list[Optimization]
        | Optimization,
    ),
]
FactorText = Annotated[str, Field(pattern=r"^\s*\d+(?:\.\d+)?(?:[eE][+-]?\d+)?\s*[xX×%]?\s*$")]
BandwidthFactors = Annotated[
    list[
        Annotated[
            Number,
            Field(gt=0),
            BeforeValidator(
                _as_bandwidth_factor,
                json_schema_input_type=Annotated[float, Field(gt=0)] | FactorText,
            ),
        ]
    ],
    Field(min_length=1),
    OneOrMany(),
]


class RecordedParameters(ParametersBlock):
    """Changes to the captured step; each is a value or a list of values.

    What is left out stays as captured and is no column of the tables.

    Attributes:
        platform: Platforms to move the step to; `same` is the one that it was captured on.
        world_size: Numbers of ranks of data parallelism.
        link: Interconnects inside a node, by the platform's names.
        network: Networks between nodes, by the platform's names.
        network_factor: Bandwidths inside nodes and between them, times the captured ones: `2x`.
        optimizations: Sets of optimizations, `dse trace whatif --list` has all, or files of steps.
    """

    platform: Platforms = [SAME_PLATFORM]
    world_size: RankCounts | None = None
    link: LinkNames | None = None
    network: NetworkNames | None = None
    network_factor: BandwidthFactors | None = None
    optimizations: OptimizationSets = [[]]

    @staticmethod
    def choices_of(values: list[object]) -> tuple[ParameterValue, ...]:
        """Joins sets of optimizations; numbers ascend, others keep their order."""
        plain: dict[ParameterValue, None] = {}
        for item in values:
            if isinstance(item, list):
                plain[OPTIMIZATION_SEPARATOR.join(item) or NO_OPTIMIZATION] = None
            elif isinstance(item, int | float | str):
                plain[item] = None
        found = tuple(plain)
        numbers = [item for item in found if not isinstance(item, str)]
        return tuple(sorted(numbers)) if len(numbers) == len(found) else found
