"""Parallelism of a step as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.workload.transformer._types import (
    ContextExchange,
    DataSharding,
    Offload,
    Recompute,
    RecomputeModule,
    Schedule,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dse.workload.transformer._types import Parallelism

_HELD = {
    Offload.ACTIVATIONS: "activations",
    Offload.OPTIMIZER: "optimizer state",
    Offload.ALL: "activations and optimizer state",
}


def format_parallelism(parallelism: Parallelism) -> str:
    """Names the degrees above one, the micro-batch, and what differs from the plain step."""
    return ", ".join((*_degrees(parallelism), *_layers(parallelism), *_replicas(parallelism)))


def _degrees(parallelism: Parallelism) -> Iterator[str]:
    degrees = (
        ("tensor", parallelism.tensor),
        ("pipeline", parallelism.pipeline),
        ("context", parallelism.context),
        ("data", parallelism.data),
        ("expert", parallelism.expert),
    )
    product = " × ".join(f"{name} {degree}" for name, degree in degrees if degree > 1)
    if product:
        yield product
    if parallelism.expert_shards != parallelism.tensor:
        shards = parallelism.expert_shards
        yield "whole experts" if shards == 1 else f"experts over {shards} ranks"
    if parallelism.expert_dispatch is not None:
        yield f"{parallelism.expert_dispatch} dispatch"
    if parallelism.expert_overlap:
        yield "hidden exchanges of experts"
    if parallelism.interleave > 1:
        yield f"{parallelism.interleave} virtual stages"
    if parallelism.schedule is not Schedule.ONE_F_ONE_B:
        yield parallelism.schedule.value.replace("_", " ")
    if parallelism.context_exchange is not ContextExchange.RING:
        yield f"{parallelism.context_exchange.value.replace('_', ' ')} of context"
    yield f"micro batch {parallelism.micro_batch_size}"


def _layers(parallelism: Parallelism) -> Iterator[str]:
    if parallelism.sequence_parallel:
        yield "sequence parallel"
    if parallelism.recompute is not Recompute.NONE:
        what = f"{parallelism.recompute.value} recomputation"
        if parallelism.recompute_modules:
            what += f" of {RecomputeModule.text(parallelism.recompute_modules)}"
        if parallelism.recompute_layers:
            what += f" in {parallelism.recompute_layers} layers a stage"
        yield what
    if parallelism.offload is not Offload.NONE:
        held = _HELD[parallelism.offload]
        if parallelism.offload_layers:
            held += f" of {parallelism.offload_layers} layers a stage"
        yield f"{held} in host memory"


def _replicas(parallelism: Parallelism) -> Iterator[str]:
    if parallelism.data_sharding is not DataSharding.NONE:
        within = f" within {parallelism.shards} ranks" if parallelism.sharding_degree else ""
        yield f"{parallelism.data_sharding.value}{within}"
    if not parallelism.reshard_after_forward:
        yield "no reshard after forward"
    if parallelism.no_sync:
        yield "no_sync"
