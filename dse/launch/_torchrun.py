"""Ranks that ``torchrun`` started: every process runs the same program, rank 0 asks.

The other ranks answer until rank 0 has its result, which all of them return. A rank that fails
raises in its own process, and ``torchrun`` ends the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
import os
import time
from typing import TYPE_CHECKING, Any, TypeVar, cast

from dse.errors import ConfigError
from dse.launch._child import RankContext
from dse.launch._torch import load_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dse.launch._child import Worker, WorkerFactory
    from dse.launch._parent import RankGroup

_Result = TypeVar("_Result")

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")

#: Threads with which gloo does the exchanges of a process.
_GLOO_THREADS = 2

#: How long to leave the interpreter to them at a time, in seconds.
_RELEASE_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class TorchrunEnvironment:
    """What ``torchrun`` tells a rank.

    Attributes:
        rank: Number of this rank.
        world_size: Number of ranks.
        local_rank: Number among the ranks of this machine.
    """

    rank: int
    world_size: int
    local_rank: int


def torchrun_environment(
    variables: Mapping[str, str] | None = None,
) -> TorchrunEnvironment | None:
    """Returns which rank this process is, or None where it was not started by ``torchrun``.

    Args:
        variables: Variables of the process; those of this one by default.

    Raises:
        ConfigError: A variable is no number.
    """
    found = os.environ if variables is None else variables
    if any(name not in found for name in _VARIABLES):
        return None
    numbers = []
    for name in _VARIABLES[:3]:
        if not found[name].isdecimal():
            raise ConfigError(f"{name}={found[name]}: expected a number from 0; unset it")
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
    """Runs `drive` on rank 0 while all ranks answer it; every rank returns its result.

    Args:
        drive: Asks the ranks; must return something picklable.
        factory: Makes the worker of a rank.
        environment: Which rank this process is.
        backend: ``gloo`` or ``nccl``.
        threads: Threads that each rank computes with.
        timeout_s: Time after which a collective that does not end is an error, in seconds.
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
            result = drive(_AskedInPlace(worker, environment.world_size))
            _broadcast(_Finished(result))
        if backend == "gloo":
            _have_tensors_released()
        return result
    finally:
        if joined_here:
            dist.destroy_process_group()


class _AskedInPlace:
    """All ranks, seen from rank 0, which is one of them."""

    def __init__(self, worker: Worker, world_size: int) -> None:
        self._worker = worker
        self.world_size = world_size

    def ask(self, order: object) -> list[Any]:
        return _answer(self._worker, _broadcast(order))


def _follow(worker: Worker) -> Any:
    while True:
        order = _broadcast(None)
        if isinstance(order, _Finished):
            return order.result
        _answer(worker, order)


def _have_tensors_released() -> None:
    """Waits until the threads of gloo hold no tensor of the exchanges before.

    A thread lets go of a tensor some time after whoever waited for the exchange goes on, and needs
    the interpreter for it. Does it come only when the program is ending, the process aborts. What
    is exchanged here is held until nobody else holds it, so that it needs no interpreter; and
    waiting gives the interpreter to the threads that still want it.
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


def _broadcast(order: object) -> Any:
    box = [order]
    load_torch().distributed.broadcast_object_list(box, src=0)
    return box[0]


def _answer(worker: Worker, order: object) -> list[Any]:
    distributed = load_torch().distributed
    answers: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(answers, worker(order))
    return answers
