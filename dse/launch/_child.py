"""What a rank's process does: it joins the group, then answers what it is asked.

This module is imported in the processes of the ranks; the other side is `_parent`.
"""

from __future__ import annotations

from collections.abc import Callable
import ctypes
from dataclasses import dataclass
from datetime import timedelta
import os
import signal
import socket
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

from dse.launch._cores import bind
from dse.launch._torch import load_torch

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

#: Turns an order into an answer; both must be picklable.
Worker = Callable[[Any], Any]

#: Linux: `prctl` option by which a process asks for a signal when its starter ends.
_PR_SET_PDEATHSIG = 1

#: Exit code of a rank that reported its failure.
FAILED = 1


@dataclass(frozen=True, slots=True)
class RankSetup:
    """What all ranks of a group are started with.

    Attributes:
        backend: ``gloo`` or ``nccl``.
        world_size: Number of ranks.
        threads: Threads that each rank computes with.
        port: Port of the rendezvous on this machine.
        timeout_s: Time after which a collective that does not end is an error, in seconds.
        starter: Number of the process that started the ranks.
        cores: Logical cores that each rank is bound to; nothing leaves them to the system.
    """

    backend: str
    world_size: int
    threads: int
    port: int
    timeout_s: float
    starter: int
    cores: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class RankContext:
    """What a worker is told of its rank when the group stands.

    Attributes:
        rank: Number of this rank.
        world_size: Number of ranks.
        device: Name of the torch device that this rank computes on.
    """

    rank: int
    world_size: int
    device: str


#: Makes the worker of a rank, in the rank's process; must be picklable.
WorkerFactory = Callable[[RankContext], Worker]


@dataclass(frozen=True, slots=True)
class Failure:
    """A rank has failed and is about to leave.

    Attributes:
        summary: Type and message of the exception.
        trace: The whole traceback.
        at_s: When, on the clock that the processes of a machine share, in seconds.
    """

    summary: str
    trace: str
    at_s: float


def rank_main(rank: int, setup: RankSetup, pipe: Connection) -> None:
    """Runs one rank until it is told to stop or its starter is gone; never returns.

    The process leaves without the usual clean-up: a gloo group that has lost a peer can abort the
    process in its destructors, and that would hide what was reported before.

    Args:
        rank: Number of this rank.
        setup: The same on all ranks.
        pipe: To the starter. The first order is the factory of what answers the others: given to
            the process as it is started it could make the starter wait for ever, should the
            process die before it has read all of it. The first answer says that the group stands.
    """
    code = 0
    try:
        _end_with(setup.starter)
        _take_interrupts()
        if setup.cores:
            # Before torch starts threads, which inherit it.
            bind(setup.cores[rank])
        factory: WorkerFactory = pipe.recv()
        worker = factory(_join_group(rank, setup))
        pipe.send(None)
        _serve(worker, pipe)
    except BaseException as error:  # whatever it is, the starter must know
        code = FAILED
        _report(error, pipe)
    finally:
        sys.stdout.flush()
        os._exit(code)


def _serve(worker: Worker, pipe: Connection) -> None:
    while True:
        try:
            order = pipe.recv()
        except EOFError:
            return
        if order is None:
            return
        pipe.send(worker(order))


def _report(error: BaseException, pipe: Connection) -> None:
    # A limit on memory that was the reason must not keep the reason from being told.
    _lift_memory_limit()
    words = traceback.format_exception_only(error)[-1].strip()
    failure = Failure(words, "".join(traceback.format_exception(error)), time.monotonic())
    try:
        pipe.send(failure)
    except OSError:
        return  # the starter is gone


def _lift_memory_limit() -> None:
    try:
        import resource
    except ImportError:  # not on every operating system
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def _end_with(starter: int) -> None:
    """Lets the system end this process when its starter ends, however that happens."""
    if sys.platform != "linux":
        return  # the closed pipe ends it at the next answer
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != starter:
        os._exit(FAILED)


def _take_interrupts() -> None:
    """Ctrl-C ends a rank at once and without a word, even inside a collective."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Both were held back while the process started, see `_parent`.
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})


def _join_group(rank: int, setup: RankSetup) -> RankContext:
    torch = load_torch()
    torch.set_num_threads(setup.threads)
    device = "cpu"
    if setup.backend == "nccl":
        device = f"cuda:{rank}"
        torch.cuda.set_device(rank)
    elif any(name == "lo" for _, name in socket.if_nameindex()):
        # All ranks are here: no need for a host name that can be resolved.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist = torch.distributed
    timeout = timedelta(seconds=setup.timeout_s)
    store = dist.TCPStore("127.0.0.1", setup.port, is_master=False, timeout=timeout)
    dist.init_process_group(
        setup.backend, rank=rank, world_size=setup.world_size, store=store, timeout=timeout
    )
    return RankContext(rank, setup.world_size, device)
