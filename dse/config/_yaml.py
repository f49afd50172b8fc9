"""YAML reader that keeps the line and column of every value and key.

Only plain values are accepted: a tag such as `!!python/object` is an error. Nesting and the number
of values, before and after alias expansion, are limited while reading, so that a small hostile
file cannot exhaust memory or time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
import re
from typing import TYPE_CHECKING, Any

import yaml

from dse._io.reading import MAX_DEPTH, MAX_DIGITS
from dse.errors import Diagnostic

if TYPE_CHECKING:
    from collections.abc import Callable

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep"
_MAX_VALUES = 2_000_000
_MAX_PROBLEMS = 1000
#: Longest text that is parsed as a number, a date or a switch.
_MAX_SCALAR = MAX_DIGITS + 100
_CORE = "tag:yaml.org,2002:"
_STRING, _SEQUENCE, _MAPPING, _MERGE = (
    f"{_CORE}{name}" for name in ("str", "seq", "map", "merge")
)
_SCALARS = {f"{_CORE}{name}" for name in ("null", "bool", "int", "float", "str", "timestamp")}
_CORE_TAGS = {*_SCALARS, _SEQUENCE, _MAPPING, _MERGE}

#: What YAML 1.1 takes for numbers of base 8 or 60: `010` would be 8, and `1:30` would be 90.
_ANOTHER_BASE = re.compile(r"[-+]?(?:0[\d_]+|[\d_]+(?::[\d_]+)+(?:\.[\d_]*)?)")

Path = tuple["str | int", ...]
Place = tuple[int, int]


@dataclass(slots=True)
class LocatedData:
    """Plain data and places.

    Attributes:
        data: Dicts, lists and scalars.
        values: 1-based line and column of the value at each path.
        keys: 1-based line and column of the key at each path.
        problems: Problems of the text itself.
    """

    data: object = None
    values: dict[Path, Place] = field(default_factory=dict)
    keys: dict[Path, Place] = field(default_factory=dict)
    problems: list[Diagnostic] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Node:
    """Node of the document; an alias is the anchored node itself.

    Attributes:
        tag: Full tag.
        value: Text, a list of nodes, or a list of key-value pairs of nodes.
        place: Line and column of its start.
    """

    tag: str
    value: Any
    place: Place


class _LimitError(Exception):
    """A limit that stops reading immediately."""

    def __init__(self, place: Place, message: str) -> None:
        self.place = place
        self.message = message
        super().__init__(message)


def read_yaml(text: str, file: str) -> LocatedData:
    """Parses YAML text; problems are collected rather than raised."""
    result = LocatedData()
    try:
        loader = _Loader(text)
        try:
            root = _Composer(loader).compose()
            if root is None:
                result.problems.append(Diagnostic(file, 1, 1, "", "the file is empty"))
            else:
                result.data = _Constructor(loader, file, result).construct(root, (), 0)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
        # LibYAML reads ahead, and ends at a depth of its own before that of documents is counted.
        deep = error.problem == "exceeded maximum nesting depth"
        message = _TOO_DEEP if deep else f"not valid YAML: {error.problem or error.context}"
        result.problems.append(Diagnostic(file, line, column, "", message))
    except yaml.YAMLError as error:
        message = f"not valid YAML: {' '.join(str(error).split())}"
        result.problems.append(Diagnostic(file, None, None, "", message))
    except UnicodeEncodeError:
        message = "not valid YAML: half of a surrogate pair"
        result.problems.append(Diagnostic(file, None, None, "", message))
    except _LimitError as error:
        result.problems.append(Diagnostic(file, *error.place, "", error.message))
    return result


class _Composer:
    """Builds nodes from parser events within the limits.

    PyYAML's composer reads the whole text first, takes time quadratic in the depth and about 1 kB
    of memory per value.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        #: None while a node is incomplete: it cannot contain itself.
        self._anchors: dict[str, _Node | None] = {}
        self._count = 0

    def compose(self) -> _Node | None:
        """Returns the only document; None if the text is empty."""
        loader = self._loader
        loader.get_event()
        if loader.check_event(yaml.StreamEndEvent):
            return None
        loader.get_event()
        root = self._node(0)
        loader.get_event()
        if not loader.check_event(yaml.StreamEndEvent):
            mark = loader.get_event().start_mark
            raise yaml.MarkedYAMLError(problem="expected a single document", problem_mark=mark)
        return root

    def _node(self, depth: int) -> _Node:
        event = self._loader.get_event()
        place = (event.start_mark.line + 1, event.start_mark.column + 1)
        if isinstance(event, yaml.AliasEvent):
            return self._anchored(event)
        self._count += 1
        if depth > MAX_DEPTH:
            raise _LimitError(place, _TOO_DEEP)
        if self._count > _MAX_VALUES:
            raise _LimitError(place, f"more than {_MAX_VALUES} values")
        node = self._empty(event, place)
        if event.anchor is not None:
            if event.anchor in self._anchors:
                problem = f"the anchor `{event.anchor[:60]}` is given twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
            self._anchors[event.anchor] = None
        check = self._loader.check_event
        if isinstance(event, yaml.SequenceStartEvent):
            while not check(yaml.SequenceEndEvent):
                node.value.append(self._node(depth + 1))
            self._loader.get_event()
        elif isinstance(event, yaml.MappingStartEvent):
            while not check(yaml.MappingEndEvent):
                node.value.append((self._node(depth + 1), self._node(depth + 1)))
            self._loader.get_event()
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _anchored(self, event: Any) -> _Node:
        node = self._anchors.get(event.anchor)
        if node is None:
            known = event.anchor in self._anchors
            reason = "is inside its own anchor" if known else "has no anchor before it"
            problem = f"the alias `{event.anchor[:60]}` {reason}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        return node

    def _empty(self, event: Any, place: Place) -> _Node:
        tag = event.tag
        if isinstance(event, yaml.ScalarEvent):
            if tag is None or tag == "!":
                tag = self._loader.resolve(yaml.ScalarNode, event.value, event.implicit)
            return _Node(str(tag), event.value, place)
        usual = _SEQUENCE if isinstance(event, yaml.SequenceStartEvent) else _MAPPING
        return _Node(usual if tag is None or tag == "!" else str(tag), [], place)


