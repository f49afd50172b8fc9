"""Sizes of operators and messages, as time lines show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.model import OperatorKind
from dse.workload.dlrm.explain._resources import all_reduce_buckets, operators_by_name
from dse.workload.dlrm.iteration._operators import dense_buckets
from dse.workload.dlrm.iteration._weight_sync import synced_bytes
from dse.workload.dlrm.scoring._features import (
    HOST_PREFETCHED_COLUMN,
    ExchangeGroup,
    GroupFeature,
    RankFeature,
    group_column,
    has_host_columns,
    rank_column,
)
from dse.workload.dlrm.scoring._slots import CODEC_SLOTS, GRADIENT_SLOTS, Slot

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dse.model import Operator
    from dse.sharding import ShardingPlan
    from dse.workload._explain import Details
    from dse.workload.dlrm._problem import DlrmProblem
    from dse.workload.dlrm.scoring._scorer import PlanScorer
    from dse.workload.dlrm.scoring._slots import LayoutGraph

_EXCHANGES = {
    Slot.POOLED_EXCHANGE: ExchangeGroup.POOLED,
    Slot.ROW_EXCHANGE: ExchangeGroup.ROW,
    Slot.NODE_EXCHANGE_INSIDE: ExchangeGroup.NODE,
    Slot.NODE_EXCHANGE_BETWEEN: ExchangeGroup.NODE,
}
_REDUCED = (Slot.ROW_EXCHANGE, Slot.NODE_EXCHANGE_INSIDE)
_OUTPUTS = {gradients: outputs for outputs, gradients in GRADIENT_SLOTS.items()}
_UPDATES = range(Slot.POOLED_UPDATE, Slot.INPUT_EXCHANGE)
_PARAMETER_BYTES = 4


def task_sizes(scorer: PlanScorer, plan: ShardingPlan, layout: LayoutGraph) -> tuple[Details, ...]:
    """Returns the sizes of each task's operator or message, as a time line shows them.

    Args:
        scorer: The performance model of the problem.
        plan: A plan that has been checked against model and cluster.
        layout: Its graph.
    """
    graph, problem = layout.graph, scorer.problem
    operators = operators_by_name(problem)
    bucket, buckets = all_reduce_buckets(layout).tolist(), dense_buckets(problem)
    features = scorer.features(plan)[:, :, 0]
    slots = {
        task: (Slot(kind), rank)
        for task, kind, rank in zip(
            layout.slot_task.tolist(),
            layout.slot_kind.tolist(),
            layout.slot_rank.tolist(),
            strict=True,
        )
    }
    result: list[Details] = []
    for task, name in enumerate(graph.names):
        sizes: list[tuple[str, str | float]] = []
        if task in slots:
            sizes = _slot_sizes(problem, features[:, slots[task][1]], slots[task][0])
        elif 0 <= bucket[task] < len(buckets):
            sizes = [("message_bytes", float(buckets[bucket[task]][0]))]
        elif name in operators:
            sizes = _operator_sizes(operators[name])
        result.append(tuple(sizes))
    return tuple(result)


def _operator_sizes(operator: Operator) -> list[tuple[str, str | float]]:
    if operator.kind.is_product:
        sizes = [(size, float(getattr(operator, size))) for size in ("m", "n", "k")]
        return [*sizes, *([("batch", float(operator.batch))] if operator.batch > 1 else [])]
    if operator.kind is OperatorKind.SEQUENCE_ATTENTION:
        return list(operator.sizes)
    return [("traffic_bytes", operator.traffic_bytes)]


def _slot_sizes(
    problem: DlrmProblem, features: NDArray[np.float64], slot: Slot
) -> list[tuple[str, str | float]]:
    """Bytes of one rank's part; of an exchange those that it holds of the whole batch."""

    def of(group: ExchangeGroup, feature: GroupFeature) -> float:
        return float(features[group_column(group, feature)])

    if slot is Slot.INPUT_EXCHANGE:
        return [("held_bytes", float(features[rank_column(RankFeature.INPUT)]))]
    if slot is Slot.WEIGHT_SYNC:
        return [("message_bytes", float(synced_bytes(features)))]
    if slot in CODEC_SLOTS:
        return []
    outputs = _OUTPUTS.get(slot, slot)
    if outputs in _EXCHANGES:
        group, wire = _EXCHANGES[outputs], problem.software.wire
        formats = wire.reduced if outputs in _REDUCED else wire.whole
        held = problem.global_batch_size * formats[slot in _OUTPUTS].value_bytes
        return [("held_bytes", held * of(group, GroupFeature.EXCHANGED))]
    if slot in (Slot.REPLICATED_ALL_REDUCE, Slot.REPLICATED_UPDATE):
        values = of(ExchangeGroup.REPLICATED, GroupFeature.EXCHANGED)
        on_wire = slot is Slot.REPLICATED_ALL_REDUCE
        value_bytes = problem.software.replicated_gradient_bytes if on_wire else _PARAMETER_BYTES
        return [("gradient_bytes", value_bytes * values)]
    if slot is Slot.ROW_PREFETCH:
        # Without tables in host memory there is no such column.
        wide = has_host_columns(features)
        return [("link_bytes", float(features[HOST_PREFETCHED_COLUMN]) if wide else 0.0)]
    update = slot in _UPDATES
    group = ExchangeGroup(slot - (Slot.POOLED_UPDATE if update else Slot.POOLED_LOOKUP))
    memory = GroupFeature.BACKWARD_MEMORY if update else GroupFeature.FORWARD_MEMORY
    cache = GroupFeature.BACKWARD_CACHE if update else GroupFeature.FORWARD_CACHE
    return [
        ("memory_bytes", round(of(group, memory))),
        ("cache_bytes", round(of(group, cache))),
    ]
