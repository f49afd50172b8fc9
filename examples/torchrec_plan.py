"""Trains the tables of a model with TorchRec under a plan of `dse`, on random data.

    torchrun --nproc-per-node 2 examples/torchrec_plan.py plan.json --model dlrm_tiny

`plan.json` is a plan for as many ranks as are started, in either form that `dse` writes. GPUs are
used where there are any, else gloo and CPUs. docs/torchrec.md says how to install TorchRec.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel

import dse
from dse.sharding import read_plan, to_torchrec


class Tables(torch.nn.Module):
    """A model that is nothing but its tables, at the module path `bags`."""

    def __init__(self, bags: EmbeddingBagCollection) -> None:
        super().__init__()
        self.bags = bags

    def forward(self, indices: KeyedJaggedTensor) -> torch.Tensor:
        """Returns all pooled vectors side by side, of shape `(batch, columns)`."""
        return self.bags(indices).values()


def main() -> None:
    """Reads the plan, shards the tables, and times a few steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plan")
    parser.add_argument("--model", default="dlrm_tiny")
    parser.add_argument("--batch", type=int, default=256, help="samples of one rank")
    parser.add_argument("--steps", type=int, default=5)
    arguments = parser.parse_args()

    kind = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(kind, int(os.environ["LOCAL_RANK"])) if kind == "cuda" else kind
    dist.init_process_group("nccl" if kind == "cuda" else "gloo")

    model = dse.load_model(arguments.model)
    plan = to_torchrec(
        read_plan(arguments.plan, model.tables),
        model,
        devices_per_node=int(os.environ["LOCAL_WORLD_SIZE"]),
        device_kind=kind,
        module_path="bags",
    )
    if dist.get_rank() == 0:
        print(plan)  # noqa: T201
    features = {
        table.name: [f"{table.name}_{index}" for index in range(table.feature_count)]
        for table in model.tables
    }
    bags = EmbeddingBagCollection(
        device=torch.device("meta"),
        tables=[
            EmbeddingBagConfig(
                name=table.name,
                num_embeddings=table.rows,
                embedding_dim=table.dim,
                feature_names=features[table.name],
            )
            for table in model.tables
        ],
    )
    sharded = DistributedModelParallel(
        Tables(bags),
        device=torch.device(device),
        plan=plan,
        sharders=[EmbeddingBagCollectionSharder(fused_params={"learning_rate": 0.1})],
    )
    keys, lengths, values = [], [], []
    for table in model.tables:
        for name, pooling in zip(features[table.name], table.pooling_factors, strict=True):
            bag = max(1, round(pooling))
            keys.append(name)
            lengths.append(torch.full((arguments.batch,), bag))
            values.append(torch.randint(0, table.rows, (arguments.batch * bag,)))
    indices = KeyedJaggedTensor(keys, torch.cat(values), lengths=torch.cat(lengths)).to(
        torch.device(device)
    )
    for step in range(arguments.steps):
        dist.barrier()
        start = time.perf_counter()
        loss = sharded(indices).square().mean()
        loss.backward()
        dist.barrier()
        if dist.get_rank() == 0:
            elapsed_ms = 1e3 * (time.perf_counter() - start)
            print(f"step {step}: loss {loss.item():.6f}, {elapsed_ms:.1f} ms")  # noqa: T201
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
