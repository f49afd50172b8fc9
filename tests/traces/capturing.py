"""Training on CPUs under PyTorch's profiler; a module of its own that spawned ranks can import."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

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


def _rank(rank, world, folder, width):
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=60),
    )
    # Buckets of one layer each, so that communication overlaps with the rest.
    model = DistributedDataParallel(_mlp(width), bucket_cap_mb=1)
    large = torch.ones(LARGE)
    path = Path(folder) / f"rank{rank}.json"
    _train(model, width, path, after=lambda: distributed.all_reduce(large))
    distributed.destroy_process_group()


def capture_ranks(folder, world=2, width=WIDTH):
    """Writes the traces of three steps of data-parallel ranks over gloo.

    After each step the ranks wait for a large all-reduce.
    """
    from torch import multiprocessing

    multiprocessing.spawn(_rank, (world, str(folder), width), nprocs=world)
