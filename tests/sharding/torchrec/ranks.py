"""Real ranks under a plan file, for `test_real.py`.

They shard the same small tables with TorchRec (`DistributedModelParallel`), do a step
forward and backward on batches of their own, and compare outputs and updated weights with the
collection that is not sharded.
"""

from __future__ import annotations

import copy
import os
from typing import TYPE_CHECKING, Any

from fbgemm_gpu.split_embedding_configs import EmbOptimType
import torch
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel

from dse.sharding import read_plan, to_torchrec
from tests.sharding.torchrec.tables import DIM, FEATURES, MODULE, ROWS, TABLES

if TYPE_CHECKING:
    from dse.launch import RankContext, Worker

BATCH = 8
RATE = 0.5


class Model(torch.nn.Module):
    """The tables below a module path of two parts."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.sparse = torch.nn.Module()
        self.sparse.bags = EmbeddingBagCollection(
            device=torch.device("cpu"),
            tables=[
                EmbeddingBagConfig(
                    name=table.name,
                    embedding_dim=DIM,
                    num_embeddings=table.rows,
                    feature_names=list(FEATURES[table.name]),
                )
                for table in TABLES
            ],
        )

    def forward(self, indices: KeyedJaggedTensor) -> torch.Tensor:
        # The order of the pooled vectors depends on the plan; the names do not.
        pooled = self.sparse.bags(indices).to_dict()
        return torch.cat([pooled[name] for name in sorted(pooled)], dim=1)


def batch_of(rank: int) -> tuple[KeyedJaggedTensor, torch.Tensor]:
    """Indices of one rank, and the weights of its loss."""
    generator = torch.Generator().manual_seed(100 + rank)
    keys = [name for table in TABLES for name in FEATURES[table.name]]
    rows = [ROWS[table.name] for table in TABLES for _ in FEATURES[table.name]]
    lengths = torch.randint(0, 4, (len(keys), BATCH), generator=generator)
    values = [
        torch.randint(0, count, (int(row.sum()),), generator=generator)
        for count, row in zip(rows, lengths, strict=True)
    ]
    weights = torch.rand((BATCH, DIM * len(keys)), generator=generator)
    return KeyedJaggedTensor(keys, torch.cat(values), lengths=lengths.flatten()), weights


def blocks(value: Any) -> list[tuple[torch.Tensor, tuple[slice, slice]]]:
    """Local shards of a parameter and where they sit in the whole."""
    if not hasattr(value, "local_shards"):
        return [(value, (slice(None), slice(None)))]
    found = []
    for shard in value.local_shards():
        (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
        found.append((shard.tensor, (slice(row, row + rows), slice(column, column + columns))))
    return found


def step(rank: int, world_size: int, devices_per_node: int, path: str) -> dict[str, float]:
    whole = Model()
    plan = to_torchrec(
        read_plan(path, TABLES),
        TABLES,
        devices_per_node=devices_per_node,
        device_kind="cpu",
        module_path=MODULE,
    )
    sharder = EmbeddingBagCollectionSharder(
        fused_params={"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": RATE}
    )
    sharded = DistributedModelParallel(
        copy.deepcopy(whole), device=torch.device("cpu"), plan=plan, sharders=[sharder]
    )
    start = whole.state_dict()
    with torch.no_grad():
        for name, value in sharded.state_dict().items():
            for tensor, place in blocks(value):
                tensor.copy_(start[name][place])
    indices, weights = batch_of(rank)
    output = sharded(indices)
    output_error = float((output - whole(indices)).abs().max())
    (output * weights).sum().backward()
    with torch.no_grad():
        for parameter in sharded.parameters():
            if parameter.grad is not None:
                parameter -= RATE * parameter.grad
    # TorchRec averages gradients over ranks.
    for other in range(world_size):
        their_indices, their_weights = batch_of(other)
        ((whole(their_indices) * their_weights).sum() / world_size).backward()
    with torch.no_grad():
        moved = max(float(weight.grad.abs().max()) for weight in whole.parameters())
        for parameter in whole.parameters():
            parameter -= RATE * parameter.grad
    wanted = whole.state_dict()
    values = 0
    weight_error = 0.0
    for name, value in sharded.state_dict().items():
        for tensor, place in blocks(value):
            values += tensor.numel()
            if tensor.numel():
                difference = (tensor - wanted[name][place]).abs().max()
                weight_error = max(weight_error, float(difference))
    return {
        "output_error": output_error,
        "weight_error": weight_error,
        "largest_gradient": moved,
        "values": values,
    }


def under_plans(devices_per_node: int, context: RankContext) -> Worker:
    """Does a step under the plan of a file; the reply is the largest differences."""
    os.environ["LOCAL_WORLD_SIZE"] = str(devices_per_node)
    os.environ["LOCAL_RANK"] = str(context.rank % devices_per_node)
    return lambda path: step(context.rank, context.world_size, devices_per_node, path)
