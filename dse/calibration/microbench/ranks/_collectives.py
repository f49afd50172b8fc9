"""Collectives measured over processes of this machine.

One process a rank is started for a number of ranks and serves all points of that number. Ranks
meet at a barrier before each repeat. With gloo a repeat lasts from the *last* start to the last
end over the ranks, on the clock that the processes share: a rank that left the barrier early
waits, and waiting is not transfer. With nccl each rank takes the mean of a row of calls between
two events, and the slowest rank counts.

torch 2.13's gloo has all six operations. Where a backend lacks one, its points are skipped with
the backend's message; no substitute is composed from other operations.

Ranks, and gloo's own threads, share the cores with the process that starts them, which sleeps
meanwhile; where there are as many ranks as cores, single repeats are held up by milliseconds. The
median is little affected, its interval shows it.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
import time
from typing import TYPE_CHECKING, Any

from dse._torch import load_torch
from dse.calibration.microbench._machine import keep_freed_memory
from dse.calibration.microbench.timing._timers import MeasureSettings, repeat
from dse.errors import CalibrationError, DseError, WorkerError
from dse.launch import start_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dse.calibration.microbench.plan._points import CollectivePoint, Sample
    from dse.launch import RankContext, RankGroup, Worker

#: Bytes of one value; buffers are float32.
_VALUE_BYTES = 4

#: Calls in a row between two CUDA events.
_CUDA_CALLS = 20


@dataclass(frozen=True, slots=True)
class Prepare:
    """Order to make the buffers of a collective."""

    op: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Repeat:
    """Order to run the prepared collective `count` times."""

    count: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Answer of a rank that lacks the memory or the collective."""

    reason: str


def collective_worker(context: RankContext) -> Worker:
    """Returns the worker that answers the orders of one rank.

    The answer to :class:`Prepare` is ``None``, the one to :class:`Repeat` a list of pairs of start
    and end in seconds, on the clock that all processes of the machine share. A :class:`Refusal`
    takes their place when the collective cannot be run; every other failure ends the rank.
    """
    return _CollectiveWorker(context).answer


class _CollectiveWorker:
    def __init__(self, context: RankContext) -> None:
        self._torch = load_torch()
        self._context = context
        self._call: Callable[[], object] = list
        self._time_call = _time_on_cpu if context.device == "cpu" else _time_on_gpu
        if context.device == "cpu":
            keep_freed_memory()

    def answer(self, order: object) -> object:
        if isinstance(order, Prepare):
            return self._prepare(order)
        if isinstance(order, Repeat):
            return self._repeat(order)
        raise TypeError(f"rank {self._context.rank} received an unknown order {order!r}")

    def _prepare(self, order: Prepare) -> Refusal | None:
        self._call = list  # frees the buffers of the last collective first
        try:
            self._call = _collective(self._torch, order, self._context)
        except (RuntimeError, AttributeError) as error:
            # Nothing has been sent yet, so the other ranks do not wait for this one.
            return Refusal(_first_line(error))
        return None

    def _repeat(self, order: Repeat) -> Refusal | list[tuple[float, float]]:
        try:
            return [self._time_call(self._torch, self._call) for _ in range(order.count)]
        except RuntimeError as error:
            # A backend refuses an operation that it lacks on all ranks alike.
            if "support" not in str(error):
                raise
            return Refusal(_first_line(error))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _time_on_cpu(torch: Any, call: Callable[[], object]) -> tuple[float, float]:
    torch.distributed.barrier()
    start_s = time.perf_counter()
    call()
    return start_s, time.perf_counter()


