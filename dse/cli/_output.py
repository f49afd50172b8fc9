"""Results on standard output, for people or as JSON."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from dse._text.terminal import Console


def emit(result: object, show: Callable[[Console], None], *, as_json: bool) -> None:
    """Prints a result.

    Args:
        result: Dataclasses, mappings and sequences of plain values.
        show: Prints the same for people.
        as_json: Whether to print JSON.
    """
    from dse._text.terminal import Console

    if as_json:
        typer.echo(to_json(result))
    else:
        show(Console())


def to_json(result: object) -> str:
    """Returns a result as JSON.

    Dataclasses become objects of their fields, enumerations their values. NaN and infinities,
    which JSON does not have, become null.
    """
    import json

    from pydantic_core import to_jsonable_python

    plain = to_jsonable_python(result, inf_nan_mode="null", fallback=_scalar)
    return json.dumps(plain, indent=1, allow_nan=False)


def _scalar(value: Any) -> object:
    """Converts a scalar of NumPy."""
    return value.item()


def fields_of(result: Any, *properties: str, **keys: str) -> dict[str, object]:
    """Returns the fields of a dataclass and some of its properties by their names.

    Args:
        result: A dataclass.
        properties: Names of its properties to add.
        keys: Keys of fields that JSON calls otherwise: `stream="lane"`.
    """
    assert is_dataclass(result)
    names = [*(field.name for field in fields(result)), *properties]
    return {keys.get(name, name): getattr(result, name) for name in names}
