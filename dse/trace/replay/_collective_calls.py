"""Collectives as recorded: what is exchanged, between whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dse.trace.replay._recorded import Opaque, Recorded, TensorRef
from dse.trace.replay._signatures import argument_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.trace import CollectiveInfo, ExecutionTrace

#: Arguments that hold tensors, in the order in which the process group takes them, and the ones
#: that are numbers: (tensors, numbers).
_SIGNATURES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "allreduce_": (("tensors",), ()),
    "allreduce_coalesced_": (("tensors",), ()),
    "broadcast_": (("tensors",), ("root_rank", "root_tensor")),
    "reduce_": (("tensors",), ("root_rank", "root_tensor")),
    "allgather_": (("output_tensors", "input_tensors"), ()),
    "_allgather_base_": (("output_tensor", "input_tensor"), ()),
    "allgather_into_tensor_coalesced_": (("outputs", "inputs"), ()),
    "reduce_scatter_": (("output_tensors", "input_tensors"), ()),
    "_reduce_scatter_base_": (("output_tensor", "input_tensor"), ()),
    "reduce_scatter_tensor_coalesced_": (("outputs", "inputs"), ()),
    "gather_": (("output_tensors", "input_tensors"), ("root_rank",)),
    "scatter_": (("output_tensors", "input_tensors"), ("root_rank",)),
    "alltoall_": (("output_tensors", "input_tensors"), ()),
    "alltoall_base_": (("output", "input"), ("output_split_sizes", "input_split_sizes")),
    "send": (("tensors",), ("dst", "tag")),
    "recv_": (("tensors",), ("src", "tag")),
    "barrier": ((), ()),
}


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """One collective of one rank.

    Attributes:
        operation: Name of c10d, for example `alltoall_base_`.
        tensors: Arguments with tensors, in the order of `ProcessGroup`'s methods.
        numbers: The others, in the order of the signature.
        ranks: Global ranks of the group; empty if the trace does not say.
        group_size: Number of ranks; 0 if the trace does not say.
    """

    operation: str
    tensors: tuple[Recorded, ...]
    numbers: tuple[Recorded, ...]
    ranks: tuple[int, ...]
    group_size: int


def collective_call(
    et: ExecutionTrace, node: int, schema: str, inputs: Sequence[Recorded]
) -> CollectiveCall | str:
    """Returns what a node exchanges, or why that cannot be repeated."""
    library, _, operation = et.name_of(node).partition("::")
    if library != "c10d":
        return "functional collectives are not replayed"
    if operation not in _SIGNATURES:
        return "this collective is not known"
    names = argument_names(schema)
    if len(names) < len(inputs):
        return "its signature cannot be read"
    given = dict(zip(names, inputs, strict=False))
    wanted, numbers = _SIGNATURES[operation]
    tensors = tuple(given.get(name) for name in wanted)
    if any(tensor is None or _has_opaque(tensor) for tensor in tensors):
        return "its tensors are not in the trace"
    values = tuple(given.get(name, 0) for name in numbers)
    if any(isinstance(value, Opaque) for value in values):
        return "its numbers are not in the trace"
    ranks, size = group_of(et, node)
    return CollectiveCall(operation, tensors, values, ranks, size)


def _has_opaque(value: Recorded) -> bool:
    if isinstance(value, list):
        return any(_has_opaque(one) for one in value)
    return not isinstance(value, TensorRef)


def group_of(et: ExecutionTrace, node: int) -> tuple[tuple[int, ...], int]:
    """Returns ranks and size of the group, from what the backend recorded inside the operator."""
    inside = {node}
    for other in range(node, len(et)):
        if other != node and int(et.parent[other]) not in inside:
            if et.thread[other] == et.thread[node]:
                break
            continue
        inside.add(other)
        if et.collective[other] >= 0:
            return _ranks_of(et, et.collectives[int(et.collective[other])])
    return (), 0


def _ranks_of(et: ExecutionTrace, info: CollectiveInfo) -> tuple[tuple[int, ...], int]:
    for group in et.process_groups:
        if info.group and group.name == info.group and group.ranks:
            return tuple(group.ranks), len(group.ranks)
    if info.ranks:
        return info.ranks, len(info.ranks)
    return (), info.group_size
