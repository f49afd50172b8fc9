"""A roofline of whole training steps: what remains of a performance model without its details.

Every kernel takes the longer of its arithmetic at peak rate and its bytes at peak bandwidth
(Williams et al., Roofline, 2009); bytes of collectives go over the slowest link they need at line
rate; everything runs one after the other on perfectly balanced ranks. No host time, no overlap, no
caches, no pipeline bubbles and no constant that was fitted to anything: the yardstick beside
which the errors of the full model stand.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from dse.model import OperatorKind, dense_operators, dense_parameter_count
from dse.workload.transformer import DataSharding, Recompute

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dse.machine import Cluster, Precision
    from dse.model import DlrmModel
    from dse.workload.transformer import TransformerJob

#: Bytes of one looked-up index, and of one weight or gradient of a table.
_INDEX_BYTES = 8
_ROW_VALUE_BYTES = 4


def dlrm_roofline_s(
    model: DlrmModel, cluster: Cluster, global_batch: int, precision: Precision
) -> float:
    """Returns the seconds of one iteration of a recommendation model.

    Tables are spread evenly over the ranks and rows are read from memory every time; the dense
    part is data parallel.
    """
    ranks, batch = cluster.world_size, global_batch / cluster.world_size
    step = dense_operators(model, max(1, round(batch)), precision)
    total_s = 0.0
    for operator in chain(
        *(step.bottom_forward, step.interaction_forward, step.top_forward),
        *(step.top_backward, step.interaction_backward, step.bottom_backward, step.optimizer),
    ):
        size = (operator.m, operator.n, operator.k)
        if operator.kind in (OperatorKind.GEMM, OperatorKind.BATCHED_GEMM):
            total_s += operator.batch * _product_s(cluster, precision, *size)
        else:
            total_s += operator.traffic_bytes / cluster.device.memory_bandwidth_bytes_per_s
    # Forward: indices, rows, pooled vectors. Backward: gradients, rows read and written.
    pooled = batch * sum(table.feature_count * table.dim for table in model.tables)
    looked_up = batch * sum(table.lookups_per_sample * table.dim for table in model.tables)
    indices = batch * sum(table.lookups_per_sample for table in model.tables)
    traffic = _ROW_VALUE_BYTES * (3 * looked_up + 2 * pooled) + 2 * _INDEX_BYTES * indices
    total_s += traffic / cluster.device.memory_bandwidth_bytes_per_s
    exchanged = 2 * precision.value_bytes * pooled + _INDEX_BYTES * indices
    reduced = 2 * 4 * dense_parameter_count(model)
    return total_s + _exchange_s(cluster, ranks, exchanged + reduced)


def transformer_roofline_s(job: TransformerJob) -> float:
    """Returns the seconds of one step of a transformer.

    Attention is fused: its arithmetic counts, its scores never reach memory.
    """
    model, spread, cluster = job.model, job.parallelism, job.cluster
    precision, value_bytes = job.precision, job.precision.outside_products.value_bytes
    tokens, hidden = spread.micro_batch_size * model.sequence_length / spread.context, model.hidden
    layers = len(model.layer_kinds) / spread.pipeline
    forward_s = sent = experts = 0.0
    for kind, alike in enumerate(job.layer_jobs):
        count, layer = model.layer_kinds.count(kind) / spread.pipeline, alike.model
        forward_s += count * _layer_s(alike, tokens)
        if layer.experts is not None:
            sent += 2 * 2 * count * tokens * layer.experts.active * hidden * value_bytes
            experts += count * spread.pipeline * layer.layer_expert_parameters
    repeats = 3 + (spread.recompute is Recompute.FULL)
    logits_s = _product_s(
        cluster, precision, tokens, model.vocab / (spread.tensor * spread.pipeline), hidden
    )
    pass_s = repeats * forward_s + 3 * logits_s
    activations = (repeats - 1) * 2 * layers * 2 * tokens * hidden * value_bytes
    pass_s += _exchange_s(cluster, spread.tensor, activations)
    pass_s += _exchange_s(cluster, spread.tensor * spread.expert, sent)
    if spread.pipeline > 1:
        pass_s += 2 * tokens * hidden * value_bytes / _link_rate(cluster, cluster.world_size)
    owned = model.parameter_count - experts + experts / spread.expert
    owned /= spread.tensor * spread.pipeline
    if spread.data_sharding is DataSharding.PARAMETERS:
        pass_s += _exchange_s(cluster, cluster.world_size, 3 * value_bytes * owned)
        owned /= spread.replicas
        return job.micro_batches * pass_s + _adam_s(cluster, owned)
    reduced = 2 * value_bytes * owned if spread.replicas > 1 else 0.0
    total_s = job.micro_batches * pass_s + _exchange_s(cluster, cluster.world_size, reduced)
    return total_s + _adam_s(cluster, owned)


def _layer_s(job: TransformerJob, tokens: float) -> float:
    """Forward pass of a layer of a job of which all layers are alike, on one rank."""
    model, cluster = job.model, job.cluster
    products = _layer_products(job, tokens)
    products_s = sum(_product_s(cluster, job.precision, m, n, k) for m, n, k in products)
    # Two layer norms, the activation and two residuals, each in and out.
    visited = 0 if model.experts is None else model.experts.active * model.experts.ffn_hidden
    inner = 2 * (model.ffn_hidden + visited) / job.parallelism.tensor
    streamed = (10 * model.hidden + inner) * tokens * job.precision.outside_products.value_bytes
    return products_s + streamed / cluster.device.memory_bandwidth_bytes_per_s


def _layer_products(job: TransformerJob, tokens: float) -> Iterator[tuple[float, float, float]]:
    """Products of one layer's forward pass on one rank: attention, the MLP, and the experts."""
    model, tensor = job.model, job.parallelism.tensor
    hidden, own = model.hidden, model.attention_width / tensor
    yield tokens, model.qkv_width / tensor, hidden
    yield tokens, model.sequence_length, own
    yield tokens, own, model.sequence_length
    yield tokens, hidden, own
    yield tokens, model.ffn_width / tensor, hidden
    yield tokens, hidden, model.ffn_hidden / tensor
    if model.experts is not None:
        rows, inner = tokens * model.experts.active, model.experts.ffn_hidden / tensor
        yield rows, (2 if model.gated_ffn else 1) * inner, hidden
        yield rows, hidden, inner


def _product_s(cluster: Cluster, precision: Precision, m: float, n: float, k: float) -> float:
    arithmetic_s = 2 * m * n * k / cluster.device.peak.of(precision)
    traffic = precision.value_bytes * (m * n + n * k + m * k)
    return max(arithmetic_s, traffic / cluster.device.memory_bandwidth_bytes_per_s)


def _adam_s(cluster: Cluster, parameters: float) -> float:
    """Weights and two moments read and written, gradients read, four bytes each."""
    return 7 * 4 * parameters / cluster.device.memory_bandwidth_bytes_per_s


def _exchange_s(cluster: Cluster, ranks: int, size_bytes: float) -> float:
    """Bytes of one rank, of which its own share stays at home."""
    return size_bytes * (ranks - 1) / ranks / _link_rate(cluster, ranks)


def _link_rate(cluster: Cluster, ranks: int) -> float:
    if ranks <= cluster.devices_per_node:
        return cluster.link.bandwidth_bytes_per_s
    return cluster.network.node_bandwidth_bytes_per_s / cluster.local_size
