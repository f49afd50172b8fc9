"""Checks of a configuration before anything is computed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dse.errors import ConfigError
from dse.workload.transformer._types import ContextExchange, DataSharding, Schedule
from dse.workload.transformer.memory._recompute import check_recomputation
from dse.workload.transformer.step._schedule import layers_by_chunk

if TYPE_CHECKING:
    from dse.machine import Cluster
    from dse.model import TransformerModel
    from dse.workload.transformer._types import Parallelism


#: Passes of micro-batches through the chunks of all stages; the graph has tasks for each.
_MOST_PASSES = 1_000_000


def check_parallelism(
    model: TransformerModel,
    cluster: Cluster,
    global_batch_size: int,
    parallelism: Parallelism,
    *,
    balanced: bool = False,
) -> None:
    """Checks that a model can be spread over a cluster in a given way.

    Args:
        model: What is trained.
        cluster: Where.
        global_batch_size: Samples of one iteration over all ranks.
        parallelism: How it is spread.
        balanced: Stages share the arithmetic, so that any number of layers can be divided.

    Raises:
        ConfigError: A degree does not divide what it has to, the degrees do not multiply to the
            ranks of the cluster, or two choices exclude each other. Says value, limit and what to
            do.
    """
    _check_degrees(cluster, parallelism)
    _check_model(model, cluster.world_size, parallelism, balanced=balanced)
    _check_sharding(parallelism)
    check_recomputation(model, parallelism)
    _check_schedule(global_batch_size, parallelism)


def _check_degrees(cluster: Cluster, parallelism: Parallelism) -> None:
    for name in (
        "tensor",
        "pipeline",
        "data",
        "context",
        "expert",
        "interleave",
        "micro_batch_size",
    ):
        if getattr(parallelism, name) < 1:
            raise ConfigError(f"{name} {getattr(parallelism, name)}: expected at least 1")
    if parallelism.expert_shards < 1:
        raise ConfigError(f"expert_tensor {parallelism.expert_shards}: expected at least 1")
    if parallelism.world_size != cluster.world_size:
        raise ConfigError(
            f"tensor {parallelism.tensor} × pipeline {parallelism.pipeline} × context "
            f"{parallelism.context} × data {parallelism.data} = {parallelism.world_size} ranks, "
            f"but the cluster has {cluster.world_size}; change one of the degrees or the ranks"
        )
    if parallelism.sequence_parallel and parallelism.tensor == 1:
        raise ConfigError(
            "sequence parallelism shares the work of tensor-parallel ranks; use tensor > 1 or "
            "turn it off"
        )


def _check_sharding(parallelism: Parallelism) -> None:
    sharding, degree = parallelism.data_sharding, parallelism.sharding_degree
    if not parallelism.reshard_after_forward and sharding is not DataSharding.PARAMETERS:
        raise ConfigError(
            f"reshard_after_forward false with data sharding {sharding}: only "
            f"{DataSharding.PARAMETERS} gathers parameters; leave it out"
        )
    if parallelism.no_sync and not sharding.shards_gradients:
        raise ConfigError(
            f"no_sync with data sharding {sharding}: gradients are reduced once an iteration "
            f"anyway; leave it out, or use {DataSharding.GRADIENTS} or {DataSharding.PARAMETERS}"
        )
    if degree is None:
        return
    if sharding is DataSharding.NONE:
        raise ConfigError(
            f"sharding degree {degree} with data sharding {sharding}: nothing is sharded; leave "
            "it out"
        )
    replicas, experts = parallelism.replicas, parallelism.expert_ranks
    tensor = parallelism.tensor
    if degree < 1 or replicas % degree or degree * tensor % experts:
        fits = [
            value
            for value in range(1, replicas + 1)
            if replicas % value == 0 and value * tensor % experts == 0
        ]
        works = max((value for value in fits if value <= degree), default=min(fits))
        raise ConfigError(
            f"sharding degree {degree} has to divide the {replicas} ranks of data and context "
            f"parallelism, and {degree} × tensor {tensor} has to be a multiple of the {experts} "
            f"ranks that share the experts; {works} does"
        )


def _check_model(
    model: TransformerModel, world_size: int, parallelism: Parallelism, *, balanced: bool
) -> None:
    divisors = (
        ("tensor", parallelism.tensor, "attention heads", model.heads),
        *(
            ("tensor", parallelism.tensor, "feed-forward columns", one.ffn_hidden)
            for one in model.layer_models
        ),
        (
            "context × sequence-parallel",
            parallelism.context * parallelism.sequence_share,
            "tokens of a sample",
            model.sequence_length,
        ),
    )
    for name, degree, what, count in divisors:
        if count % degree:
            below = next(
                value
                for value in range(degree, 0, -1)
                # The value has to pass the other checks too.
                if count % value == 0 and world_size % value == 0
            )
            raise ConfigError(
                f"{name} {degree} does not divide the {count} {what} of {model.name}; {below} does"
            )
    if parallelism.tensor % model.kv_heads and model.kv_heads % parallelism.tensor:
        works = math.gcd(parallelism.tensor, model.kv_heads)
        raise ConfigError(
            f"tensor {parallelism.tensor} neither divides the {model.kv_heads} heads of keys and "
            f"values of {model.name} nor is a multiple of them; {works} does"
        )
    if not (balanced and parallelism.interleave == 1 and parallelism.pipeline <= model.layers):
        _check_chunks(model, world_size, parallelism)
    _check_experts(model, parallelism)
    _check_exchange(model, world_size, parallelism)


def _check_exchange(model: TransformerModel, world_size: int, parallelism: Parallelism) -> None:
    exchange, context = parallelism.context_exchange, parallelism.context
    if context == 1:
        if exchange is not ContextExchange.RING:
            raise ConfigError(
                f"context exchange {exchange} with one context-parallel rank: same as "
                f"{ContextExchange.RING}; use context > 1"
            )
        return
    tensor = parallelism.tensor
    heads = math.gcd(model.heads // tensor, model.key_heads(tensor))
    whole_parts = not model.sequence_length % (2 * context)
    if exchange is ContextExchange.ULYSSES and heads % context:
        other = f", or use {ContextExchange.RING}" if whole_parts else ""
        raise ConfigError(
            f"context {context} with {exchange} does not divide the {heads} heads of keys and "
            f"values that tensor {tensor} leaves a rank of {model.name}; "
            f"{math.gcd(heads, context)} does{other}"
        )
    if exchange is not ContextExchange.ULYSSES and not whole_parts:
        other = "" if heads % context else f", or {ContextExchange.ULYSSES}"
        works = next(
            value
            for value in range(context, 0, -1)
            # One rank has the whole sequence, whatever its length.
            if value == 1
            or not (
                model.sequence_length % (2 * value)
                or model.sequence_length % (value * parallelism.sequence_share)
                or world_size % value
            )
        )
        # With one rank there is no exchange to choose.
        chosen = works == 1 and exchange is not ContextExchange.RING
        kept = f" and {ContextExchange.RING}" if chosen else ""
        raise ConfigError(
            f"context {context} with {exchange} cuts a sequence into {2 * context} equal parts, "
            f"two for each rank, but {2 * context} does not divide the {model.sequence_length} "
            f"tokens of a sample of {model.name}; use context {works}{kept}{other}"
        )


def _check_chunks(model: TransformerModel, world_size: int, parallelism: Parallelism) -> None:
    layers, stages, interleave = model.layers, parallelism.pipeline, parallelism.interleave

    def possible(pipeline: int, chunks: int) -> bool:
        return bool(layers_by_chunk(layers, pipeline, chunks, model.mtp_modules))

    if possible(stages, interleave):
        return
    smaller = [stages * fewer for fewer in range(interleave - 1, 0, -1)]
    works = [value for value in smaller if possible(stages, value // stages)]
    if not works:
        works = [
            value
            for value in range(stages, 0, -1)
            if world_size % value == 0 and possible(value, 1)
        ]
    raise ConfigError(
        f"pipeline × interleave {stages * interleave} does not divide the {layers} layers of "
        f"{model.name}, not even with embedding and loss counted as layers, and would leave the "
        f"last chunk without any; {works[0]} does"
    )


def _check_experts(model: TransformerModel, parallelism: Parallelism) -> None:
    degree, shards = parallelism.expert, parallelism.expert_tensor
    if model.experts is None:
        for name, value in (
            ("expert", None if degree == 1 else degree),
            ("expert_tensor", shards),
            ("expert_dispatch", parallelism.expert_dispatch),
            ("expert_overlap", parallelism.expert_overlap),
        ):
            if value is not None:
                rest = "use expert 1" if name == "expert" else "leave it out"
                raise ConfigError(f"{name} {value}: {model.name} has no experts; {rest}")
        return
    tensor = parallelism.tensor
    own = shards is not None and shards != tensor
    # With whole sequences on all tensor-parallel ranks, their experts would do the same.
    if own and tensor > 1 and not parallelism.sequence_parallel:
        raise ConfigError(
            f"expert_tensor {shards} with tensor {tensor}: ranks need their own tokens; use "
            "sequence parallelism, or the same degree"
        )
    name = "tensor" if shards is None else "expert_tensor"
    columns = model.experts.ffn_hidden
    _check_divides(name, parallelism.expert_shards, "columns of an expert", columns)
    places = tensor * parallelism.replicas
    _check_divides("expert_tensor", parallelism.expert_shards, "ranks of a pipeline stage", places)
    replicas = places // parallelism.expert_shards
    if model.experts.count % degree or replicas % degree:
        works = next(
            value
            for value in range(degree, 0, -1)
            if model.experts.count % value == 0 and replicas % value == 0
        )
        whole = parallelism.expert_shards > 1 and not places % degree
        other = ", or `expert_tensor` 1" if whole and not model.experts.count % degree else ""
        raise ConfigError(
            f"expert {degree} has to divide the {model.experts.count} experts of {model.name} and "
            f"the {replicas} ranks of a pipeline stage with different experts; {works} does{other}"
        )


def _check_divides(name: str, degree: int, what: str, count: int) -> None:
    if count % degree:
        works = next(value for value in range(degree, 0, -1) if count % value == 0)
        raise ConfigError(f"{name} {degree} does not divide the {count} {what}; {works} does")


def _check_schedule(global_batch_size: int, parallelism: Parallelism) -> None:
    step = parallelism.data * parallelism.micro_batch_size
    if global_batch_size < step or global_batch_size % step:
        below = global_batch_size // step * step
        choice = f"{below} or {below + step}" if below else f"{step}"
        raise ConfigError(
            f"global batch size {global_batch_size} is no multiple of data {parallelism.data} × "
            f"micro batch {parallelism.micro_batch_size}; use {choice}"
        )
    passes = global_batch_size // step * parallelism.pipeline * parallelism.interleave
    if passes > _MOST_PASSES:
        raise ConfigError(
            f"{passes} passes of micro-batches through the stages, more than the limit of "
            f"{_MOST_PASSES}; use larger micro-batches or a smaller global batch"
        )
    schedule = parallelism.schedule
    if schedule is not Schedule.ONE_F_ONE_B and parallelism.pipeline == 1:
        raise ConfigError(
            f"schedule {schedule} with one pipeline stage: same as {Schedule.ONE_F_ONE_B}; use "
            "pipeline > 1"
        )
    if parallelism.interleave == 1:
        return
    if schedule is Schedule.GPIPE:
        raise ConfigError(
            f"schedule {schedule} with interleave {parallelism.interleave}: it takes all "
            f"micro-batches through one chunk; use interleave 1 or {Schedule.ONE_F_ONE_B}"
        )
    if parallelism.pipeline == 1:
        raise ConfigError(
            f"interleave {parallelism.interleave} needs pipeline stages; use pipeline > 1 or "
            "interleave 1"
        )
    micro_batches = global_batch_size // step
    if micro_batches % parallelism.pipeline:
        raise ConfigError(
            f"the interleaved schedule takes micro-batches in rounds of {parallelism.pipeline}, "
            f"but there are {micro_batches}; change batch or micro batch, or use interleave 1"
        )
