"""Process of one rank: joins the group, then replies to commands of the parent.

This module is imported by the rank processes; the parent's side is `_group`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.reduction import ForkingPickler
import os
import signal
import socket
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

from dse._process.starting import end_with_starter
from dse._torch import load_torch
from dse.launch._cores import pin_process

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

#: Turns a command into a reply; both must be picklable.
Worker = Callable[[Any], Any]

#: Exit code of a rank that has reported its failure.
_FAILED = 1


@dataclass(frozen=True, slots=True)
class RankSetup:
    """Settings shared by all ranks of a group.

    Attributes:
        backend: ``gloo`` or ``nccl``.
        world_size: Number of ranks.
        threads: CPU threads of each rank.
        port: Port of the rendezvous on this machine.
        timeout_s: Timeout of collectives, in seconds.
        cores: Logical cores that each rank is pinned to; empty leaves them to the scheduler.
    """

    backend: str
    world_size: int
    threads: int
    port: int
    timeout_s: float
    cores: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class RankContext:
    """A rank of a joined group.

    Attributes:
        rank: Rank.
        world_size: Number of ranks.
        device: Torch device of this rank.
    """

    rank: int
    world_size: int
    device: str


#: Creates the worker of a rank in the rank's process; must be picklable.
WorkerFactory = Callable[[RankContext], Worker]


@dataclass(frozen=True, slots=True)
class Beginning:
    """First command of a rank.

    Attributes:
        environment: Variables of the parent; the server that forks ranks has those of its start.
        factory: Creates the worker; pickled, since what it imports may read the variables.
    """

    environment: dict[str, str]
    factory: bytes


@dataclass(frozen=True, slots=True)
class Failure:
    """Last reply of a rank that has failed.

    Attributes:
        summary: Type of the exception, and the first line of its message.
        trace: Full traceback.
        at_s: Time on the clock that all processes of a machine share, in seconds.
    """

    summary: str
    trace: str
    at_s: float


def rank_main(rank: int, setup: RankSetup, pipe: Connection) -> None:
    """Runs one rank until the parent stops it or ends; never returns.

    The process exits without the usual clean-up: a gloo group that has lost a peer can abort in
    its destructors, which would hide the reported failure.

    Args:
        rank: Rank.
        setup: Settings shared by all ranks.
        pipe: Connection to the parent. The first command is a :class:`Beginning`: as an argument
            of the process, the parent could block forever if the process dies before reading it.
            The first reply confirms that the group has been joined.
    """
    code = 0
    try:
        end_with_starter()
        _restore_interrupts()
        if setup.cores:
            # Before torch starts threads, which inherit the affinity.
            pin_process(setup.cores[rank])
        beginning: Beginning = pipe.recv()
        os.environ.clear()
        os.environ.update(beginning.environment)
        factory: WorkerFactory = ForkingPickler.loads(beginning.factory)
        worker = factory(_join_group(rank, setup))
        pipe.send(None)
        _serve(worker, pipe)
    except BaseException as error:  # the parent has to know of any
        code = _FAILED
        _report(error, pipe)
    finally:
        sys.stdout.flush()
        os._exit(code)


def _serve(worker: Worker, pipe: Connection) -> None:
    while True:
        try:
            command = pipe.recv()
        except EOFError:
            return
        if command is None:
            return
        pipe.send(worker(command))


def _report(error: BaseException, pipe: Connection) -> None:
    # A memory limit that caused the failure must not prevent the report.
    _lift_memory_limit()
    summary = ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
    failure = Failure(summary, "".join(traceback.format_exception(error)), time.monotonic())
    try:
        pipe.send(failure)
    except OSError:
        return  # the parent has ended


def _lift_memory_limit() -> None:
    try:
        import resource
    except ImportError:  # not on Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def _restore_interrupts() -> None:
    """Makes Ctrl-C end this rank silently, even inside a collective."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Blocked while the process started, see `_group`.
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
        # All ranks are local, so gloo need not resolve the host name.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist = torch.distributed
    timeout = timedelta(seconds=setup.timeout_s)
    store = dist.TCPStore("127.0.0.1", setup.port, is_master=False, timeout=timeout)
    dist.init_process_group(
        setup.backend, rank=rank, world_size=setup.world_size, store=store, timeout=timeout
    )
    return RankContext(rank, setup.world_size, device)
