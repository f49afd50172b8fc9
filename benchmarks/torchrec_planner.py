"""TorchRec's own planner on our tables: its plan in our terms, its time, its proposals.

Usage: python benchmarks/torchrec_planner.py [--model NAME] [--platform NAME] [--world-size N]

Needs TorchRec (docs/torchrec.md has the commands). The planner sees the tables, their pooling
factors and optimizer state, the batch of a rank, the memory of the devices and of their hosts, and
the bandwidths; nothing runs and no device is needed.
"""

from __future__ import annotations

import argparse
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
import logging
import time
from typing import TYPE_CHECKING, Any
import warnings

from dse.machine.platforms import load_platform
from dse.model import load_model
from dse.sharding import check_plan, from_torchrec
from dse.workload import predict_job
from dse.workload.dlrm import DlrmWorkload

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dse.model import EmbeddingTable, Optimizer
    from dse.sharding import ShardingPlan, ShardingType


@dataclass(frozen=True, slots=True)
class TorchRecRequest:
    """What TorchRec's planner has to place, and where.

    Attributes:
        tables: The tables.
        optimizer: Update rule of the tables.
        world_size: Ranks.
        devices_per_node: Ranks of a full node.
        global_batch_size: Samples of all ranks together.
        device_memory_bytes: Memory of one device (0 on CPUs).
        host_memory_bytes: Host memory of one rank.
        device_kind: `cuda` or `cpu`.
        allowed_types: Sharding types that may be used; all when empty.
        intra_node_bandwidth_bytes_per_s: Of one rank inside a node; TorchRec's own when None.
        inter_node_bandwidth_bytes_per_s: Of one rank between nodes; TorchRec's own when None.
        memory_bandwidth_bytes_per_s: Of one device; TorchRec's own when None.
    """

    tables: Sequence[EmbeddingTable]
    optimizer: Optimizer
    world_size: int
    devices_per_node: int
    global_batch_size: int
    device_memory_bytes: float
    host_memory_bytes: float
    device_kind: str = "cuda"
    allowed_types: frozenset[ShardingType] = frozenset()
    intra_node_bandwidth_bytes_per_s: float | None = None
    inter_node_bandwidth_bytes_per_s: float | None = None
    memory_bandwidth_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class TorchRecAnswer:
    """What TorchRec's planner found.

    Attributes:
        plan: Its plan in our terms.
        planning_time_s: Duration of its `plan` call.
        proposals: Proposals that it tried to place.
        placed: Proposals that fitted.
    """

    plan: ShardingPlan
    planning_time_s: float
    proposals: int
    placed: int


