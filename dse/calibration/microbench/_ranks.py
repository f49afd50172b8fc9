"""What one rank does in its process: the collectives that it is told to.

The other side is `_collectives`; how ranks start, join and end is the business of `dse.launch`.
"""

from __future__ import annotations

from dataclasses import dataclass
import time
from typing import TYPE_CHECKING, Any

from dse.calibration.microbench._allocator import keep_freed_memory
from dse.calibration.microbench._torch import load_torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from dse.launch import RankContext, Worker

#: Bytes of one value; buffers are float32.
_VALUE_BYTES = 4

#: Calls in a row between two CUDA events.
_CUDA_CALLS = 20


@dataclass(frozen=True, slots=True)
class Prepare:
    """Tells a rank to make the buffers of a collective."""

    op: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Repeat:
    """Tells a rank to run the prepared collective so many times."""

    count: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """There is no memory for the buffers, or the backend does not have the collective."""

    reason: str


def collective_worker(context: RankContext) -> Worker:
    """Returns what answers a rank's orders.

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
        raise TypeError(f"rank {self._context.rank} does not know what to do with {order!r}")

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
