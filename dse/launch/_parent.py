"""Starting ranks, asking them, and ending them whatever happens."""

from __future__ import annotations

from contextlib import contextmanager
import multiprocessing
from multiprocessing.connection import wait
import os
import signal
import time
from typing import TYPE_CHECKING, Any, Protocol, cast

from dse._interrupts import shield_children_from_interrupts
from dse.errors import WorkerError
from dse.launch._child import Failure, RankSetup, rank_main
from dse.launch._cores import core_shares
from dse.launch._torch import load_torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

    from dse.launch._child import WorkerFactory

#: Time for ranks to end when told to, in seconds.
_FAREWELL_S = 5.0

#: Time in which the ranks that a failed one takes along report, in seconds. The cause is among
#: the reports: a rank that was killed, or else the first that raised.
_AFTERMATH_S = 1.0

#: Time-out of collectives over that of answers.
_COLLECTIVE_PATIENCE = 2.0


class RankGroup(Protocol):
    """Ranks that answer questions, wherever they run."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""

    def ask(self, order: object) -> list[Any]:
        """Gives all ranks the same order; returns their answers by rank.

        Raises:
            WorkerError: A rank has failed or does not answer in time.
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
    """Starts the ranks of a group on this machine and ends them afterwards, whatever happens.

    The processes are spawned, so a script that calls this needs the usual ``__main__`` guard.
    When the starter is killed the ranks end with it (on Linux at once, elsewhere at their next
    answer).

    Args:
        factory: Makes the worker of a rank in the rank's process; a function of a module.
        backend: ``gloo`` or ``nccl``.
        world_size: Number of ranks.
        threads: Threads that each rank computes with.
        timeout_s: Time for the ranks to start, and for the answer to one order, in seconds.
        port: Port of the rendezvous; 0 lets the system choose one that is free.
        own_cores: Whether each rank of gloo is bound to its share of the cores, for what is
            measured. Nothing is done where there are fewer cores than ranks.

    Raises:
        OptionalDependencyError: torch is not installed.
        WorkerError: The port is in use, or a rank has failed; the message names the rank and
            ends with its traceback.
    """
    store = _rendezvous(port)
    # A rank that waits for one that hangs must not be the first to complain.
    patience_s = _COLLECTIVE_PATIENCE * timeout_s
    shares = core_shares(world_size) if own_cores and backend == "gloo" else ()
    setup = RankSetup(
        backend, world_size, threads, int(store.port), patience_s, os.getpid(), shares
    )
    context = multiprocessing.get_context("spawn")
    processes: list[SpawnProcess] = []
    pipes: list[Connection] = []
    try:
        with shield_children_from_interrupts():
            for rank in range(world_size):
                ours, theirs = context.Pipe()
                pipes.append(ours)
                process = context.Process(
                    target=rank_main, args=(rank, setup, theirs), daemon=True
                )
                process.start()
                processes.append(process)
                theirs.close()
        group = RankProcesses(processes, pipes, timeout_s)
        group.tell(factory)
        group.answers()
        yield group
        group.tell(None)
        _join(processes, _FAREWELL_S)
    finally:
        # Nothing in a rank needs saving, and a rank in a collective does not listen.
        for process in processes:
            if process.is_alive():
                process.kill()
        for process in processes:
            process.join()
        for pipe in pipes:
            pipe.close()


