"""Metrics: figures of a configuration that objectives and constraints may name."""

from __future__ import annotations

from enum import StrEnum


class Metric(StrEnum):
    """Metrics by the names used in YAML, in `trials.csv` and in `--json`."""

    THROUGHPUT = "throughput_samples_per_s"
    ITERATION_TIME = "iteration_time_s"
    COST = "cost_usd_per_million_samples"
    PRICE = "price_usd_per_hour"
    MEMORY_HEADROOM = "memory_headroom_fraction"
    WORLD_SIZE = "world_size"
    GLOBAL_BATCH_SIZE = "global_batch_size"
    SPEEDUP = "speedup"
    TOKEN_THROUGHPUT = "throughput_tokens_per_s"
    UTILIZATION = "model_flops_utilization"

    @property
    def maximized_by_default(self) -> bool:
        """Whether more is better unless the search space says otherwise."""
        return self in (
            Metric.THROUGHPUT,
            Metric.MEMORY_HEADROOM,
            Metric.SPEEDUP,
            Metric.TOKEN_THROUGHPUT,
            Metric.UTILIZATION,
        )

    @property
    def known_before_evaluation(self) -> bool:
        """Whether the outer parameters alone decide it, so that it can be filtered early."""
        return self in (Metric.PRICE, Metric.WORLD_SIZE, Metric.GLOBAL_BATCH_SIZE)


#: Metrics of a step of which time, price and memory are predicted.
COMMON_METRICS = frozenset(
    set(Metric) - {Metric.SPEEDUP, Metric.TOKEN_THROUGHPUT, Metric.UTILIZATION}
)

#: Metrics that count samples, which traces do not say.
SAMPLE_METRICS = frozenset({Metric.THROUGHPUT, Metric.COST})
