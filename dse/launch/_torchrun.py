"""Ranks started by ``torchrun``: all processes run the same program, and rank 0 sends commands.

The other ranks reply until rank 0 has its result, which all of them return. A rank that fails
raises in its own process, and ``torchrun`` ends the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
import os
import time
from typing import TYPE_CHECKING, Any, TypeVar, cast

from dse._torch import load_torch
from dse.errors import ConfigError
from dse.launch._rank import RankContext

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dse.launch._group import RankGroup
    from dse.launch._rank import Worker, WorkerFactory

_Result = TypeVar("_Result")

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")

#: Communication threads of gloo in each process.
_GLOO_THREADS = 2

#: Time between two checks for released tensors, in seconds.
_RELEASE_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class TorchrunEnvironment:
    """Environment of a rank started by ``torchrun``.

    Attributes:
        rank: Global rank.
        world_size: Number of ranks.
        local_rank: Rank on this machine.
    """

    rank: int
    world_size: int
    local_rank: int


def torchrun_environment(
    variables: Mapping[str, str] | None = None,
) -> TorchrunEnvironment | None:
    """Returns the environment of this rank; None if ``torchrun`` did not start this process.

    Args:
        variables: Environment variables; those of this process by default.

    Raises:
        ConfigError: A variable is not a number.
    """
    found = os.environ if variables is None else variables
    if any(name not in found for name in _VARIABLES):
        return None
    numbers = []
    for name in _VARIABLES[:3]:
        if not found[name].isdecimal():
            raise ConfigError(
                f"{name}={found[name]}: expected a number from 0; unset it",
                key=name,
                value=found[name],
            )
        numbers.append(int(found[name]))
    return TorchrunEnvironment(*numbers)


@dataclass(frozen=True, slots=True)
class _Finished:
    result: object


def in_place(
    drive: Callable[[RankGroup], _Result],
    factory: WorkerFactory,
    environment: TorchrunEnvironment,
    *,
    backend: str,
    threads: int,
    timeout_s: float = 60.0,
) -> _Result:
    """Runs `drive` on rank 0 while all ranks reply to it; every rank returns its result.

    Args:
        drive: Sends commands to the ranks; its result must be picklable.
        factory: Creates the worker of a rank.
        environment: This rank.
        backend: ``gloo`` or ``nccl``.
        threads: CPU threads of each rank.
        timeout_s: Timeout of collectives, in seconds.
    """
    torch = load_torch()
    torch.set_num_threads(threads)
    device = "cpu"
    if backend == "nccl":
        device = f"cuda:{environment.local_rank}"
        torch.cuda.set_device(environment.local_rank)
    dist = torch.distributed
    joined_here = not dist.is_initialized()
    if joined_here:
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
    try:
        worker = factory(RankContext(environment.rank, environment.world_size, device))
        if environment.rank:
            result = cast("_Result", _follow(worker))
        else:
            result = drive(_TorchrunGroup(worker, environment.world_size))
            _broadcast(_Finished(result))
        if backend == "gloo":
            _wait_for_gloo_threads()
        return result
    finally:
        if joined_here:
            dist.destroy_process_group()


class _TorchrunGroup:
    """All ranks as seen from rank 0, which is one of them."""

    def __init__(self, worker: Worker, world_size: int) -> None:
        self._worker = worker
        self.world_size = world_size

    def ask(self, command: object) -> list[Any]:
        return _reply(self._worker, _broadcast(command))


def _follow(worker: Worker) -> Any:
    while True:
        command = _broadcast(None)
        if isinstance(command, _Finished):
            return command.result
        _reply(worker, command)


def _wait_for_gloo_threads() -> None:
    """Waits until the threads of gloo have released the tensors of earlier collectives.

    A thread releases a tensor some time after the collective has completed, and needs the GIL to
    do so; during interpreter shutdown that aborts the process. The collectives here go through the
    same threads, and sleeping hands the GIL to them until these tensors have no other owner.
    """
    torch = load_torch()
    tensors = [torch.zeros(1) for _ in range(_GLOO_THREADS)]
    works = [torch.distributed.all_reduce(tensor, async_op=True) for tensor in tensors]
    while works:
        works.pop().wait()
    while True:
        time.sleep(_RELEASE_POLL_S)
        if all(tensor._use_count() == 1 for tensor in tensors):
            return


def _broadcast(command: object) -> Any:
    box = [command]
    load_torch().distributed.broadcast_object_list(box, src=0)
    return box[0]


def _reply(worker: Worker, command: object) -> list[Any]:
    distributed = load_torch().distributed
    replies: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(replies, worker(command))
    return replies