class _Constructor:
    """Builds plain data from nodes."""

    def __init__(self, loader: Any, file: str, result: LocatedData) -> None:
        self._file = file
        self._result = result
        self._count = 0
        self._scalars: dict[str, Callable[[Any], object]] = {
            f"{_CORE}bool": loader.construct_yaml_bool,
            f"{_CORE}int": loader.construct_yaml_int,
            f"{_CORE}float": loader.construct_yaml_float,
        }

    def construct(self, node: _Node, path: Path, depth: int) -> object:
        self._count += 1
        self._result.values[path] = node.place
        if depth > MAX_DEPTH:
            self._report(node.place, path, _TOO_DEEP)
            return None
        if self._count > _MAX_VALUES:
            # Aliases of aliases.
            raise _LimitError(node.place, f"more than {_MAX_VALUES} values after expansion")
        if node.tag not in _CORE_TAGS:
            tag = node.tag.replace(_CORE, "!!")[:80]
            self._report(node.place, path, f"the tag `{tag}` is not allowed; write plain values")
            return None
        if isinstance(node.value, str):
            return self._scalar(node, path)
        if node.value and isinstance(node.value[0], tuple):
            return self._mapping(node, path, depth)
        if not node.value:
            return {} if node.tag == _MAPPING else []
        return [
            self.construct(item, (*path, index), depth + 1)
            for index, item in enumerate(node.value)
        ]

    def _scalar(self, node: _Node, path: Path) -> object:
        text: str = node.value
        if node.tag == _STRING:
            return text
        if len(text) <= _MAX_SCALAR:
            if node.tag == f"{_CORE}null":
                return None
            # Dates, and a merge key used as a value, stay text.
            if node.tag not in self._scalars:
                return text
            if _ANOTHER_BASE.fullmatch(text):
                words = f"cannot read `{text[:80]}`: a number has no leading zeros and no colons"
                self._report(node.place, path, words)
                return None
            try:
                value = self._scalars[node.tag](yaml.ScalarNode(node.tag, text))
            except (ValueError, LookupError, OverflowError):
                pass
            else:
                if not isinstance(value, int) or abs(value) < 10**MAX_DIGITS:
                    return value
        self._report(node.place, path, f"cannot read `{text[:80]}`")
        return None

    def _mapping(self, node: _Node, path: Path, depth: int) -> dict[str, object]:
        result: dict[str, object] = {}
        merged: dict[str, object] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                self._merge(value_node, merged, path, depth)
                continue
            key = self._key(key_node, path)
            if key is None:
                continue
            inner = (*path, key)
            if key in result:
                self._report(key_node.place, inner, f"the key `{key[:60]}` is given twice")
                continue
            self._result.keys[inner] = key_node.place
            result[key] = self.construct(value_node, inner, depth + 1)
        self._result.values[path] = node.place
        return {**merged, **result}

    def _merge(self, node: _Node, merged: dict[str, object], path: Path, depth: int) -> None:
        """Adds the entries of one or several blocks; existing entries take precedence."""
        several = isinstance(node.value, list) and not (
            node.value and isinstance(node.value[0], tuple)
        )
        for source in node.value if several else [node]:
            block = self.construct(source, path, depth + 1)
            if isinstance(block, dict):
                for key, value in block.items():
                    merged.setdefault(key, value)

    def _key(self, node: _Node, path: Path) -> str | None:
        if not isinstance(node.value, str):
            self._report(node.place, path, "a key must be text")
            return None
        if node.tag == _STRING:
            return node.value
        shown = node.value[:80]
        self._report(node.place, path, f"the key `{shown}` must be text; put it in quotes")
        return None

    def _report(self, place: Place, path: Path, message: str) -> None:
        if len(self._result.problems) >= _MAX_PROBLEMS:
            raise _LimitError(place, f"{message}; more than {_MAX_PROBLEMS} such problems")
        self._result.problems.append(Diagnostic(self._file, *place, field_name(path), message))


def field_name(path: Path) -> str:
    """Formats a path as `tables[3].rows`."""
    name = ""
    for part in path:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else part
    return name
