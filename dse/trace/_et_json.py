"""The JSON of execution traces, old and new, as typed nodes."""

from __future__ import annotations

from typing import Any

from msgspec import Raw, Struct, field

_NOTHING = Raw(b"")


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
    fw_tid: int = 0
    op_schema: str = ""
    attrs: list[Attribute] = field(default_factory=list)


class EtDocument(Struct):
    """The top of an execution trace."""

    schema: str = ""
    pid: int = -1
    nodes: list[Node] | None = None
    kineto: Raw = field(default=_NOTHING, name="traceEvents")
