"""Group of rank processes: starts them, sends commands, reports failures, leaves none behind.

`torch.distributed.elastic.multiprocessing` runs entry points to completion and has no commands and
replies, so the ranks are started here.
"""

from __future__ import annotations

from contextlib import contextmanager
import multiprocessing
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
import os
import signal
import time
from typing import TYPE_CHECKING, Any, Protocol

from dse._process.starting import OWN_PREFIX, start, start_method, starting
from dse._torch import load_torch
from dse.errors import WorkerError
from dse.launch._cores import partition_cores
from dse.launch._rank import Beginning, Failure, RankSetup, rank_main

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from multiprocessing.context import (
        ForkServerContext,
        ForkServerProcess,
        SpawnContext,
        SpawnProcess,
    )

    from dse.launch._rank import WorkerFactory

#: What all ranks import.
PRELOADED = ["dse.launch._rank", "torch.distributed"]

#: Time for ranks to exit after they were told to stop, in seconds.
_SHUTDOWN_TIMEOUT_S = 5.0

#: Time for other ranks to report after a first failure, in seconds. The cause is among the
#: reports: a rank that was killed, or else the first one that raised.
_DRAIN_TIMEOUT_S = 1.0

#: Timeout of collectives as a multiple of that of replies: a rank that waits for one that hangs
#: must not fail first.
_COLLECTIVE_TIMEOUT_FACTOR = 2.0

#: Stands for the reply of a rank that has ended.
_ENDED = object()


