"""What a node of an execution trace takes and gives, value by value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dse.trace._et_json import Node, Values
from dse.trace._json import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from msgspec import Raw

#: One side of a node: values, shapes, types, strides.
_Side = tuple[tuple[Any, ...], tuple[Any, ...], tuple[str, ...], tuple[Any, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class NodeArguments:
    """Arguments and results of one node, as the file has them.

    A tensor is a list `[tensor, storage, offset, elements, bytes of one element, device]`; a list
    of tensors is a list of these. Everything else is a number, a word or a list. Shapes and
    strides have the same nesting; there are none of strides before schema 1.1.1.

    Attributes:
        inputs: Values of the arguments, in the order of the signature.
        input_shapes: Shape of each.
        input_types: Type of each, for example `Tensor(float)` or `GenericList[Int,Int]`.
        input_strides: Strides of each; empty if they were not recorded.
        outputs: Values of the results.
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


def arguments_of(node: Node) -> NodeArguments:
    """Returns what a node of either schema takes and gives."""
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
