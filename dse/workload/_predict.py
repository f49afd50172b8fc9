"""Prediction of a job, for every kind of workload."""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import TYPE_CHECKING

import numpy as np

from dse.errors import ConfigError
from dse.workload._prediction import Prediction, totals_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.machine import Cluster, DeviceSpec, Quote
    from dse.workload._job import Job
    from dse.workload._prediction import MemoryAccount

_GIB = 2**30


def predict_job(job: Job, quote: Quote | None = None) -> Prediction:
    """Predicts a job.

    Args:
        job: What is trained, where and how.
        quote: Price of the whole cluster, or None if it is not known.

    Raises:
        ConfigError: The job is impossible. One that only does not fit the memory is predicted and
            marked as not feasible.
    """
    job.check()
    step = job.simulated()
    seconds = step.time_s
    samples_s, memory = job.sample_times_s(), job.memory()
    # What the machines are matters to workloads of which the memory is known.
    cluster = job.cluster if memory else None
    low_s = high_s = math.nan
    if len(samples_s):
        low_s, high_s = _ends(samples_s)
        low_s, high_s = min(low_s, seconds), max(high_s, seconds)
    reason = ""
    if cluster is not None:
        reason = memory_reason(job, memory, cluster.device)
        reason = reason or _hostmemory_reason(memory, job.represented or cluster)
    throughput = job.samples_per_iteration / seconds
    cost = None
    if quote is not None and not math.isnan(throughput):
        cost = quote.cost_usd_per_million(throughput)
    return Prediction(
        iteration_time_s=seconds,
        iteration_time_p5_s=low_s,
        iteration_time_p95_s=high_s,
        throughput_samples_per_s=throughput,
        price_usd_per_hour=None if quote is None else quote.usd_per_hour,
        cost_usd_per_million_samples=cost,
        breakdown=step.breakdown,
        memory=memory,
        usable_memory_bytes=cluster.device.usable_memory_bytes if cluster else 0.0,
        feasible=not reason,
        infeasible_reason=reason,
        metrics=job.metrics(seconds),
        effects=job.effects(),
        notes=job.notes(),
        program=job.program,
        bound_by=step.bound_by,
        bound_share=step.bound_share,
        network=cluster.network.name if cluster and cluster.domain_count > 1 else "",
        rented="" if quote is None else quote.text,
    )


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """Two predictions under the same errors of the models.

    Attributes:
        ratio: Throughput of the second over that of the first, as expected.
        ratio_p5: Lower end of its 90 % interval over paired samples.
        ratio_p95: Upper end.
        faster_share: Share of the samples in which the second has the higher throughput.
        tie: Whether the interval contains 1, so that the model cannot distinguish the two.
    """

    ratio: float
    ratio_p5: float
    ratio_p95: float
    faster_share: float
    tie: bool


def compare_jobs(first: Job, second: Job) -> PairedComparison:
    """Compares the throughput of two jobs.

    Errors that both share, such as a model that is wrong about all lookups alike, move both and
    do not count (see :meth:`Iteration.sample_times_s`).

    Args:
        first: What is trained, where and how.
        second: The same for the other.

    Raises:
        ConfigError: A job is impossible, or nothing says how much its time may be off.
    """
    times: list[float] = []
    samples: list[NDArray[np.float64]] = []
    for job in (first, second):
        job.check()
        times.append(job.simulated()[0] / job.samples_per_iteration)
        samples.append(job.sample_times_s() / job.samples_per_iteration)
    count = min(map(len, samples))
    if not count:
        raise ConfigError(
            "a captured step does not say how its time varies; compare the lengths of the steps"
        )
    ratios = samples[0][:count] / samples[1][:count]
    low, high = _ends(ratios)
    ratio = times[0] / times[1]
    return PairedComparison(
        ratio=ratio,
        ratio_p5=min(low, ratio),
        ratio_p95=max(high, ratio),
        faster_share=float((ratios > 1.0).mean()),
        tie=low <= 1.0 <= high,
    )


def _ends(samples: NDArray[np.float64]) -> tuple[float, float]:
    """Returns the 5 % and 95 % quantiles of samples."""
    # Samples are quantiles at the middles of equal shares, which is what Hazen's definition reads
    # them as. Between the ends of NumPy's default are 89.6 % of the distribution with 200 samples,
    # and 87 % with the 32 of a large graph.
    low, high = np.quantile(samples, (0.05, 0.95), method="hazen")
    return float(low), float(high)


def memory_reason(job: Job, memory: tuple[MemoryAccount, ...], device: DeviceSpec) -> str:
    """Returns which rank does not fit, by how much, and what fills it; empty if all fit.

    Args:
        job: Gives advice.
        memory: Its accounts.
        device: Gives the limit.
    """
    totals = totals_bytes(memory)
    if max(totals) <= device.usable_memory_bytes:
        return ""
    fullest = totals.index(max(totals))
    over = sum(total > device.usable_memory_bytes for total in totals)
    others = f" ({over} of {len(totals)} {job.rank_word}s do not fit)" if over > 1 else ""
    where = f"{job.rank_word} {fullest}" if len(totals) > 1 else "every rank"
    advice = job.memory_advice(memory[fullest])
    return (
        f"out of memory: {where} needs {totals[fullest] / _GIB:.1f} GiB "
        f"({memory[fullest].largest()}) of {device.usable_memory_bytes / _GIB:.1f} GiB usable on "
        f"{device.name}{others}" + (f"; try {advice}" if advice else "")
    )


def _hostmemory_reason(memory: tuple[MemoryAccount, ...], cluster: Cluster) -> str:
    """Returns which node's host memory is too small; empty if all fit or the size is unknown."""
    limit_bytes = cluster.host_memory_bytes
    # One account may stand for several ranks in a row, as that of a pipeline stage does.
    ranks_each, rest = divmod(cluster.world_size, len(memory))
    if limit_bytes is None or rest or not any(account.host_bytes for account in memory):
        return ""
    held = [0.0] * cluster.node_count
    for rank in range(cluster.world_size):
        held[cluster.node_of(rank)] += memory[rank // ranks_each].host_bytes
    fullest = int(np.argmax(held))
    if held[fullest] <= limit_bytes:
        return ""
    return (
        f"out of host memory: what is kept on node {fullest} needs {held[fullest] / _GIB:.1f} GiB "
        f"of {limit_bytes / _GIB:.1f} GiB; spread it over more nodes or keep more on the devices"
    )