def plan_with_torchrec(request: TorchRecRequest) -> TorchRecAnswer:
    """Runs TorchRec's `EmbeddingShardingPlanner` with its default proposers.

    Raises:
        PlanError: Its plan has shards that cannot be predicted.
        torchrec.distributed.planner.types.PlannerError: It finds no plan that fits.
    """
    with _quiet():
        from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
        from torchrec.distributed.planner import EmbeddingShardingPlanner

        counts = _counting_stats()
        planner = EmbeddingShardingPlanner(
            topology=_topology(request),
            batch_size=max(1, request.global_batch_size // request.world_size),
            constraints=_constraints(request),
            stats=counts,
            debug=False,
        )
        module = embedding_module(request)
        start = time.perf_counter()
        made = planner.plan(module, [EmbeddingBagCollectionSharder()])
        planning_time_s = time.perf_counter() - start
    plan = from_torchrec(made, request.tables, world_size=request.world_size)
    checked = check_plan(plan, request.tables, request.world_size, request.devices_per_node)
    return TorchRecAnswer(checked, planning_time_s, counts.proposals, counts.placed)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the library's lines about every table out of the way."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def embedding_module(request: TorchRecRequest) -> Any:
    """Returns the tables as an `EmbeddingBagCollection` without memory, in a module `sparse`."""
    import torch
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
    from torchrec.modules.embedding_configs import DataType
    from torchrec.optim import RowWiseAdagrad
    from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

    bags = EmbeddingBagCollection(
        device=torch.device("meta"),
        tables=[
            EmbeddingBagConfig(
                name=table.name,
                num_embeddings=table.rows,
                embedding_dim=table.dim,
                feature_names=[f"{table.name}_{index}" for index in range(table.feature_count)],
                data_type=getattr(DataType, table.data_type.value.upper()),
            )
            for table in request.tables
        ],
    )
    rules = {
        "sgd": torch.optim.SGD,
        "rowwise_adagrad": RowWiseAdagrad,
        "adagrad": torch.optim.Adagrad,
        "adam": torch.optim.Adam,
    }
    # The planner counts the state of optimizers that are fused with the backward pass.
    apply_optimizer_in_backward(rules[request.optimizer.value], bags.parameters(), {"lr": 0.01})
    module = torch.nn.Module()
    module.sparse = bags
    return module


def _topology(request: TorchRecRequest) -> Any:
    from torchrec.distributed.planner import Topology

    bandwidths = {
        "intra_host_bw": request.intra_node_bandwidth_bytes_per_s,
        "inter_host_bw": request.inter_node_bandwidth_bytes_per_s,
        "hbm_mem_bw": request.memory_bandwidth_bytes_per_s,
    }
    return Topology(
        world_size=request.world_size,
        local_world_size=min(request.world_size, request.devices_per_node),
        compute_device=request.device_kind,
        hbm_cap=int(request.device_memory_bytes),
        ddr_cap=int(request.host_memory_bytes),
        # TorchRec counts bytes a millisecond.
        **{name: value / 1e3 for name, value in bandwidths.items() if value is not None},
    )


def _constraints(request: TorchRecRequest) -> dict[str, Any]:
    from torchrec.distributed.planner.types import ParameterConstraints

    types = [kind.value for kind in sorted(request.allowed_types)] or None
    return {
        table.name: ParameterConstraints(
            sharding_types=types, pooling_factors=list(table.pooling_factors)
        )
        for table in request.tables
    }


def _counting_stats() -> Any:
    from torchrec.distributed.planner.types import Stats

    class Counts(Stats):
        """Keeps the counts that the planner reports, in place of its tables of text."""

        proposals = 0
        placed = 0

        def log(self, *, num_proposals: int, num_plans: int, **_others: Any) -> None:
            self.proposals, self.placed = num_proposals, num_plans

    return Counts()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="dlrm_dcnv2")
    parser.add_argument("--platform", default="h100_sxm")
    parser.add_argument("--world-size", type=int, default=8)
    arguments = parser.parse_args()
    model, platform = load_model(arguments.model), load_platform(arguments.platform)
    cluster = platform.cluster(arguments.world_size)
    answer = plan_with_torchrec(
        TorchRecRequest(
            tables=model.tables,
            optimizer=model.sparse_optimizer,
            world_size=arguments.world_size,
            devices_per_node=platform.devices_per_node,
            global_batch_size=model.global_batch_size,
            device_memory_bytes=platform.device.memory_bytes,
            host_memory_bytes=128 * 2**30,
            memory_bandwidth_bytes_per_s=platform.device.memory_bandwidth_bytes_per_s,
        )
    )
    kinds = Counter(
        f"{table.sharding_type.value}/{table.compute_kernel.value}" for table in answer.plan.tables
    )
    parameters = {
        "world_size": arguments.world_size,
        "global_batch_size": model.global_batch_size,
    }
    job = DlrmWorkload(model).job(platform, parameters).with_plan(answer.plan)
    prediction = predict_job(job)
    print(f"{model.name}, {len(model.tables)} tables, {cluster.world_size} × {platform.name}")
    print(f"  planning time      {answer.planning_time_s:.2f} s")
    print(f"  proposals          {answer.proposals}, of which {answer.placed} fit")
    for kind, count in sorted(kinds.items()):
        print(f"  {kind:<30} {count} tables")
    print(f"  predicted here     {1e3 * prediction.iteration_time_s:.2f} ms an iteration", end="")
    print("" if prediction.feasible else f" ({prediction.infeasible_reason})")


if __name__ == "__main__":
    main()
