"""Columns of execution-trace nodes."""

from __future__ import annotations

from typing import Any

from dse._io.reading import MAX_RANKS
from dse.errors import ConfigError
from dse.trace.read._collectives import (
    CollectiveInfo,
    dtype_name,
    message_bytes,
    operation_of,
    whole_numbers,
)
from dse.trace.read._columns import Interner
from dse.trace.read._json import plain
from dse.trace.read._nodes import Node, NodeArguments, Values, node_arguments
from dse.trace.read._rank_trace import ProcessGroup

#: Attributes that become columns, and the columns' names.
_ATTRIBUTES = {
    "rf_id": "record_function",
    "fw_parent": "forward",
    "seq_id": "sequence",
    "scope": "scope",
    "tid": "thread",
}
_COMMUNICATION = "record_param_comms"
_GROUPS = "process_group:init"
_TENSOR_NUMBERS = 5
_MAX_DEPTH = 16
_LARGEST = 2**63


class NodeColumns:
    """Growing columns, in file order."""

    def __init__(self, file: str, *, arguments: bool = False) -> None:
        self._file = file
        self._keeps_arguments = arguments
        self.arguments: list[NodeArguments] = []
        self.node_id: list[int] = []
        self.parent: list[int] = []
        self.longs: dict[str, list[int]] = {name: [] for name in _ATTRIBUTES.values()}
        self.ints: dict[str, list[int]] = {
            name: [] for name in ("name", "op_schema", "collective")
        }
        self.tensors: list[tuple[int, ...]] = []
        self.names = Interner()
        self.op_schemas = Interner()
        self.collectives = Interner()
        self.devices = Interner()
        self.groups: dict[ProcessGroup, None] = {}

    def add(self, index: int, node: Node) -> None:
        """Appends the next node.

        Raises:
            ConfigError: The node has no usable id.
        """
        if _whole(node.id) < 0:
            raise ConfigError(f"{self._file}: node {index} has no usable `id`")
        attributes = {item.name: item.value for item in node.attrs}
        self.node_id.append(node.id)
        self.parent.append(_whole(_parent(node)))
        for written, ours in _ATTRIBUTES.items():
            value = attributes.get(written, getattr(node, written))
            self.longs[ours].append(_whole(value))
        schema = attributes.get("op_schema", node.op_schema)
        self.ints["name"].append(self.names[node.name])
        self.ints["op_schema"].append(self.op_schemas[str(schema)])
        inputs, outputs = _values(node.inputs), _values(node.outputs)
        self._take_tensors(index, inputs, is_output=False)
        self._take_tensors(index, outputs, is_output=True)
        if self._keeps_arguments:
            self.arguments.append(node_arguments(node))
        collective = _collective(node.name, attributes, inputs)
        self.ints["collective"].append(-1 if collective is None else self.collectives[collective])
        if _GROUPS in node.name:
            self._take_groups(inputs)

    def _take_tensors(
        self, index: int, values: list[Any], *, is_output: bool, depth: int = 0
    ) -> None:
        for value in values:
            if not isinstance(value, list):
                continue
            if _is_tensor(value):
                tensor, storage, _, _, value_bytes = map(_whole, value[:_TENSOR_NUMBERS])
                device = self.devices[value[_TENSOR_NUMBERS]]
                numbers = (tensor, storage, value_bytes, device)
                self.tensors.append((index, is_output, *numbers))
            elif depth < _MAX_DEPTH:
                self._take_tensors(index, value, is_output=is_output, depth=depth + 1)

    def _take_groups(self, values: list[Any]) -> None:
        try:
            for item in plain(values[0]):
                ranks = item.get("ranks", [])
                ranks = list(ranks.values()) if isinstance(ranks, dict) else ranks
                group = ProcessGroup(
                    str(item.get("pg_name", "")),
                    str(item.get("pg_desc", "")),
                    tuple(_rank(rank) for rank in ranks),
                    _rank(item.get("group_size", len(ranks))),
                )
                self.groups[group] = None
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
            return


def _rank(value: Any) -> int:
    """Returns a rank or a number of ranks.

    Raises:
        ValueError: The value is out of range.
    """
    number = int(value)
    if not 0 <= number <= MAX_RANKS:
        raise ValueError(f"{number} is not a rank")
    return number


def _values(given: Values | list[Any]) -> list[Any]:
    return given.values if isinstance(given, Values) else given


def _parent(node: Node) -> int:
    if isinstance(node.ctrl_deps, int):
        return node.ctrl_deps
    if node.ctrl_deps:
        return node.ctrl_deps[0]
    return node.parent


def _whole(value: object) -> int:
    return value if isinstance(value, int) and -_LARGEST <= value < _LARGEST else -1


def _is_tensor(value: list[Any]) -> bool:
    return (
        len(value) > _TENSOR_NUMBERS
        and isinstance(value[_TENSOR_NUMBERS], str)
        and all(isinstance(item, int) for item in value[:_TENSOR_NUMBERS])
    )


def _collective(name: str, attributes: dict[str, Any], inputs: list[Any]) -> CollectiveInfo | None:
    if "collective_name" in attributes:
        return _described(attributes)
    if name == _COMMUNICATION:
        return _from_inputs(inputs)
    return None


def _described(attributes: dict[str, Any]) -> CollectiveInfo:
    operation = operation_of(str(attributes["collective_name"]))
    dtype = dtype_name(str(attributes.get("dtype", "")))
    given = _whole(attributes.get("in_msg_nelems"))
    taken = _whole(attributes.get("out_msg_nelems"))
    size = max(_whole(attributes.get("pg_size")), 0)
    size = size if size <= MAX_RANKS else 0
    start, stride = (
        _whole(attributes.get("global_rank_start")),
        _whole(attributes.get("global_rank_stride")),
    )
    ranks: tuple[int, ...] = ()
    if start >= 0 and size and (stride > 0 or size == 1):
        ranks = tuple(start + stride * number for number in range(size))
    return CollectiveInfo(
        operation=operation,
        message_bytes=message_bytes(operation, given, taken, size, dtype),
        dtype=dtype,
        group_size=size,
        group=str(attributes.get("pg_name", "")),
        ranks=ranks,
        input_elements=given,
        output_elements=taken,
        input_splits=whole_numbers(str(attributes.get("in_split_size", ""))),
        output_splits=whole_numbers(str(attributes.get("out_split_size", ""))),
    )


def _from_inputs(inputs: list[Any]) -> CollectiveInfo | None:
    """Parses the inputs of schema 1.0: tensors, numbers, the operation's name, then the splits."""
    names = [at for at, value in enumerate(inputs) if isinstance(value, str) and value[:1] != "<"]
    if not names:
        return None
    at = names[0]
    first = inputs[0] if isinstance(inputs[0], list) else []
    tensors = [
        tensor
        for tensor in ([first] if _is_tensor(first) else first)
        if isinstance(tensor, list) and _is_tensor(tensor)
    ]
    splits = [value for value in inputs[at + 1 :] if isinstance(value, list)]
    operation = operation_of(inputs[at])
    # Only the input is recorded, so the size of an all-gather's result is unknown.
    sized = bool(tensors) and operation != "all_gather"
    return CollectiveInfo(
        operation=operation,
        message_bytes=sum(tensor[3] * tensor[4] for tensor in tensors) if sized else -1,
        input_elements=sum(tensor[3] for tensor in tensors) if tensors else -1,
        input_splits=tuple(map(_whole, splits[0])) if splits else (),
        output_splits=tuple(map(_whole, splits[1])) if len(splits) > 1 else (),
    )
