"""The YAML of a what-if, and `NAME=VALUE` of the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Discriminator, Field, Tag, TypeAdapter, ValidationError

from dse._suggest import hint
from dse.documents import Document, load_document
from dse.errors import ConfigError, UnknownNameError
from dse.whatif._steps import InsertStep, RemoveStep, ScaleStep, ScheduleStep, Step
from dse.whatif.optimizations import OPTIMIZATIONS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dse.whatif._steps import Optimization

_PRIMITIVES: dict[str, type[Step]] = {
    "scale": ScaleStep,
    "remove": RemoveStep,
    "insert": InsertStep,
    "schedule": ScheduleStep,
}
_BY_NAME: dict[str, type[Optimization]] = {
    kind.model_fields["optimization"].default: kind for kind in OPTIMIZATIONS
}


def _tag(value: object) -> str | None:
    """Says which kind of step a block is: by its key, or by the optimization's name."""
    if isinstance(value, Step):
        return next(key for key, kind in _KINDS.items() if type(value) is kind)
    if not isinstance(value, dict):
        return None
    if "optimization" in value:
        return _key(str(value["optimization"]))
    return next((_key(name) for name in _PRIMITIVES if name in value), None)


def _key(name: str) -> str:
    """Returns a tag that is no key of any file, so that places in files are found."""
    return f"({name})"


_KINDS: dict[str, type[Step]] = {
    _key(name): kind for name, kind in {**_PRIMITIVES, **_BY_NAME}.items()
}


if TYPE_CHECKING:
    AnyStep = Step
else:
    _members = [Annotated[kind, Tag(key)] for key, kind in _KINDS.items()]
    _union = _members[0]
    for _member in _members[1:]:
        _union = _union | _member
    AnyStep = Annotated[
        _union,
        Discriminator(
            _tag,
            custom_error_type="step",
            custom_error_message="expected one of `scale`, `remove`, `insert`, `schedule`, or "
            f"`optimization` with one of {', '.join(_BY_NAME)}",
        ),
    ]


class WhatIfDocument(Document):
    """Changes to a captured step, applied one after the other."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    description: str = ""
    steps: Annotated[list[AnyStep], Field(min_length=1, max_length=1000)]


def optimization_names() -> tuple[str, ...]:
    """Returns the names of all optimizations."""
    return tuple(_BY_NAME)


def read_steps(path: str | Path) -> tuple[Step, ...]:
    """Reads the steps of a YAML file.

    Raises:
        ConfigError: With every problem at its place.
    """
    return tuple(load_document(path, WhatIfDocument).steps)


def parse_optimization(text: str) -> Step:
    """Reads `NAME`, `NAME=VALUE`, or `NAME=VALUE,option=value,…` of the command line.

    Args:
        text: For example `network=2x`, `gpu=h100_sxm` or `network=2x,latency=0.5x`.

    Raises:
        UnknownNameError: There is no such optimization.
        ConfigError: An option is unknown, missing or impossible.
    """
    name, _, rest = text.partition("=")
    kind = _BY_NAME.get(name.strip())
    if kind is None:
        raise UnknownNameError(
            f"no optimization is called `{name.strip()}`; {hint(name.strip(), _BY_NAME)}"
        )
    options: dict[str, Any] = {"optimization": name.strip()}
    for place, part in enumerate(filter(None, rest.split(","))):
        key, equals, value = part.partition("=")
        if not equals:
            if place or not kind.main_option:
                raise ConfigError(
                    f"--optimization {text}: `{part}` is no option; options of `{name}` are "
                    + (", ".join(_options_of(kind)) or "none")
                )
            key, value = kind.main_option, part
        options[key.strip()] = value.strip()
    try:
        return TypeAdapter(kind).validate_python(options)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, one['loc'])) or name}: {one['msg']}" for one in error.errors()
        )
        raise ConfigError(
            f"--optimization {text}: {problems}; options of `{name}` are "
            + (", ".join(_options_of(kind)) or "none")
        ) from error


def describe_optimizations() -> Sequence[tuple[str, str, tuple[str, ...]]]:
    """Returns name, first line of the description, and options of every optimization."""
    return [
        (name, (kind.__doc__ or "").strip().splitlines()[0], _options_of(kind))
        for name, kind in _BY_NAME.items()
    ]


def _options_of(kind: type[Optimization]) -> tuple[str, ...]:
    names = [name for name in kind.model_fields if name != "optimization"]
    return tuple(sorted(names, key=lambda name: name != kind.main_option))
