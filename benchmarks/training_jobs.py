"""Small training jobs whose captures answer what-ifs with the truth: an MLP and a transformer.

Usage: python benchmarks/training_jobs.py --job JSON --traces FOLDER

One process is one rank; `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT` say which.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from itertools import pairwise
import json
import os
import sys

#: Inputs of the MLP and tokens of a sequence; neither is a size that the jobs change.
FEATURES = 320
TOKENS = 48
HEADS = 4
LAYERS = 2


@dataclass(frozen=True, slots=True)
class JobOptions:
    """One job.

    Attributes:
        model: `mlp` or `transformer`.
        batch: Samples of one rank.
        width: Width of hidden layers, or of the transformer's tokens.
        precision: `fp32` or `bf16`.
        optimizer: `adam` (a kernel for each tensor and operation) or `fused_adam`.
        threads: Threads of one rank.
        ranks: Ranks of DistributedDataParallel; 1 trains without it.
        steps: Captured iterations.
    """

    model: str
    batch: int
    width: int
    precision: str = "fp32"
    optimizer: str = "adam"
    threads: int = 1
    ranks: int = 1
    steps: int = 5


def train(options: JobOptions, traces: str) -> None:
    """Trains on random data and captures."""
    import torch
    from torch import nn

    import dse

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    width = options.width
    if options.model == "mlp":
        sizes = [FEATURES, width, width, width]
        layers: list[nn.Module] = []
        for before, after in pairwise(sizes):
            layers += [nn.Linear(before, after), nn.ReLU()]
        model: nn.Module = nn.Sequential(*layers, nn.Linear(width, 16))
        inputs = torch.randn(options.batch, FEATURES)
        labels = torch.randn(options.batch, 16)
    else:
        layer = nn.TransformerEncoderLayer(
            width, HEADS, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        model = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        inputs = torch.randn(options.batch, TOKENS, width)
        labels = torch.randn(options.batch, TOKENS, width)
    dtype = torch.bfloat16 if options.precision == "bf16" else torch.float32
    model, inputs, labels = model.to(dtype), inputs.to(dtype), labels.to(dtype)
    if options.ranks > 1:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    fused = options.optimizer == "fused_adam"
    optimizer = torch.optim.Adam(model.parameters(), foreach=False, fused=fused or None)
    loss_of = nn.MSELoss()
    recording = dse.capture(
        traces, steps=options.steps, warm_up=3, skip=6, execution_trace=False, overwrite=True
    )
    with recording as capture:
        for _ in capture.steps(range(options.steps + 12)):
            optimizer.zero_grad()
            loss_of(model(inputs), labels).backward()
            optimizer.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", required=True)
    parser.add_argument("--traces", required=True)
    given = parser.parse_args()
    train(JobOptions(**json.loads(given.job)), given.traces)
    # gloo's threads may abort while the interpreter shuts down.
    sys.stdout.flush()
    os._exit(0)
