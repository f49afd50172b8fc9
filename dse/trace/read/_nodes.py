"""Nodes of execution traces, schemas 1.0 and 1.1, with their arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec import Raw, Struct, field

from dse.trace.read._json import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

_NOTHING = Raw(b"")
#: Values, shapes, types and strides of the inputs or outputs of a node.
_Side = tuple[tuple[Any, ...], tuple[Any, ...], tuple[str, ...], tuple[Any, ...]]


class Attribute(Struct, gc=False):
    """A named attribute of schema 1.1."""

    name: str = ""
    value: Any = None


class Values(Struct):
    """Inputs or outputs of schema 1.1."""

    values: list[Any] = field(default_factory=list)
    shapes: Raw = _NOTHING
    types: Raw = _NOTHING
    strides: Raw = _NOTHING


class Node(Struct):
    """A node of either schema: 1.0 has fields, 1.1 has `attrs`."""

    id: int = -1
    name: str = ""
    parent: int = -1
    ctrl_deps: int | list[int] | None = None
    inputs: Values | list[Any] = field(default_factory=list)
    outputs: Values | list[Any] = field(default_factory=list)
    input_shapes: Raw = _NOTHING
    input_types: Raw = _NOTHING
    output_shapes: Raw = _NOTHING
    output_types: Raw = _NOTHING
    rf_id: int = -1
    fw_parent: int = 0
    seq_id: int = -1
    scope: int = 0
    tid: int = -1
    op_schema: str = ""
    attrs: list[Attribute] = field(default_factory=list)


class EtDocument(Struct):
    """The top of an execution trace."""

    schema: str = ""
    pid: int = -1
    nodes: list[Node] | None = None
    kineto: Raw = field(default=_NOTHING, name="traceEvents")


@dataclass(frozen=True, slots=True, eq=False)
class NodeArguments:
    """Inputs and outputs of one node, as written in the file.

    A tensor is a list `[tensor, storage, offset, elements, bytes of one element, device]`; a list
    of tensors is a list of these. Everything else is a number, a string or a list. Shapes and
    strides are nested the same way; strides need schema 1.1.1.

    Attributes:
        inputs: Argument values, in the order of the signature.
        input_shapes: Shape of each.
        input_types: Type of each, for example `Tensor(float)` or `GenericList[Int,Int]`.
        input_strides: Strides of each; empty if they were not recorded.
        outputs: Result values.
        output_shapes: Shape of each.
        output_types: Type of each.
        output_strides: Strides of each; empty if they were not recorded.
    """

    inputs: tuple[Any, ...]
    input_shapes: tuple[Any, ...]
    input_types: tuple[str, ...]
    input_strides: tuple[Any, ...]
    outputs: tuple[Any, ...]
    output_shapes: tuple[Any, ...]
    output_types: tuple[str, ...]
    output_strides: tuple[Any, ...]


def node_arguments(node: Node) -> NodeArguments:
    """Returns the inputs and outputs of a node of either schema."""
    inputs = _side(node.inputs, node.input_shapes, node.input_types)
    outputs = _side(node.outputs, node.output_shapes, node.output_types)
    return NodeArguments(*inputs, *outputs)


def _side(given: Values | Sequence[Any], shapes: Raw, types: Raw) -> _Side:
    if isinstance(given, Values):
        values, shapes, types = given.values, given.shapes, given.types
        strides = _list(given.strides)
    else:
        values, strides = list(given), ()
    return tuple(values), _list(shapes), tuple(map(str, _list(types))), strides


def _list(raw: Raw) -> tuple[Any, ...]:
    decoded = plain(raw)
    return tuple(decoded) if isinstance(decoded, list) else ()