def _time_on_gpu(torch: Any, call: Callable[[], object]) -> tuple[float, float]:
    """Mean of calls in a row, as nccl-tests do; a call ahead of them brings the ranks together."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.distributed.barrier()
    call()
    start.record()
    for _ in range(_CUDA_CALLS):
        call()
    end.record()
    torch.cuda.synchronize()
    return 0.0, float(start.elapsed_time(end)) * 1e-3 / _CUDA_CALLS


def _collective(torch: Any, order: Prepare, context: RankContext) -> Callable[[], object]:
    """Makes the buffers of a collective; returns the call that runs it and waits for its end."""
    dist = torch.distributed
    rank, ranks = context.rank, context.world_size
    whole = max(ranks, order.size_bytes // _VALUE_BYTES)
    part = whole // ranks

    def buffer(count: int) -> Any:
        return torch.zeros(count, device=context.device)

    if order.op == "all_gather":
        gathered, own = buffer(part * ranks), buffer(part)
        # Newer releases have the first name, older ones the second.
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        return lambda: gather(gathered, own)
    if order.op == "reduce_scatter":
        reduced, addends = buffer(part), buffer(part * ranks)
        scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        return lambda: scatter(reduced, addends)
    if order.op == "all_to_all":
        received, sent = buffer(part * ranks), buffer(part * ranks)
        return lambda: dist.all_to_all_single(received, sent)
    if order.op == "send_recv":
        return _ring(dist, buffer(whole), buffer(whole), rank, ranks)
    values = buffer(whole)
    if order.op == "broadcast":
        return lambda: dist.broadcast(values, 0)
    if order.op == "all_reduce":
        return lambda: dist.all_reduce(values)
    # As backends refuse what they lack: the point is skipped with this reason, the ranks go on.
    raise RuntimeError(f"there is no collective `{order.op}`")


def _ring(dist: Any, received: Any, sent: Any, rank: int, ranks: int) -> Callable[[], object]:
    """Every rank sends to the next and receives from the one before, as in nccl-tests."""

    def call() -> None:
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, sent, (rank + 1) % ranks),
                dist.P2POp(dist.irecv, received, (rank - 1) % ranks),
            ]
        )
        for work in works:
            work.wait()

    return call


#: Repeats that the ranks run before they answer.
_BATCH = 6


class RefusedCollectiveError(DseError):
    """A collective cannot be run, for lack of memory or of the operation; it is skipped."""


@contextmanager
def collective_ranks(
    backend: str, ranks: int, threads: int, timeout_s: float = 60.0
) -> Iterator[LocalRanks]:
    """Starts the ranks of a group on this machine and ends them afterwards in any case.

    Args:
        backend: ``gloo`` or ``nccl``.
        ranks: Number of ranks, at least 2.
        threads: Threads that each rank computes with.
        timeout_s: Time for the ranks to start, and for the answer to one request, in seconds.

    Raises:
        CalibrationError: A rank has died; the message ends with its traceback.
    """
    try:
        with start_ranks(
            collective_worker,
            backend=backend,
            world_size=ranks,
            threads=threads,
            timeout_s=timeout_s,
            own_cores=True,
        ) as group:
            yield LocalRanks(group)
    except WorkerError as error:
        raise CalibrationError(f"a rank of a collective has failed: {error}") from error


class LocalRanks:
    """The running ranks of one group.

    Args:
        group: Their processes.
    """

    def __init__(self, group: RankGroup) -> None:
        self._group = group

    def measure(self, point: CollectivePoint, settings: MeasureSettings) -> Sample:
        """Measures one collective.

        Args:
            point: Operation and size; its number of ranks is that of the group.
            settings: When to stop.

        Raises:
            RefusedCollectiveError: Memory or backend do not suffice for it.
            WorkerError: A rank has died or does not answer.
        """
        self.ask(Prepare(point.op, point.size_bytes))
        warm_until = time.perf_counter() + settings.warm_up_s
        while True:
            self._times_s(1)
            if time.perf_counter() >= warm_until:
                break
        return repeat(lambda: self._times_s(_BATCH), settings)

    def _times_s(self, count: int) -> list[float]:
        by_rank = self.ask(Repeat(count))
        return [
            max(end_s for _, end_s in spans) - max(start_s for start_s, _ in spans)
            for spans in zip(*by_rank, strict=True)
        ]

    def ask(self, order: object) -> list[Any]:
        """Gives all ranks the same order; returns their answers by rank.

        Raises:
            WorkerError: A rank has died or does not answer.
            RefusedCollectiveError: Memory or backend do not suffice for it.
        """
        answers = self._group.ask(order)
        for answer in answers:
            if isinstance(answer, Refusal):
                raise RefusedCollectiveError(answer.reason)
        return answers
