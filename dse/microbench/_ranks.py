"""What one rank does: it joins the group, then runs the collectives it is told to.

This module is imported in the worker processes; the other side is `_collectives`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
import os
import signal
import socket
import time
from typing import TYPE_CHECKING, Any

from dse.microbench._allocator import keep_freed_memory
from dse.microbench._torch import load_torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

#: Bytes of one value; buffers are float32.
_VALUE_BYTES = 4

#: Calls in a row between two CUDA events.
_CUDA_CALLS = 20


@dataclass(frozen=True, slots=True)
class RankSetup:
    """What all ranks of a group are started with.

    Attributes:
        backend: ``gloo`` or ``nccl``.
        ranks: Number of ranks.
        threads: Threads that each rank computes with.
        port: Port of the rendezvous on this machine.
        timeout_s: Time after which a collective that does not end is an error, in seconds.
    """

    backend: str
    ranks: int
    threads: int
    port: int
    timeout_s: float


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


def serve(rank: int, setup: RankSetup, pipes: list[Connection]) -> None:
    """Runs one rank until it is told to stop or its starter is gone.

    The answer to :class:`Prepare` is ``None``, the one to :class:`Repeat` a list of pairs of start
    and end in seconds, on the clock that all processes of the machine share. A :class:`Refusal`
    takes their place when the collective cannot be run; every other failure ends the rank.

    Args:
        rank: Number of this rank.
        setup: The same on all ranks.
        pipes: For each rank the end of its pipe.
    """
    # Held back while the process started; from here on Ctrl-C ends it without a word.
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    torch = load_torch()
    dist = torch.distributed
    torch.set_num_threads(setup.threads)
    on_gpu = setup.backend == "nccl"
    if on_gpu:
        torch.cuda.set_device(rank)
    else:
        _prepare_cpu_rank()
    timeout = timedelta(seconds=setup.timeout_s)
    store = dist.TCPStore("127.0.0.1", setup.port, is_master=False, timeout=timeout)
    dist.init_process_group(
        setup.backend, rank=rank, world_size=setup.ranks, store=store, timeout=timeout
    )
    pipe = pipes[rank]
    call: Callable[[], object] = list
    time_calls = _time_on_gpu if on_gpu else _time_on_cpu
    pipe.send(None)
    while True:
        try:
            order = pipe.recv()
        except EOFError:
            break
        if order is None:
            break
        if isinstance(order, Prepare):
            call = list  # frees the buffers of the last collective first
            try:
                call = _collective(torch, order, rank, setup.ranks, "cuda" if on_gpu else "cpu")
            except (RuntimeError, AttributeError) as error:
                # Nothing has been sent yet, so the other ranks do not wait for this one.
                pipe.send(Refusal(_first_line(error)))
            else:
                pipe.send(None)
        elif isinstance(order, Repeat):
            try:
                pipe.send([time_calls(torch, call) for _ in range(order.count)])
            except RuntimeError as error:
                # A backend refuses an operation that it lacks on all ranks alike.
                if "support" not in str(error):
                    raise
                pipe.send(Refusal(_first_line(error)))
        else:
            raise TypeError(f"rank {rank} does not know what to do with {order!r}")
    dist.destroy_process_group()


def _prepare_cpu_rank() -> None:
    keep_freed_memory()
    if any(name == "lo" for _, name in socket.if_nameindex()):
        # All ranks are here: no need for a host name that can be resolved.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


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


def _collective(
    torch: Any, order: Prepare, rank: int, ranks: int, torch_device: str
) -> Callable[[], object]:
    """Makes the buffers of a collective; returns the call that runs it and waits for its end."""
    dist = torch.distributed
    whole = max(ranks, order.size_bytes // _VALUE_BYTES)
    part = whole // ranks

    def buffer(count: int) -> Any:
        return torch.zeros(count, device=torch_device)

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
