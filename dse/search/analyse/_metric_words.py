"""Metrics as sentences call them."""

from __future__ import annotations

from dse.workload import Metric

_WORDS = {
    Metric.THROUGHPUT: "throughput",
    Metric.ITERATION_TIME: "iteration time",
    Metric.COST: "cost per sample",
    Metric.PRICE: "price",
    Metric.MEMORY_HEADROOM: "memory left",
    Metric.WORLD_SIZE: "devices",
    Metric.GLOBAL_BATCH_SIZE: "batch",
    Metric.SPEEDUP: "speed-up",
    Metric.TOKEN_THROUGHPUT: "throughput in tokens",
    Metric.UTILIZATION: "MFU",
}


def metric_word(metric: Metric) -> str:
    """Returns a metric as a sentence calls it."""
    return _WORDS.get(metric, metric.value)
