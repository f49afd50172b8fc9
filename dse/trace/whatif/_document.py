"""The YAML of a what-if, and `NAME=VALUE` of the command line."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from dse._text.suggest import hint
from dse.config import Document, load_document, parse_json
from dse.errors import ConfigError, UnknownNameError
from dse.trace.whatif.core import Change, InsertChange, RemoveChange, ScaleChange, ScheduleChange
from dse.trace.whatif.optimizations import OPTIMIZATIONS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from dse.trace.whatif.core import Optimization


_PRIMITIVES: dict[str, type[Change]] = {
    "scale": ScaleChange,
    "remove": RemoveChange,
    "insert": InsertChange,
    "schedule": ScheduleChange,
}


def _tag(value: object) -> str | None:
    """Returns the kind of a change: by its key, or by the optimization's name."""
    if isinstance(value, Change):
        return next(key for key, kind in _KINDS.items() if type(value) is kind)
    if not isinstance(value, dict):
        return None
    if "optimization" in value:
        return _key(str(value["optimization"]))
    return next((_key(name) for name in _PRIMITIVES if name in value), None)


def _key(name: str) -> str:
    """Returns a tag that is no key of any file, so that places in files can be found."""
    return f"({name})"


def _one_action(value: object) -> object:
    """Refuses blocks with two actions, of which one would be lost."""
    if not isinstance(value, dict):
        return value
    actions = [name for name in (*_PRIMITIVES, "optimization") if name in value]
    if len(actions) > 1:
        listed = " and ".join(f"`{name}`" for name in actions)
        raise PydanticCustomError(
            "step",
            "one action a step, found {listed}; write one step for each",
            {"listed": listed},
        )
    if "remove" in value and value["remove"] is not True:
        raise PydanticCustomError(
            "step", "`remove` only takes `true`; leave the step out to keep the tasks"
        )
    return value


_KINDS: dict[str, type[Change]] = {
    _key(name): kind for name, kind in {**_PRIMITIVES, **OPTIMIZATIONS}.items()
}


if TYPE_CHECKING:
    AnyChange = Change
else:
    _members = [Annotated[kind, Tag(key)] for key, kind in _KINDS.items()]
    _union = _members[0]
    for _member in _members[1:]:
        _union = _union | _member
    AnyChange = Annotated[
        _union,
        Discriminator(
            _tag,
            custom_error_type="step",
            custom_error_message="expected one of `scale`, `remove`, `insert`, `schedule`, or "
            f"`optimization` with one of {', '.join(OPTIMIZATIONS)}",
        ),
        BeforeValidator(_one_action),
    ]


class WhatIfDocument(Document):
    """Changes to a captured step, applied in order."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    description: str = ""
    steps: Annotated[list[AnyChange], Field(min_length=1, max_length=1000)]


def read_changes(path: str | Path) -> tuple[Change, ...]:
    """Reads the changes of a YAML file.

    Raises:
        ConfigError: With every problem at its place.
    """
    return tuple(load_document(path, WhatIfDocument).steps)


def parse_optimization(text: str) -> Change:
    """Reads `NAME[=VALUE][,OPTION=VALUE…]` of the command line.

    Args:
        text: For example `network=2x`, `network=2x,latency=0.5x` or `amp,communication=2x`.

    Raises:
        UnknownNameError: There is no such optimization.
        ConfigError: An option is unknown, missing or impossible.
    """
    options = optimization_options(text)
    kind = OPTIMIZATIONS[options["optimization"]]
    try:
        return read_optimization(options)
    except ConfigError as error:
        problems = "; ".join(
            f"{problem.field or options['optimization']}: {problem.message}"
            for problem in error.diagnostics
        )
        raise ConfigError(f"--optimization {text}: {problems}; {_offered(kind)}") from error


def read_optimization(options: Mapping[str, object]) -> Change:
    """Reads an optimization as a file of changes has it.

    Args:
        options: Its name under `optimization`, and its options.

    Raises:
        ConfigError: An option is unknown, missing or impossible.
    """
    return parse_json(json.dumps(options), OPTIMIZATIONS[str(options["optimization"])])


def optimization_options(text: str) -> dict[str, str]:
    """Returns what `NAME[=VALUE][,OPTION=VALUE…]` gives, as a file of changes would have it.

    Args:
        text: As for :func:`parse_optimization`.

    Returns:
        The name under `optimization`, and each option as it was written.

    Raises:
        UnknownNameError: There is no such optimization.
        ConfigError: A part is not an option, or an option is given twice.
    """
    name, *found = re.split(r"([=,])", text, maxsplit=1)
    separator, rest = found or ("", "")
    name = name.strip()
    kind = OPTIMIZATIONS.get(name)
    if kind is None:
        raise UnknownNameError(f"no optimization is called `{name}`; {hint(name, OPTIMIZATIONS)}")
    options = {"optimization": name}
    for place, part in enumerate(rest.split(",") if rest.strip(" ,") else []):
        if not part.strip():
            continue
        key, equals, value = part.partition("=")
        if not equals:
            if place or separator == "," or not kind.main_option:
                raise ConfigError(
                    f"--optimization {text}: `{part}` is no option; {_offered(kind)}"
                )
            key, value = kind.main_option, part
        key = key.strip()
        if key in options:
            raise ConfigError(f"--optimization {text}: `{key}` is given twice")
        options[key] = value.strip()
    return options


def _offered(kind: type[Optimization]) -> str:
    name = kind.model_fields["optimization"].default
    return f"options of `{name}` are " + (", ".join(_options_of(kind)) or "none")


def describe_optimizations() -> Sequence[tuple[str, str, tuple[str, ...]]]:
    """Returns name, first line of the description, and options of every optimization."""
    return [
        (name, (kind.__doc__ or "").strip().partition("\n")[0], _options_of(kind))
        for name, kind in OPTIMIZATIONS.items()
    ]


def _options_of(kind: type[Optimization]) -> tuple[str, ...]:
    names = [name for name in kind.model_fields if name != "optimization"]
    return tuple(sorted(names, key=lambda name: name != kind.main_option))