class RankGroup(Protocol):
    """Ranks that reply to commands, wherever they run."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""

    def ask(self, command: object) -> list[Any]:
        """Sends a command to all ranks; returns their replies in rank order.

        Raises:
            WorkerError: A rank failed or did not reply in time.
        """


@contextmanager
def start_ranks(
    factory: WorkerFactory,
    *,
    backend: str,
    world_size: int,
    threads: int,
    timeout_s: float = 60.0,
    port: int = 0,
    own_cores: bool = False,
) -> Iterator[RankProcesses]:
    """Starts the ranks of a group on this machine and ends them when the block ends.

    Ranks on CPUs are forked from a server that imports torch once; where there is none, and for
    CUDA, each is spawned and imports it for itself. They import the calling script only if the
    factory is defined there or refers to it; such a script needs a ``__main__`` guard. If the
    parent is killed, the ranks end too.

    Args:
        factory: Creates the worker of a rank in the rank's process; a module-level function.
        backend: ``gloo`` or ``nccl``.
        world_size: Number of ranks.
        threads: CPU threads of each rank.
        timeout_s: Time for the ranks to start and for each reply, in seconds.
        port: Port of the rendezvous; 0 for any free port.
        own_cores: Pin each gloo rank to its own share of the cores, for stable timings. Ignored
            if there are fewer cores than ranks.

    Raises:
        OptionalDependencyError: torch is not installed.
        WorkerError: The port is in use, the system starts no further process, or a rank failed;
            a note has the rank's traceback.
    """
    beginning = Beginning(dict(os.environ), bytes(ForkingPickler.dumps(factory)))
    context = _context(backend)
    if context.get_start_method() == "forkserver":
        with starting(beginning.factory):
            # It imports torch while this process does.
            forkserver.ensure_running()
    store = _rendezvous(port)
    setup = RankSetup(
        backend,
        world_size,
        threads,
        int(store.port),
        _COLLECTIVE_TIMEOUT_FACTOR * timeout_s,
        partition_cores(world_size) if own_cores and backend == "gloo" else (),
    )
    processes: list[SpawnProcess | ForkServerProcess] = []
    pipes: list[Connection] = []
    try:
        with starting(beginning.factory):
            for rank in range(world_size):
                ours, theirs = context.Pipe()
                pipes.append(ours)
                process = context.Process(
                    target=rank_main,
                    args=(rank, setup, theirs),
                    name=f"{OWN_PREFIX}rank",
                    daemon=True,
                )
                start(process)
                processes.append(process)
                theirs.close()
        group = RankProcesses(processes, pipes, timeout_s)
        group.ask(beginning)
        yield group
        group.stop()
    finally:
        # Ranks have nothing to save, and inside a collective they do not listen.
        for process in processes:
            if process.is_alive():
                process.kill()
        for process in processes:
            process.join()
        for pipe in pipes:
            pipe.close()


class RankProcesses:
    """Running ranks of one group.

    Args:
        processes: One process per rank.
        pipes: One connection per rank.
        timeout_s: Time for each reply, in seconds.
    """

    def __init__(
        self,
        processes: Sequence[SpawnProcess | ForkServerProcess],
        pipes: list[Connection],
        timeout_s: float,
    ) -> None:
        self._processes = processes
        self._pipes = pipes
        self._timeout_s = timeout_s

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self._pipes)

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Process id of each rank."""
        return tuple(process.pid or 0 for process in self._processes)

    def ask(self, command: object, timeout_s: float | None = None) -> list[Any]:
        """Sends a command to all ranks; returns their replies in rank order.

        Args:
            command: Anything picklable except None.
            timeout_s: Time for the replies, in seconds; that of the group by default.

        Raises:
            WorkerError: A rank failed or did not reply in time.
        """
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        until = time.monotonic() + timeout_s
        self._send(command)
        replies: dict[int, Any] = {}
        while len(replies) < self.world_size:
            # Ranks that have replied are included: their pipes become ready if they end.
            ready = self._receive(range(self.world_size), until)
            if not ready:
                missing = [rank for rank in range(self.world_size) if rank not in replies]
                raise WorkerError(
                    f"{_names(missing)} gave no answer within {timeout_s:g} s; allow more time, "
                    "or check whether the machine is overloaded",
                    rank=missing[0],
                )
            if any(reply is _ENDED or isinstance(reply, Failure) for reply in ready.values()):
                raise self._failure(ready)
            replies |= ready
        return [replies[rank] for rank in range(self.world_size)]

    def stop(self) -> None:
        """Stops the ranks and waits a few seconds for them to exit."""
        self._send(None)
        self._join(_SHUTDOWN_TIMEOUT_S)

    def _send(self, command: object) -> None:
        try:
            for pipe in self._pipes:
                pipe.send(command)
        except OSError:
            raise self._failure({}) from None

    def _receive(self, ranks: Iterable[int], until: float) -> dict[int, Any]:
        """Waits for replies; returns those that have arrived, `_ENDED` for closed pipes."""
        by_pipe = {self._pipes[rank]: rank for rank in ranks}
        found: dict[int, Any] = {}
        for pipe in wait(list(by_pipe), max(0.0, until - time.monotonic())):
            assert isinstance(pipe, Connection)
            try:
                found[by_pipe[pipe]] = pipe.recv()
            except (EOFError, OSError):
                found[by_pipe[pipe]] = _ENDED
        return found

    def _failure(self, ready: dict[int, Any]) -> WorkerError:
        """Returns the error of the rank that failed first, once the others have reported."""
        failures: dict[int, Failure] = {}
        running = set(range(self.world_size))
        until = time.monotonic() + _DRAIN_TIMEOUT_S
        while True:
            failures |= {rank: one for rank, one in ready.items() if isinstance(one, Failure)}
            running -= failures.keys() | {rank for rank, one in ready.items() if one is _ENDED}
            if not running or not (ready := self._receive(running, until)):
                break
        self._join(0.05)
        for rank, process in enumerate(self._processes):
            if rank not in failures and process.exitcode is not None:
                return WorkerError(f"rank {rank} {_exit_text(process.exitcode)}", rank=rank)
        if not failures:
            return WorkerError("a rank closed its connection but is still running; run again")
        rank = min(failures, key=lambda rank: failures[rank].at_s)
        failure = failures[rank]
        error = WorkerError(
            f"rank {rank} failed: {failure.summary}; `dse --debug` shows where", rank=rank
        )
        error.add_note(failure.trace.rstrip())
        return error

    def _join(self, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        for process in self._processes:
            process.join(max(0.0, until - time.monotonic()))


def _context(backend: str) -> SpawnContext | ForkServerContext:
    """Returns how ranks start: those on GPUs from nothing, since CUDA does not survive forks."""
    if backend == "nccl":
        return multiprocessing.get_context("spawn")
    return start_method(PRELOADED)


def _rendezvous(port: int) -> Any:
    """Returns the store of the rendezvous; holding it here avoids a race for the port."""
    torch = load_torch()
    try:
        return torch.distributed.TCPStore(
            "127.0.0.1", port, is_master=True, wait_for_workers=False
        )
    except RuntimeError as error:
        raise WorkerError(
            f"cannot listen on port {port} of this machine, which may be in use; choose another, "
            f"or 0 for any free port ({str(error).partition(chr(10))[0]})"
        ) from error


def _names(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _exit_text(exit_code: int) -> str:
    if exit_code >= 0:
        return f"ended with exit code {exit_code} without reporting a reason"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    hint = "; the system may have run out of memory" if -exit_code == signal.SIGKILL else ""
    return f"was ended by {name}{hint}"
