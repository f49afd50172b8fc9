"""YAML with places: plain data, and where in the file each value and key stands.

Only the safe core of YAML is accepted: a tag such as `!!python/object` is an error. Size, nesting
and the number of values after expanding aliases are limited, so that a small hostile file cannot
take all memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from dse.errors import Diagnostic

if TYPE_CHECKING:
    from collections.abc import Hashable

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_MAX_DEPTH = 64
_MAX_VALUES = 2_000_000
_CORE_TAGS = {
    f"tag:yaml.org,2002:{name}"
    for name in ("null", "bool", "int", "float", "str", "seq", "map", "timestamp")
}

Path = tuple["str | int", ...]


@dataclass(slots=True)
class LocatedData:
    """Plain data and the places of its parts.

    Attributes:
        data: Dicts, lists and scalars.
        values: 1-based line and column of the value at each path.
        keys: 1-based line and column of the key at each path.
        problems: What is wrong with the text itself.
    """

    data: object = None
    values: dict[Path, tuple[int, int]] = field(default_factory=dict)
    keys: dict[Path, tuple[int, int]] = field(default_factory=dict)
    problems: list[Diagnostic] = field(default_factory=list)


def read_yaml(text: str, file: str) -> LocatedData:
    """Parses YAML text; problems are collected, not raised."""
    result = LocatedData()
    try:
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
            if root is None:
                result.problems.append(Diagnostic(file, 1, 1, "", "the file is empty"))
            else:
                result.data = _Constructor(loader, file, result).construct(root, (), 0)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
        message = f"not valid YAML: {error.problem or error.context}"
        result.problems.append(Diagnostic(file, line, column, "", message))
    except yaml.YAMLError as error:
        result.problems.append(Diagnostic(file, None, None, "", f"not valid YAML: {error}"))
    except RecursionError:
        message = f"nested more than {_MAX_DEPTH} levels deep"
        result.problems.append(Diagnostic(file, None, None, "", message))
    return result


class _Constructor:
    """Turns composed nodes into plain data."""

    def __init__(self, loader: Any, file: str, result: LocatedData) -> None:
        self._loader = loader
        self._file = file
        self._result = result
        self._count = 0

    def construct(self, node: Any, path: Path, depth: int) -> object:
        self._count += 1
        place = (node.start_mark.line + 1, node.start_mark.column + 1)
        self._result.values[path] = place
        if depth > _MAX_DEPTH:
            self._complain(place, path, f"nested more than {_MAX_DEPTH} levels deep")
            return None
        if self._count > _MAX_VALUES:
            if self._count == _MAX_VALUES + 1:
                self._complain(place, path, f"more than {_MAX_VALUES} values after expansion")
            return None
        if node.tag not in _CORE_TAGS and node.tag != "tag:yaml.org,2002:merge":
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")
            self._complain(place, path, f"the tag `{tag}` is not allowed; write plain values")
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode):
            return [
                self.construct(item, (*path, index), depth + 1)
                for index, item in enumerate(node.value)
            ]
        return self._scalar(node, place, path)

    def _scalar(self, node: Any, place: tuple[int, int], path: Path) -> object:
        if node.tag == "tag:yaml.org,2002:timestamp":
            return str(node.value)
        try:
            value: object = self._loader.construct_object(node)
        except (ValueError, yaml.YAMLError):
            self._complain(place, path, f"cannot read `{node.value[:80]}`")
            return None
        return value

    def _mapping(self, node: Any, path: Path, depth: int) -> dict[str, object]:
        result: dict[str, object] = {}
        merged: dict[str, object] = {}
        for key_node, value_node in node.value:
            place = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            if key_node.tag == "tag:yaml.org,2002:merge":
                sources = (
                    value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
                )
                for source in sources:
                    block = self.construct(source, path, depth + 1)
                    if isinstance(block, dict):
                        merged = {**block, **merged}
                continue
            key = self._key(key_node, place, path)
            if key is None:
                continue
            inner = (*path, key)
            if key in result:
                self._complain(place, inner, f"the key `{key}` is given twice")
                continue
            self._result.keys[inner] = place
            result[key] = self.construct(value_node, inner, depth + 1)
        self._result.values[path] = (node.start_mark.line + 1, node.start_mark.column + 1)
        return {**merged, **result}

    def _key(self, node: Any, place: tuple[int, int], path: Path) -> str | None:
        if not isinstance(node, yaml.ScalarNode):
            self._complain(place, path, "a key must be a word")
            return None
        value: Hashable = self._loader.construct_object(node)
        if isinstance(value, str):
            return value
        self._complain(
            place, path, f"the key `{node.value}` must be a word; put it in quotes if it is meant"
        )
        return None

    def _complain(self, place: tuple[int, int], path: Path, message: str) -> None:
        self._result.problems.append(Diagnostic(self._file, *place, field_name(path), message))


def field_name(path: Path) -> str:
    """Returns a path in the form `tables[3].rows`."""
    name = ""
    for part in path:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else part
    return name