class RankProcesses:
    """The running ranks of one group.

    Args:
        processes: One for each rank.
        pipes: One to each rank.
        timeout_s: Time for the answer to one order, in seconds.
    """

    def __init__(
        self, processes: list[SpawnProcess], pipes: list[Connection], timeout_s: float
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
        """Numbers of the ranks' processes."""
        return tuple(process.pid or 0 for process in self._processes)

    def ask(self, order: object, timeout_s: float | None = None) -> list[Any]:
        """Gives all ranks the same order; returns their answers by rank.

        Args:
            order: Anything picklable but None.
            timeout_s: Time for the answers, in seconds; that of the group by default.

        Raises:
            WorkerError: A rank has failed or does not answer in time.
        """
        self.tell(order)
        return self.answers(timeout_s)

    def tell(self, order: object) -> None:
        """Sends an order to all ranks.

        Raises:
            WorkerError: A rank has failed.
        """
        try:
            for pipe in self._pipes:
                pipe.send(order)
        except OSError:
            self._raise_failure({})

    def answers(self, timeout_s: float | None = None) -> list[Any]:
        """Waits for one answer of every rank.

        Args:
            timeout_s: Time for them, in seconds; that of the group by default.

        Raises:
            WorkerError: A rank has failed or does not answer in time.
        """
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        until = time.monotonic() + timeout_s
        answers: dict[int, Any] = {}
        while len(answers) < self.world_size:
            missing = [rank for rank in range(self.world_size) if rank not in answers]
            by_pipe = {id(self._pipes[rank]): rank for rank in missing}
            watched: list[Any] = [self._pipes[rank] for rank in missing]
            watched += [process.sentinel for process in self._processes]
            ready = wait(watched, max(0.0, until - time.monotonic()))
            told = [one for one in ready if id(one) in by_pipe]
            for pipe in told:
                rank = by_pipe[id(pipe)]
                try:
                    answer = cast("Connection", pipe).recv()
                except (EOFError, OSError):
                    self._raise_failure({})
                if isinstance(answer, Failure):
                    self._raise_failure({rank: answer})
                answers[rank] = answer
            if ready and not told:
                self._raise_failure({})
            if not ready:
                raise WorkerError(
                    f"{_names(missing)} gave no answer within {timeout_s:g} s; give more "
                    "time, or look whether the machine is overloaded"
                )
        return [answers[rank] for rank in range(self.world_size)]

    def _raise_failure(self, known: dict[int, Failure]) -> None:
        """Raises what went wrong first, once the ranks that it takes along have reported."""
        failures = dict(known)
        until = time.monotonic() + _AFTERMATH_S
        while (left_s := until - time.monotonic()) > 0:
            open_ranks = {
                id(pipe): rank for rank, pipe in enumerate(self._pipes) if rank not in failures
            }
            ready = wait([self._pipes[rank] for rank in open_ranks.values()], left_s)
            ended = 0
            for pipe in ready:
                try:
                    answer = cast("Connection", pipe).recv()
                except (EOFError, OSError):
                    ended += 1
                    continue
                if isinstance(answer, Failure):
                    failures[open_ranks[id(pipe)]] = answer
            if ended == len(open_ranks):
                break
            if ended:
                time.sleep(0.01)
        _join(self._processes, 0.05)
        for rank, process in enumerate(self._processes):
            if rank not in failures and process.exitcode is not None:
                raise WorkerError(f"rank {rank} {_death(process.exitcode)}")
        if not failures:
            raise WorkerError("a rank closed its connection and is still there; run again")
        rank = min(failures, key=lambda one: failures[one].at_s)
        found = failures[rank]
        raise WorkerError(f"rank {rank} failed: {found.summary}\n{found.trace.rstrip()}")


def _rendezvous(port: int) -> Any:
    """Returns the store where the ranks find each other; held here, so there is no race for it."""
    torch = load_torch()
    try:
        return torch.distributed.TCPStore(
            "127.0.0.1", port, is_master=True, wait_for_workers=False
        )
    except RuntimeError as error:
        raise WorkerError(
            f"cannot listen on port {port} of this machine, it may be in use; name another one, "
            f"or 0 for any that is free ({str(error).partition(chr(10))[0]})"
        ) from error


def _join(processes: list[SpawnProcess], timeout_s: float) -> None:
    until = time.monotonic() + timeout_s
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))


def _names(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _death(exit_code: int) -> str:
    if exit_code >= 0:
        return f"ended with exit code {exit_code} and without a reason"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    hint = "; the system may have run out of memory" if -exit_code == signal.SIGKILL else ""
    return f"was ended by {name}{hint}"
