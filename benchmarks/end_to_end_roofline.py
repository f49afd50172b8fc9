"""A roofline of whole training steps: what remains of a performance model without its details.

Every kernel takes the longer of its arithmetic at peak rate and its bytes at peak bandwidth
(Williams et al., Roofline, 2009); bytes of collectives go over the slowest link they need at line
rate; everything runs one after the other on perfectly balanced ranks. No host time, no overlap, no
caches, no pipeline bubbles and no constant that was fitted to anything: the yardstick beside
which the errors of the full model stand.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from dse.model import OperatorKind, dense_operators, dense_parameter_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dse.machine import Cluster, Precision
    from dse.model import DlrmModel

#: Bytes of one looked-up index, and of one weight or gradient of a table.
_INDEX_BYTES = 8
_ROW_VALUE_BYTES = 4


@dataclass(frozen=True, slots=True)
class TransformerStep:
    """One training step of a decoder-only transformer.

    Attributes:
        layers: Transformer layers.
        hidden: Model width; the inner layer of the MLP is four times as wide.
        sequence: Tokens of a sample.
        vocabulary: Tokens known.
        global_batch: Samples of a step.
        micro_batch: Samples of one forward pass of one replica.
        tensor: Tensor-parallel ranks.
        pipeline: Pipeline stages.
        sharded: Whether parameters are gathered for each pass (FSDP) or replicated.
        recomputed: Whether the forward pass runs again before the backward pass.
    """

    layers: int
    hidden: int
    sequence: int
    vocabulary: int
    global_batch: int
    micro_batch: int
    tensor: int = 1
    pipeline: int = 1
    sharded: bool = False
    recomputed: bool = False


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


def transformer_roofline_s(step: TransformerStep, cluster: Cluster, precision: Precision) -> float:
    """Returns the seconds of one step of a transformer.

    Attention is fused: its arithmetic counts, its scores never reach memory.
    """
    replicas = cluster.world_size / (step.tensor * step.pipeline)
    passes = step.global_batch / replicas / step.micro_batch
    tokens, hidden = step.micro_batch * step.sequence, step.hidden
    layers = step.layers / step.pipeline
    value_bytes = precision.value_bytes
    forward_s = layers * sum(
        _product_s(cluster, precision, m, n, k) for m, n, k in _layer_products(step, tokens)
    )
    # Two layer norms, the activation (four times as wide) and two residuals, each in and out.
    streamed = (4 + 8 / step.tensor + 6) * tokens * hidden * value_bytes
    forward_s += layers * streamed / cluster.device.memory_bandwidth_bytes_per_s
    repeats = 3 + step.recomputed
    logits_s = _product_s(
        cluster, precision, tokens, step.vocabulary / (step.tensor * step.pipeline), hidden
    )
    pass_s = repeats * forward_s + 3 * logits_s
    activations = (repeats - 1) * 2 * layers * 2 * tokens * hidden * value_bytes
    pass_s += _exchange_s(cluster, step.tensor, activations)
    if step.pipeline > 1:
        pass_s += 2 * tokens * hidden * value_bytes / _link_rate(cluster, cluster.world_size)
    parameters = 12 * step.layers * hidden**2 + step.vocabulary * hidden
    owned = parameters / (step.tensor * step.pipeline)
    if step.sharded:
        pass_s += _exchange_s(cluster, cluster.world_size, 3 * value_bytes * owned)
        owned /= cluster.world_size
        return passes * pass_s + _adam_s(cluster, owned)
    reduced = 2 * value_bytes * owned if replicas > 1 else 0.0
    return (
        passes * pass_s
        + _exchange_s(cluster, cluster.world_size, reduced)
        + _adam_s(cluster, owned)
    )


def _layer_products(step: TransformerStep, tokens: float) -> Iterator[tuple[float, float, float]]:
    """Products of one layer's forward pass on one rank: attention, then the MLP."""
    hidden, own = step.hidden, step.hidden / step.tensor
    yield tokens, 3 * own, hidden
    yield tokens, step.sequence, own
    yield tokens, own, step.sequence
    yield tokens, hidden, own
    yield tokens, 4 * own, hidden
    yield tokens, hidden, 4 * own


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
