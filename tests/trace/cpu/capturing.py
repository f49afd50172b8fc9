"""Training on CPUs under PyTorch's profiler; a module of its own that spawned ranks can import."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from dse.launch import start_ranks

#: Inputs of the network that ranks train.
WIDTH = 384
#: Elements that ranks sum up after each step, while they do nothing else. So many that the turns
#: of a scheduler, some milliseconds each, are little of it.
LARGE = 16_000_000


def _train(model, width, path, steps=3, after=None):
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    profiler = profile(
        activities=[ProfilerActivity.CPU],
        record_shapes=True,
        schedule=schedule(wait=1, warmup=1, active=steps, repeat=1),
        on_trace_ready=lambda done: done.export_chrome_trace(str(path)),
    )
    # The first two steps are left out: there ranks agree on their buckets.
    with profiler:
        for _ in range(2 + steps):
            optimizer.zero_grad()
            model(torch.randn(128, width)).square().mean().backward()
            optimizer.step()
            if after is not None:
                after()
            profiler.step()


def _mlp(width):
    from torch import nn

    # The biases make the layers, and so their messages, differ in size.
    return nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))


def capture_mlp(path, width=256):
    """Writes the trace of three steps."""
    _train(_mlp(width), width, path)


def _rank(folder, width, context):
    """Answers by training, and writing the trace of it."""
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    # Buckets of one layer each, so that communication overlaps with the rest.
    model = DistributedDataParallel(_mlp(width), bucket_cap_mb=1)
    large = torch.ones(LARGE)
    path = Path(folder) / f"rank{context.rank}.json"
    return lambda _: _train(model, width, path, after=lambda: distributed.all_reduce(large))


def capture_ranks(folder, world=2, width=WIDTH):
    """Writes the traces of three steps of data-parallel ranks over gloo.

    After each step the ranks wait for a large all-reduce.
    """
    # Its ranks leave without destructors, in which gloo aborts now and then.
    with start_ranks(
        partial(_rank, str(folder), width),
        backend="gloo",
        world_size=world,
        threads=1,
        timeout_s=120.0,
    ) as group:
        group.ask("train")
