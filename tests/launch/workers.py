"""Workers that fail in all the ways that ranks can, in a module that spawned ranks can import."""

from __future__ import annotations

from functools import partial
import os
import signal
import sys
import time

#: Ways to fail that need running ranks, and what the error must say.
FAILURES = {
    "exception": r"rank {rank} failed: ValueError: the cause",
    "killed": r"rank {rank} was ended by SIGKILL",
    "aborted": r"rank {rank} was ended by SIGABRT",
    "left": r"rank {rank} ended with exit code 3",
    "memory": r"rank {rank} failed: (RuntimeError|MemoryError|OSError)",
    "time-out": r"ranks 0, 1 gave no answer within 2 s",
    "unanswerable": r"rank {rank} failed: (AttributeError|TypeError|PicklingError|_pickle)",
}


def adder(context):
    """Replies with the sum of the command over all ranks."""
    import torch

    def answer(order):
        total = torch.tensor([order + context.rank])
        torch.distributed.all_reduce(total)
        return int(total)

    return answer


def failing(kind, victim):
    """Returns a factory of workers; one fails while the others wait for it in a collective."""
    return partial(_failing, kind, victim)


def _failing(kind, victim, context):
    import torch

    def answer(order):
        if context.rank == victim:
            return _fail(kind)
        torch.distributed.all_reduce(torch.ones(1))
        return None

    return answer


def _fail(kind):
    if kind == "exception":
        raise ValueError("the cause\nwith its details")
    if kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "aborted":
        os.abort()
    if kind == "left":
        os._exit(3)
    if kind == "memory":
        return _exceed_memory()
    if kind == "time-out":
        time.sleep(600)
    return lambda: None  # cannot be sent


def _exceed_memory():
    import resource

    import torch

    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    taken = pages * os.sysconf("SC_PAGE_SIZE")
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (taken + 2**26, hard))
    return float(torch.ones(2**30).sum())


def main():
    """Starts ranks, prints their process ids and sends commands until it is killed."""
    from dse.launch import start_ranks

    with start_ranks(adder, backend="gloo", world_size=2, threads=1) as group:
        sys.stdout.write(" ".join(map(str, group.process_ids)) + "\n")
        sys.stdout.flush()
        while True:
            group.ask(1)


if __name__ == "__main__":
    sys.exit(main())


def bound_to(context):
    """Replies with the cores that the rank may use."""
    return lambda order: os.sched_getaffinity(0)
