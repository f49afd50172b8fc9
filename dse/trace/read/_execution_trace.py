"""Execution-trace reader: the tree of operators with their tensors, without times."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dse.errors import ConfigError
from dse.trace.read._files import NOT_EXECUTION_TRACES, documents
from dse.trace.read._json import decode
from dse.trace.read._node_columns import NodeColumns
from dse.trace.read._nodes import EtDocument
from dse.trace.read._ranks import assign_ranks, rank_from_name

if TYPE_CHECKING:
    from pathlib import Path

    from dse.trace.read._collectives import CollectiveInfo
    from dse.trace.read._nodes import NodeArguments
    from dse.trace.read._rank_trace import Ints, Longs, ProcessGroup

#: Tested with 1.0.1, 1.0.2, 1.1.0-chakra… and 1.1.1-chakra….
_SCHEMAS = ("1.0.", "1.1.")


@dataclass(frozen=True, slots=True, eq=False)
class TensorReferences:
    """Tensors that nodes read or write; every array has shape `(references,)`.

    Attributes:
        node: Node.
        is_output: Whether the tensor is an output of the node.
        tensor: Id of the tensor.
        storage: Id of its storage.
        value_bytes: Bytes of one element.
        device: Index into `ExecutionTrace.devices`.
    """

    node: Longs
    is_output: np.ndarray
    tensor: Longs
    storage: Longs
    value_bytes: Longs
    device: Ints

    def __len__(self) -> int:
        return len(self.node)


@dataclass(frozen=True, slots=True, eq=False)
class ExecutionTrace:
    """The nodes of one rank in order of their starts; arrays have shape `(nodes,)`.

    -1 marks missing values.

    Attributes:
        file: File as given by the user.
        schema: Version of the format.
        rank: Global rank.
        process_id: Process on its host; -1 if not given.
        node_id: Id in the file.
        name: Index into `names`.
        parent: Node that encloses this one.
        forward: Forward node of a node of the backward pass.
        record_function: Number that a node shares with its operator in a Kineto trace since
            PyTorch 2.1; unrelated before.
        sequence: Number that forward and backward nodes share.
        scope: PyTorch's scope of the record: 0 function, 1 backward function, 7 user scope.
        thread: Number of the thread, from 1.
        op_schema: Index into `op_schemas`.
        collective: Index into `collectives`.
        tensors: Input and output tensors, in order of the nodes.
        names: Names.
        op_schemas: Signatures of operators.
        collectives: Distinct collectives.
        process_groups: Process groups that the file describes.
        devices: Names of devices.
        notes: What is missing or odd, with counts.
        arguments: Inputs and outputs of each node; empty unless requested.
    """

    file: str
    schema: str
    rank: int
    process_id: int
    node_id: Longs
    name: Ints
    parent: Longs
    forward: Longs
    record_function: Longs
    sequence: Longs
    scope: Longs
    thread: Longs
    op_schema: Ints
    collective: Ints
    tensors: TensorReferences
    names: tuple[str, ...]
    op_schemas: tuple[str, ...]
    collectives: tuple[CollectiveInfo, ...]
    process_groups: tuple[ProcessGroup, ...]
    devices: tuple[str, ...]
    notes: tuple[str, ...]
    arguments: tuple[NodeArguments, ...] = ()

    def __len__(self) -> int:
        return len(self.node_id)

    def name_of(self, node: int) -> str:
        """Returns the name of a node."""
        return self.names[int(self.name[node])]


def read_execution_trace(
    path: str | Path, *, arguments: bool = False
) -> tuple[ExecutionTrace, ...]:
    """Reads the execution traces of one run, one per rank; file names give the ranks.

    Args:
        path: A `.json` or `.json.gz` file, a `.tar.gz` archive of such files, or a folder.
        arguments: Whether to keep values, shapes, types and strides of all inputs and outputs; a
            replay needs them.

    Returns:
        The traces, sorted by rank.

    Raises:
        ConfigError: A file cannot be read, is not an execution trace, has an unknown schema or is
            truncated, or two files belong to the same rank.
    """
    read = []
    for name, content in documents(path, NOT_EXECUTION_TRACES):
        document, notes = decode(content, EtDocument, name)
        _check(name, document)
        read.append(_trace(name, document, notes, keeps_arguments=arguments))
        del content, document
    names = [trace.file for trace in read]
    ranks = assign_ranks(names, [rank_from_name(name) for name in names])
    traces = [replace(trace, rank=rank) for trace, rank in zip(read, ranks, strict=True)]
    return tuple(sorted(traces, key=lambda trace: trace.rank))


def _check(file: str, document: EtDocument) -> None:
    if document.nodes is None:
        advice = "; it looks like a Kineto trace" if bytes(document.kineto) else ""
        raise ConfigError(f"{file}: not an execution trace: `nodes` is missing{advice}")
    if not document.nodes:
        raise ConfigError(f"{file}: an execution trace without nodes")
    if not document.schema.startswith(_SCHEMAS):
        raise ConfigError(
            f"{file}: unknown schema `{document.schema[:40]}`; 1.0.1 to 1.1.1-chakra are supported"
        )


def _trace(
    file: str, document: EtDocument, notes: list[str], *, keeps_arguments: bool
) -> ExecutionTrace:
    columns = NodeColumns(file, arguments=keeps_arguments)
    for index, node in enumerate(document.nodes or ()):
        columns.add(index, node)
    order = np.argsort(np.array(columns.node_id, dtype=np.int64), kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    ids = np.array(columns.node_id, dtype=np.int64)[order]
    parent = _place_of(ids, np.array(columns.parent, dtype=np.int64)[order])
    orphans = int((parent < 0).sum()) - 1
    if orphans > 0:
        notes.append(f"{orphans + 1} nodes have no parent in the file")
    if len(ids) > 1 and (twice := int((ids[1:] == ids[:-1]).sum())):
        notes.append(f"{twice} nodes repeat the id of another")
    arrays: dict[str, Any] = {
        name: np.array(values, dtype=kind)[order]
        for kind, group in ((np.int64, columns.longs), (np.int32, columns.ints))
        for name, values in group.items()
    }
    forward = arrays.pop("forward")
    return ExecutionTrace(
        file=file,
        schema=document.schema,
        rank=0,
        process_id=document.pid,
        node_id=ids,
        parent=parent,
        forward=np.where(forward > 0, _place_of(ids, forward), -1),
        tensors=_tensors(columns, place),
        names=tuple(columns.names),
        op_schemas=tuple(columns.op_schemas),
        collectives=tuple(columns.collectives),
        process_groups=tuple(columns.groups),
        devices=tuple(columns.devices),
        notes=tuple(notes),
        arguments=tuple(columns.arguments[at] for at in order) if keeps_arguments else (),
        **arrays,
    )


def _place_of(ids: Longs, wanted: Longs) -> Longs:
    """Returns the node with each id, or -1; a node is not its own parent."""
    at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return np.where((ids[at] == wanted) & (wanted != ids), at, -1)


def _tensors(columns: NodeColumns, place: Longs) -> TensorReferences:
    table = np.array(columns.tensors, dtype=np.int64).reshape(-1, 6)
    table[:, 0] = place[table[:, 0]]
    table = table[np.argsort(table[:, 0], kind="stable")]
    return TensorReferences(
        node=table[:, 0].copy(),
        is_output=table[:, 1].astype(np.bool_),
        tensor=table[:, 2].copy(),
        storage=table[:, 3].copy(),
        value_bytes=table[:, 4].copy(),
        device=table[:, 5].astype(np.int32),
    )
