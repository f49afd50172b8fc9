"""Parameters: what a search space may choose for a workload, and how it is written in YAML."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Self, TypeAlias

from pydantic import (
    AfterValidator,
    AliasChoices,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from dse.config import (
    MAX_COUNT,
    Count,
    DocumentKind,
    Examples,
    OneOrMany,
    RankCount,
    StrictModel,
    WholeNumber,
    find_document,
    from_folder,
    known_to,
)
from dse.machine import Precision
from dse.machine.platforms import (
    DerivedPlatform,
    DerivedPlatformBlock,
    PlatformChoice,
    list_platforms,
    load_platform,
)
from dse.workload._launch import LaunchMode

if TYPE_CHECKING:
    from collections.abc import Mapping

ParameterValue: TypeAlias = str | int | float | bool

#: Most values that one range may expand to.
_MAX_CHOICES = 1024


@dataclass(frozen=True, slots=True)
class Parameter:
    """One outer choice.

    Attributes:
        name: Its name in the YAML's `parameters` block.
        choices: Values, at least one, without repetition; ascending when ordered.
    """

    name: str
    choices: tuple[ParameterValue, ...]

    @property
    def ordered(self) -> bool:
        """Whether the values are numbers, between which a sampler may interpolate."""
        return all(
            isinstance(value, int | float) and not isinstance(value, bool)
            for value in self.choices
        )


class Range(StrictModel):
    """Whole numbers from `low` to `high`, by a constant step or a constant factor.

    Attributes:
        low: The first number.
        high: No number is larger; it need not be reached.
        step: Difference of each number to the one before.
        factor: Ratio of each number to the one before, instead of a step.
    """

    low: Count
    high: Count
    step: Count | None = None
    factor: Annotated[WholeNumber, Field(ge=2, le=MAX_COUNT)] | None = None

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


class RankRange(Range):
    """Numbers of ranks from `low` to `high`, by a constant step or a constant factor."""

    low: RankCount
    high: RankCount


class ParametersBlock(StrictModel):
    """Outer choices of a space, one a field: a list of values, a range, or nothing."""

    @staticmethod
    def choices_of(values: list[object]) -> tuple[ParameterValue, ...]:
        """Returns the different values of one parameter as a study keeps them.

        Numbers ascend, others keep their order.
        """
        plain: dict[ParameterValue, None] = {}
        for item in values:
            plain[item if isinstance(item, bool | int | float) else str(item)] = None
        found = tuple(plain)
        numbers = [item for item in found if isinstance(item, int) and not isinstance(item, bool)]
        return tuple(sorted(numbers)) if len(numbers) == len(found) else found

    @classmethod
    def keys(cls) -> frozenset[str]:
        """Returns the names of all parameters, former names included."""
        found = set(cls.model_fields)
        for field in cls.model_fields.values():
            if isinstance(field.validation_alias, AliasChoices):
                found |= {name for name in field.validation_alias.choices if isinstance(name, str)}
        return frozenset(found)

    def in_folder(self, folder: str) -> Self:
        """Returns them with the paths of platforms, which count from a folder, as from here.

        Args:
            folder: Folder of the file that has them.
        """
        platforms = [
            from_folder(item, folder) if isinstance(item, str) else item.in_folder(folder)
            for item in getattr(self, "platform", ())
        ]
        return self.model_copy(update={"platform": platforms}) if platforms else self

    def expand(self) -> tuple[Parameter, ...]:
        """Returns the choices in the order of this class's fields."""
        given = ((name, getattr(self, name)) for name in type(self).model_fields)
        return tuple(
            Parameter(
                name,
                value.values()
                if isinstance(value, Range)
                else self.choices_of([_plain(item) for item in value]),
            )
            for name, value in given
            if value is not None
        )

    @property
    def derived_platforms(self) -> tuple[DerivedPlatform, ...]:
        """Platforms that are given by what differs from others, in their order."""
        return tuple(
            item.to_derived()
            for item in getattr(self, "platform", ())
            if isinstance(item, DerivedPlatformBlock)
        )


def _plain(item: object) -> object:
    """Returns a value as a study keeps it: a derived platform is chosen by its name."""
    return item.to_derived().name if isinstance(item, DerivedPlatformBlock) else item


Name = Annotated[str, Field(min_length=1, max_length=200)]
Names = Annotated[list[Name], Field(min_length=1), OneOrMany()]


def _names_in_platforms(field: str) -> list[str]:
    """Returns the names of links or networks of the built-in platforms, and the default's."""
    platforms = map(load_platform, list_platforms())
    found = {one.name for platform in platforms for one in getattr(platform, field)}
    return [DEFAULT, *sorted(found)]


#: In the place of a platform: the machine that a trace was captured on.
SAME_PLATFORM = "same"
#: In the place of a link or network: that of the platform.
DEFAULT = "default"
LinkNames = Annotated[
    list[Annotated[Name, Examples(lambda: _names_in_platforms("links"))]],
    Field(min_length=1),
    OneOrMany(),
]
NetworkNames = Annotated[
    list[Annotated[Name, Examples(lambda: _names_in_platforms("networks"))]],
    Field(min_length=1),
    OneOrMany(),
]


def _of_different_names(
    value: list[str | DerivedPlatformBlock],
) -> list[str | DerivedPlatformBlock]:
    """Refuses different platforms under one name."""
    known: dict[str, str | DerivedPlatform] = {}
    for index, item in enumerate(value):
        one = item if isinstance(item, str) else item.to_derived()
        name = one if isinstance(one, str) else one.name
        if known.setdefault(name, one) != one:
            problem = PydanticCustomError(
                "platforms",
                "two platforms are called `{name}`; give one of them another `name`",
                {"name": name},
            )
            raise ValidationError.from_exception_data(
                "platforms", [InitErrorDetails(type=problem, loc=(index,), input=name)]
            )
    return value


def _find_platform(name_or_path: str) -> None:
    # Of models no machine was captured: whoever looks for the platform says so.
    if name_or_path != SAME_PLATFORM:
        find_document(DocumentKind.PLATFORM, name_or_path)


#: Platforms that may be chosen.
Platforms = Annotated[
    list[Annotated[PlatformChoice, known_to(_find_platform)]],
    Field(min_length=1),
    OneOrMany(),
    AfterValidator(_of_different_names),
]
_list_or_range = Discriminator(
    lambda value: "range" if isinstance(value, dict | Range) else "list"
)
Counts = Annotated[
    Annotated[list[Count], Field(min_length=1), OneOrMany(), Tag("list")]
    | Annotated[Range, Tag("range")],
    _list_or_range,
]
#: Numbers of ranks, or degrees that multiply to them.
RankCounts = Annotated[
    Annotated[list[RankCount], Field(min_length=1), OneOrMany(), Tag("list")]
    | Annotated[RankRange, Tag("range")],
    _list_or_range,
]
Switches = Annotated[list[bool], Field(min_length=1), OneOrMany()]
Precisions = Annotated[list[Precision], Field(min_length=1), OneOrMany()]
LaunchModes = Annotated[list[LaunchMode], Field(min_length=1), OneOrMany()]


def named(parameters: Mapping[str, ParameterValue], kind: str) -> str:
    """Returns the link or network that parameters name; empty for the platform's default.

    Args:
        parameters: Value of each parameter.
        kind: ``link`` or ``network``.
    """
    name = str(parameters.get(kind, DEFAULT))
    return "" if name == DEFAULT else name
