"""Units of a replay: an operator with all that it calls, as far up as possible.

A replayed operator runs its children itself. Annotations and nodes of the autograd engine and the
profiler are looked through. An operator is taken apart only if it cannot be called here but its
children can, or if it is just a sequence of operators and a later one needs an intermediate result
(the forward pass of a loss, which saves inputs of the backward pass).
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from enum import IntEnum
import re
from typing import TYPE_CHECKING, Protocol

import numpy as np

from dse._text.suggest import hint
from dse.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.trace import ExecutionTrace

#: Nodes that launch collectives; the second kind is that of functional collectives.
_COLLECTIVE = re.compile(r"^(c10d|_c10d_functional|_c10d_functional_autograd)::")
_COMMUNICATION = "record_param_comms"
#: A backward function, in PyTorch's numbers of scopes.
_BACKWARD = 1
_ACCUMULATE = "torch::autograd::AccumulateGrad"
#: Backward functions that libraries write in C++: their kernels are no operators.
_IN_CPP = "torch::autograd::CppNode<"
_ENGINE = "autograd::engine::"
_GENERATED = re.compile(r"^\w+Backward\d+$")
#: Operators whose replay does not stand for the one that called them.
_TRIVIAL = re.compile(
    r"^aten::(empty|empty_strided|empty_like|new_empty|resize_|view|as_strided|detach|slice|narrow"
    r"|select|alias|t|transpose|expand|permute|unsqueeze|squeeze|is_pinned|result_type)$"
)
_NAMES_SHOWN = 12


class UnitKind(IntEnum):
    """Kind of a unit."""

    OPERATOR = 0
    COLLECTIVE = 1
    WITHOUT_SCHEMA = 2


@dataclass(frozen=True, slots=True)
class Unit:
    """A node that is replayed or skipped as a whole.

    Attributes:
        node: The node.
        kind: What it is; an operator recorded without its schema cannot be called.
        opened: Whether its children are units of their own, because it cannot be called.
    """

    node: int
    kind: UnitKind
    opened: bool = False


class Callables(Protocol):
    """The part of `OperatorFinder` that units depend on."""

    def callable_here(self, schema: str) -> bool:
        """Returns whether some call of this signature can be replayed."""

    def is_composite(self, schema: str) -> bool:
        """Returns whether the operator is only a sequence of other operators."""


def node_range(et: ExecutionTrace, begin: str, end: str) -> tuple[int, int]:
    """Returns the first node of a range and the one after its last.

    Args:
        et: The trace.
        begin: Annotation with whose first occurrence the range begins; empty for the first node.
        end: Annotation with whose end it ends; empty for the last node.

    Raises:
        ConfigError: There is no such annotation, or none after the beginning.
    """
    first, after = 0, len(et)
    if begin:
        first = _named(et, begin, 0, "--from")
    if end:
        last = _named(et, end, first, "--to")
        after = _end_of(et, last)
    return first, after


def _named(et: ExecutionTrace, label: str, first: int, option: str) -> int:
    numbers = [at for at, name in enumerate(et.names) if name == label]
    found = np.flatnonzero(np.isin(et.name, numbers))
    found = found[found >= first]
    if len(found):
        return int(found[0])
    if numbers:
        raise ConfigError(f"{et.file}: {option} {label}: it does not occur after the beginning")
    labels = sorted({et.name_of(node) for node in _annotations(et)})
    if not labels:
        raise ConfigError(f"{et.file}: {option} {label}: the trace has no annotations")
    advice = hint(label, labels)
    if len(labels) > _NAMES_SHOWN and not advice.startswith("did"):
        advice = f"there are {', '.join(labels[:_NAMES_SHOWN])}, …"
    raise ConfigError(f"{et.file}: {option} {label}: no annotation of that name; {advice}")


def _annotations(et: ExecutionTrace) -> list[int]:
    nodes = np.flatnonzero(et.scope == 7)
    return [node for node in nodes.tolist() if not et.name_of(node).startswith("[pytorch|")]


def _end_of(et: ExecutionTrace, node: int) -> int:
    """Returns the next node of the same thread that lies outside the given one.

    Other threads do in the meantime what the node is for, as the backward pass does.
    """
    inside = {node}
    for other in range(node + 1, len(et)):
        if int(et.parent[other]) in inside:
            inside.add(other)
        elif et.thread[other] == et.thread[node]:
            return other
    return len(et)


class UnitSelector:
    """Chooses units in one trace.

    Args:
        et: The trace, with its arguments.
        callables: What can be called.
    """

    def __init__(self, et: ExecutionTrace, callables: Callables) -> None:
        self._et = et
        self._callables = callables
        self._children: list[list[int]] = [[] for _ in range(len(et))]
        for node in range(len(et) - 1, -1, -1):
            parent = int(et.parent[node])
            if 0 <= parent < node:
                self._children[parent].append(node)
        for children in self._children:
            children.reverse()
        self._uses = _Uses(et)

    def units(self, first: int, after: int) -> tuple[Unit, ...]:
        """Returns the units among nodes `first` to `after - 1`, in the order of their nodes."""
        found: list[Unit] = []
        roots = [node for node in range(len(self._et)) if not 0 <= self._et.parent[node] < node]
        stack = list(reversed(roots))
        while stack:
            node = stack.pop()
            inside = first <= node < after
            kind = self._kind(node) if inside else None
            if kind is None:
                stack += reversed(self._children[node])
                continue
            opened = kind is UnitKind.WITHOUT_SCHEMA and self._has_schema(node)
            if kind is UnitKind.OPERATOR and self._children[node]:
                schema = self._schema(node)
                if not self._callables.callable_here(schema):
                    opened = self._has_callable_work(node)
                elif self._callables.is_composite(schema) and self._uses.after(
                    node, self._subtree(node)
                ):
                    stack += reversed(self._children[node])
                    continue
            found.append(Unit(node, kind, opened))
            if opened:
                stack += reversed(self._children[node])
        return tuple(sorted(found, key=lambda unit: unit.node))

    def _schema(self, node: int) -> str:
        return self._et.op_schemas[int(self._et.op_schema[node])]

    def _kind(self, node: int) -> UnitKind | None:
        """Returns the kind of a node; None if it is looked through."""
        name = self._et.name_of(node)
        if _COLLECTIVE.match(name):
            return UnitKind.COLLECTIVE
        if self._schema(node):
            return UnitKind.OPERATOR
        if name == _COMMUNICATION and self._et.collective[node] >= 0:
            info = self._et.collectives[int(self._et.collective[node])]
            # Waits are recorded in the same way, but move no data.
            return UnitKind.WITHOUT_SCHEMA if info.message_bytes > 0 else None
        if name.startswith(_IN_CPP):
            return UnitKind.WITHOUT_SCHEMA
        # Generated functions do all that they do by operators; AddBackward0 just passes on.
        plain = name == _ACCUMULATE or name.startswith(_ENGINE) or _GENERATED.match(name)
        if self._et.scope[node] == _BACKWARD and not plain and not self._has_schema(node):
            return UnitKind.WITHOUT_SCHEMA
        return None

    def _subtree(self, node: int) -> list[int]:
        nodes = [node]
        for one in nodes:
            nodes += self._children[one]
        return nodes

    def _has_schema(self, node: int) -> bool:
        return any(self._schema(one) for one in self._subtree(node)[1:])

    def _has_callable_work(self, node: int) -> bool:
        for one in self._subtree(node)[1:]:
            schema = self._schema(one)
            trivial = _TRIVIAL.match(self._et.name_of(one))
            if schema and not trivial and self._callables.callable_here(schema):
                return True
        return False


class _Uses:
    """Nodes that take and return each tensor."""

    def __init__(self, et: ExecutionTrace) -> None:
        tensors = et.tensors
        self._takers: dict[tuple[int, int], list[int]] = {}
        self._givers: dict[tuple[int, int], list[int]] = {}
        self._of_node: dict[int, list[tuple[bool, int, int]]] = {}
        columns = (tensors.node, tensors.is_output, tensors.tensor, tensors.storage)
        for node, is_output, tensor, storage in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            key = tensor, storage
            (self._givers if is_output else self._takers).setdefault(key, []).append(node)
            self._of_node.setdefault(node, []).append((is_output, tensor, storage))

    def after(self, node: int, subtree: Sequence[int]) -> bool:
        """Returns whether a later node takes memory that only children of a node know."""
        own = {storage for _, _, storage in self._of_node.get(node, ())}
        inside = set(subtree)
        last = max(subtree)
        for one in subtree[1:]:
            for is_output, tensor, storage in self._of_node.get(one, ()):
                if not is_output or storage in own:
                    continue
                taker = _next(self._takers.get((tensor, storage), ()), last, inside)
                giver = _next(self._givers.get((tensor, storage), ()), last, inside)
                if taker is not None and (giver is None or taker <= giver):
                    return True
        return False


def _next(nodes: Sequence[int], last: int, inside: set[int]) -> int | None:
    """Returns the first of ascending nodes after another one, outside of a set."""
    for node in nodes[bisect_right(nodes, last) :]:
        if node not in inside:
            return node
    return None
