"""Collectives in the replay: run over process groups, or mocked by a local copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dse.errors import ConfigError

if TYPE_CHECKING:
    from dse.trace.replay._batch import Scaler
    from dse.trace.replay._collective_calls import CollectiveCall


class Exchange:
    """Binds recorded collectives to what the replay does in their place.

    Args:
        torch: The torch module.
        groups: Process groups by their global ranks, and by `()` for the group of all ranks; None
            to mock.
        scaler: Scales the splits of exchanges with the batch.
    """

    def __init__(
        self, torch: Any, groups: dict[tuple[int, ...], Any] | None, scaler: Scaler
    ) -> None:
        self._torch = torch
        self._groups = groups
        self._scaler = scaler

    @property
    def mocked(self) -> bool:
        """Whether nothing leaves this process."""
        return self._groups is None

    def bind(self, call: CollectiveCall) -> Callable[..., Any]:
        """Returns a function of the tensors that begins the collective.

        The function returns the work to wait for, or None. Splits are scaled with the batch.

        Raises:
            ConfigError: The group is not there.
        """
        if self._groups is None:
            return _mock(call)
        group = self._groups.get(call.ranks)
        if group is None:
            raise ConfigError(
                f"{call.operation} of ranks {list(call.ranks)}: there is no such process group"
            )
        return self._real(group, call)

    def _real(self, group: Any, call: CollectiveCall) -> Callable[..., Any]:
        dist = self._torch.distributed
        name = call.operation
        if name in ("broadcast_", "reduce_"):
            options = dist.BroadcastOptions() if name == "broadcast_" else dist.ReduceOptions()
            options.rootRank, options.rootTensor = call.numbers
            method = group.broadcast if name == "broadcast_" else group.reduce
            return lambda tensors: method(tensors, options)
        if name in ("gather_", "scatter_"):
            options = dist.GatherOptions() if name == "gather_" else dist.ScatterOptions()
            options.rootRank = call.numbers[0]
            method = group.gather if name == "gather_" else group.scatter
            return lambda outputs, inputs: method(outputs, inputs, options)
        if name == "alltoall_base_":
            received, sent = (self._splits(splits) for splits in call.numbers)
            return lambda output, given: group.alltoall_base(output, given, received, sent)
        if name in ("send", "recv_"):
            peer, tag = call.numbers
            method = group.send if name == "send" else group.recv
            return lambda tensors: method(tensors, peer, tag)
        if name in ("_allgather_base_", "_reduce_scatter_base_"):
            gathers = name == "_allgather_base_"
            method = group._allgather_base if gathers else group._reduce_scatter_base
            return lambda output, given: method(_in_a_row(output), _in_a_row(given))
        methods: dict[str, Callable[..., Any]] = {
            "allreduce_": group.allreduce,
            "allreduce_coalesced_": group.allreduce_coalesced,
            "allgather_": group.allgather,
            "allgather_into_tensor_coalesced_": group.allgather_into_tensor_coalesced,
            "reduce_scatter_": group.reduce_scatter,
            "reduce_scatter_tensor_coalesced_": group.reduce_scatter_tensor_coalesced,
            "alltoall_": group.alltoall,
            "barrier": group.barrier,
        }
        return methods[name]

    def _splits(self, splits: Any) -> list[int]:
        if not self._scaler.active:
            return list(splits)
        before, after = self._scaler.before, self._scaler.after
        if any(split * after % before for split in splits):
            raise ConfigError(
                f"--scale-batch: an exchange of {splits} rows cannot be scaled by "
                f"{after}/{before}; take a factor that leaves whole numbers"
            )
        return [split * after // before for split in splits]


def _mock(call: CollectiveCall) -> Callable[..., Any]:
    """Copies what this rank gives to where it would receive."""
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
    """Returns a tensor in one dimension: NCCL asks for its elements only, gloo for its shape."""
    return tensor.view(-1) if tensor.is_contiguous() else tensor


def _flat(value: Any) -> list[Any]:
    if isinstance(value, Sequence):
        return [one for part in value for one in _flat(part)]
    return [value]
