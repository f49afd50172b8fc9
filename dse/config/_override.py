"""Overrides of single fields of a document: `links.bandwidth=+20%`.

A path names a field as the file does, with dots between the keys. In a block of named entries
(`links`) it may leave out the name, which means all entries. A value is written as in the file, or
relative to the one there: `+20%`, `-10%`, `*1.5`.
"""

from __future__ import annotations

from dataclasses import dataclass
import math
import re
from typing import TYPE_CHECKING, Any

from dse._text.suggest import hint
from dse.config._quantities import quantity_parts, readable_quantity
from dse.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SHARE = re.compile(r"([+-])\s*(\d+(?:\.\d+)?)\s*%")
_FACTOR = re.compile(r"[*x×]\s*(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)")


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field of a document before and after an override.

    Attributes:
        path: Dotted keys from the document to the field.
        before: Old value with its unit; ``not set`` without one.
        after: New value with its unit.
    """

    path: str
    before: str
    after: str


def override(
    data: Mapping[str, Any], path: str, value: str, new_block: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], tuple[FieldChange, ...]]:
    """Returns the data of a document with one field changed, or that field of all entries.

    Only the path is checked; :func:`dse.config.check_data` checks values when all are set.

    Args:
        data: The document with all of its fields, as `model_dump(mode="json")` returns it.
        path: The field.
        value: The new value, absolute or relative.
        new_block: Other fields of an optional block that the document lacks.

    Returns:
        The changed data, and each field that changed. Where the path means all entries of a
        block, entries without the field stay as they are.

    Raises:
        UnknownNameError: The document has no such field or entry.
        ConfigError: A relative value of what is not a number, or not set.
    """
    changed, changes = _override(data, path, value, dict(new_block or {}))
    return changed, tuple(changes)


def relative_factor(value: str) -> float | None:
    """Returns the factor that a relative value stands for; None for an absolute one.

    Raises:
        ConfigError: It takes away more than there is.
    """
    share = _SHARE.fullmatch(value.strip())
    if share is not None:
        change = float(share.group(2)) / 100
        if share.group(1) == "-" and change > 1:
            raise ConfigError(f"`{value}` would leave less than nothing; expected at least -100%")
        return 1 + change if share.group(1) == "+" else 1 - change
    factor = _FACTOR.fullmatch(value.strip())
    return None if factor is None else float(factor.group(1))


def new_value(old: Any, value: str) -> Any:
    """Returns what becomes of a field of a document, as a file would have it.

    Args:
        old: Its value.
        value: The new value, absolute or relative to it.

    Raises:
        ConfigError: A relative value of what is not a number, or not set.
    """
    factor = relative_factor(value)
    if factor is None:
        return value.strip()
    if old is None:
        raise ConfigError("the file does not have this figure; give a value instead of a change")
    if isinstance(old, int | float) and not isinstance(old, bool):
        new = old * factor
        return round(new) if isinstance(old, int) and _whole(new) else new
    parts = quantity_parts(str(old))
    if parts is None:
        raise ConfigError(f"`{old}` is not a number that can be scaled; give a new value")
    return f"{parts[0] * factor!r} {parts[1]}".strip()


def _override(
    node: Any, rest: str, value: str, new_block: dict[str, Any]
) -> tuple[Any, list[FieldChange]]:
    if isinstance(node, list):
        raise UnknownNameError("entries of a list cannot be overridden; change the file instead")
    if not rest and isinstance(node, dict):
        return _override_all(node, _figures(node, value), "", value, {})
    if not rest:
        new = new_value(node, value)
        return new, [FieldChange("", _readable(node), _readable(new))]
    if node is None:
        new_value(None, value)
        node = {**new_block, rest: None}
    if not isinstance(node, dict):
        raise UnknownNameError(f"`{node}` is a plain value, without a field `{rest}`")
    key = _key(node, rest)
    if key is not None:
        return _override_all(node, (key,), rest[len(key) + 1 :], value, new_block)
    head = rest.partition(".")[0]
    entries = [entry for entry in node.values() if isinstance(entry, dict)]
    fields = dict.fromkeys(field for entry in entries for field in entry)
    if len(entries) < len(node) or (entries and head not in fields):
        named = fields if len(entries) == len(node) else {}
        raise UnknownNameError(f"there is no `{head}`; {hint(head, [*named, *node])}")
    having = [name for name, entry in node.items() if entry.get(head) is not None]
    if entries and not having and relative_factor(value) is None:
        raise UnknownNameError(
            f"none of {', '.join(f'`{name}`' for name in node)} has `{head}` yet; name the one "
            f"that gets it, such as `{next(iter(node))}.{rest}`"
        )
    return _override_all(node, having, rest, value, new_block)


def _override_all(
    node: dict[str, Any], keys: Iterable[str], rest: str, value: str, new_block: dict[str, Any]
) -> tuple[dict[str, Any], list[FieldChange]]:
    """Overrides the same field below several keys of a block."""
    changed, changes = dict(node), []
    for key in keys:
        changed[key], moved = _override(node[key], rest, value, new_block)
        changes += [
            FieldChange(f"{key}.{change.path}".strip("."), change.before, change.after)
            for change in moved
        ]
    return changed, changes


def _figures(block: dict[str, Any], value: str) -> list[str]:
    """Returns the figures of a block that can be scaled together, as they have one unit."""
    units = {
        key: parts[1]
        for key, old in block.items()
        if isinstance(old, str) and (parts := quantity_parts(old)) is not None
    }
    if relative_factor(value) is None or len(set(units.values())) != 1:
        raise ConfigError(f"this is a block; name one of its fields: {', '.join(block)}")
    return list(units)


def _key(block: dict[str, Any], rest: str) -> str | None:
    """Returns the key that a path begins with; names may have dots, so the longest is meant."""
    wanted = f"{rest}.".casefold()
    fitting = [key for key in block if wanted.startswith(f"{key}.".casefold())]
    return max(fitting, key=len, default=None)


def _whole(number: float) -> bool:
    return math.isfinite(number) and abs(number - round(number)) <= 1e-9 * max(1.0, abs(number))


def _readable(value: Any) -> str:
    return "not set" if value is None else readable_quantity(str(value))
