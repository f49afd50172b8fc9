"""Collectives: as recorded, and as run over process groups or mocked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dse.errors import ConfigError
from dse.trace.replay.read import Opaque, Recorded, TensorRef, argument_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from dse.trace import CollectiveInfo, ExecutionTrace
    from dse.trace.replay.run._batch import BatchScaler


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
#: Operations whose numbers are passed as options.
_OPTIONS = {
    "broadcast_": "BroadcastOptions",
    "reduce_": "ReduceOptions",
    "gather_": "GatherOptions",
    "scatter_": "ScatterOptions",
}


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """One collective of one rank.

    Attributes:
        operation: Name of c10d, for example `alltoall_base_`.
        tensors: Arguments with tensors, in the order of `ProcessGroup`'s methods.
        numbers: The others, in the order of the signature.
        ranks: Global ranks of the group; empty if not recorded.
    """

    operation: str
    tensors: tuple[Recorded, ...]
    numbers: tuple[Recorded, ...]
    ranks: tuple[int, ...]


def collective_call(
    et: ExecutionTrace, node: int, schema: str, inputs: Sequence[Recorded]
) -> CollectiveCall | str:
    """Returns the collective of a node, or why it cannot be replayed."""
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
    return CollectiveCall(operation, tensors, values, group_of(et, node)[0])


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


class CollectiveBinder:
    """Binds recorded collectives to calls of a process group, or to a local copy.

    Args:
        torch: The torch module.
        groups: Process groups by their global ranks, and by `()` for the group of all ranks; None
            to mock.
        scaler: Scales the splits of all-to-alls with the batch.
    """

    def __init__(
        self, torch: Any, groups: dict[tuple[int, ...], Any] | None, scaler: BatchScaler
    ) -> None:
        self._torch = torch
        self._groups = groups
        self._scaler = scaler

    def bind(self, call: CollectiveCall) -> Callable[..., Any]:
        """Returns a function of the tensors that begins the collective.

        The function returns the work to wait for, or None. Splits are scaled with the batch.

        Raises:
            ConfigError: The group does not exist.
        """
        if self._groups is None:
            return _mock(call)
        group = self._groups.get(call.ranks)
        if group is None:
            raise ConfigError(
                f"{call.operation} of ranks {list(call.ranks)}: there is no such process group"
            )
        # Operations are those of `_SIGNATURES`, so no other attribute can be named.
        method = getattr(group, call.operation.removesuffix("_"))
        numbers = list(call.numbers)
        if call.operation in _OPTIONS:
            options = getattr(self._torch.distributed, _OPTIONS[call.operation])()
            options.rootRank = numbers[0]
            if len(numbers) > 1:
                options.rootTensor = numbers[1]
            numbers = [options]
        elif call.operation == "alltoall_base_":
            numbers = [self._splits(splits) for splits in numbers]
        elif call.operation in ("_allgather_base_", "_reduce_scatter_base_"):
            return lambda output, given: method(_in_a_row(output), _in_a_row(given))
        return lambda *tensors: method(*tensors, *numbers)

    def _splits(self, splits: Any) -> list[int]:
        if not self._scaler.active:
            return list(splits)
        before, after = self._scaler.before, self._scaler.after
        if any(split * after % before for split in splits):
            raise ConfigError(
                f"--scale-batch: an all-to-all of {splits} rows cannot be scaled by "
                f"{after}/{before}; use a factor that leaves whole numbers"
            )
        return [split * after // before for split in splits]


def _mock(call: CollectiveCall) -> Callable[..., Any]:
    """Returns a function that copies what this rank sends to where it would receive."""
    if len(call.tensors) < 2:
        return lambda *_: None

    def copy(outputs: Any, inputs: Any) -> None:
        given = _flat(inputs)
        for at, output in enumerate(_flat(outputs)):
            if given:
                source = given[at % len(given)].reshape(-1)
                target = output.view(-1) if output.is_contiguous() else output.reshape(-1)
                count = min(len(source), len(target))
                target[:count].copy_(source[:count])

    return copy


def _in_a_row(tensor: Any) -> Any:
    """Returns a tensor in one dimension: NCCL checks its elements only, gloo its shape."""
    return tensor.view(-1) if tensor.is_contiguous() else tensor


def _flat(value: Any) -> list[Any]:
    if isinstance(value, Sequence):
        return [one for part in value for one in _flat(part)]
    return [value]
