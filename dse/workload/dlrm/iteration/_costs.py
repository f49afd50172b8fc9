"""Durations of the tasks that do not depend on the plan, with their uncertainty.

The shape of an iteration says which cost each task has
(:mod:`dse.workload.dlrm.iteration._shape`); here are the costs themselves. They are the same in
all layouts of a problem.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dse.machine import has_own_engines
from dse.machine.collectives import CollectiveOp, collective_estimate
from dse.machine.kernels import host_copy_estimate
from dse.workload._host import Dispatch, HostTimes
from dse.workload._iteration import DurationClass
from dse.workload.dlrm._memory import input_bytes
from dse.workload.dlrm.iteration._contention import contended
from dse.workload.dlrm.iteration._dense import dense_estimate
from dse.workload.dlrm.iteration._operators import dense_buckets, stack_operators
from dse.workload.dlrm.iteration._reading import read_time_s
from dse.workload.dlrm.program._software import InputPath
from dse.workload.dlrm.scoring._features import ExchangeGroup

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from dse.machine import DeviceSpec, HostSpec, Precision
    from dse.model import Operator
    from dse.workload.dlrm._problem import DlrmProblem


class Cost(NamedTuple):
    """A duration, how far off it may be, and the kind of model it comes from."""

    duration_s: float
    spread: float
    duration_class: DurationClass


class HostWork(NamedTuple):
    """What the host does for one task: the dispatch of an operator, or something by name.

    Attributes:
        name: Name of the operator, or :data:`STEP` and its like for work without one.
        launches: Kernels that it launches.
        copy: Whether it launches a copy.
        groups: Exchange groups of which it is a part, each as often as it is, where it stands for
            operators of the framework that are not operators of the model.
        batch: Whether it also stands for those of batches and features.
    """

    name: str
    launches: int = 0
    copy: bool = False
    groups: tuple[ExchangeGroup, ...] = ()
    batch: bool = False


#: Work of the host that belongs to no operator.
STEP = HostWork("step on the host")
GRAPH_LAUNCH = HostWork("launch graph")
WAIT = HostWork("wait for lengths")
LOADING = HostWork("load the next batch")

#: Reading samples of later batches from storage.
READING = "read samples"

#: How far off reading at a measured rate of storage is: six machines of MLPerf submissions.
_READING_SPREAD = 0.06

#: Parts of the host's work for an exchange group: input, lookups, gradients. They are about as
#: long as one another in a captured step (2.1, 1.8 and 1.0 ms of eight ranks of a DLRM on V100).
_GROUP_PARTS = 3


class DeviceCosts(NamedTuple):
    """Costs of tasks on the devices; shape `(costs,)`.

    The first one is nothing; then those of copies from the host, of the dense operators phase by
    phase, of the reductions of dense gradients, and of reading samples, as `_shape.Shape` numbers
    them.
    """

    duration_s: NDArray[np.float64]
    spread: NDArray[np.float64]


@lru_cache(maxsize=64)
def device_costs(problem: DlrmProblem) -> DeviceCosts:
    """Returns the costs of a problem; what decides how many there are decides its shape as well.

    Args:
        problem: Everything but the plan.
    """
    dense = stack_operators(problem)
    by_phase = _dense_costs(problem.cluster.device, problem.precision, dense.phases)
    buckets = dense_buckets(problem)
    reductions = [_all_reduce_cost(problem, size_bytes) for size_bytes, _ in buckets]
    backward = by_phase[dense.backward_phase]
    overlaps = problem.software.overlap_dense_all_reduce
    if overlaps and has_own_engines(problem.cluster.device):
        first = min((last for _, last in buckets), default=len(backward))
        backward, reductions = contended(backward, reductions, first + 1)
    every = [Cost(0.0, 0.0, DurationClass.DENSE), *_copy_costs(problem)]
    for number, phase in enumerate(by_phase):
        every += backward if number == dense.backward_phase else phase
    every += reductions
    every.append(Cost(read_time_s(problem), _READING_SPREAD, DurationClass.STORAGE))
    return DeviceCosts(
        np.array([cost.duration_s for cost in every]), np.array([cost.spread for cost in every])
    )


def host_costs(
    problem: DlrmProblem, work: Sequence[HostWork]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns durations of what the host does, and their spreads.

    Args:
        problem: Everything but the plan.
        work: What it does.

    Returns:
        Seconds, and standard deviations of the logarithm; both of shape `(work,)`.
    """
    software = problem.software
    times = host_times(problem.cluster.host)
    others = {
        STEP: Dispatch(software.step_host_s + _handling_s(problem, work), 0.0),
        GRAPH_LAUNCH: times.graph_launch(),
        WAIT: Dispatch(0.0, 0.0),
        LOADING: Dispatch(software.loader_s_per_sample * problem.local_batch_size, 0.0),
    }
    # Overheads measured from traces hold all calls of an operator already.
    calls = 1.0 if problem.cluster.host.profile is not None else software.calls_per_operator
    duration_s, spread = np.empty(len(work)), np.empty(len(work))
    for index, one in enumerate(work):
        if one in others:
            duration_s[index], spread[index] = others[one]
            continue
        operators = 1.0
        if one.groups or one.batch:
            operators = _handled(problem, one)
        cost = times.dispatch(one.name, max(1, one.launches), one.copy)
        duration_s[index] = operators * calls * cost.duration_s
        spread[index] = cost.spread
    return duration_s, spread


def _handled(problem: DlrmProblem, work: HostWork) -> float:
    """Returns the operators that some work with features and exchange groups stands for."""
    host = problem.software.host_operators
    count = 0.0
    if work.batch:
        features = sum(table.feature_count for table in problem.model.tables)
        count += host.batch + host.feature * features
    for group in work.groups:
        if group is ExchangeGroup.REPLICATED:
            count += host.replicated / _GROUP_PARTS
            continue
        cut = group in (ExchangeGroup.ROW, ExchangeGroup.NODE)
        count += (host.group + (host.cut_rows if cut else 0.0)) / _GROUP_PARTS
    return count


def _handling_s(problem: DlrmProblem, work: Sequence[HostWork]) -> float:
    """Returns what features and exchange groups take on a host that is the device."""
    times = problem.software.handling
    features = sum(table.feature_count for table in problem.model.tables)
    found = times.batch_s + times.feature_s * features
    for group in {group for one in work for group in one.groups}:
        if group is ExchangeGroup.REPLICATED:
            found += times.replicated_s
            continue
        found += times.group_s
        if group in (ExchangeGroup.ROW, ExchangeGroup.NODE):
            found += times.cut_rows_s
    return found


@lru_cache(maxsize=64)
def host_times(host: HostSpec) -> HostTimes:
    """Returns the times of dispatches on a platform; cached, because many problems share one."""
    return HostTimes(host)


def _copy_costs(problem: DlrmProblem) -> Iterator[Cost]:
    """Yields the copies of indices and of the dense operators' input."""
    software, cluster = problem.software, problem.cluster
    if software.input_path is InputPath.ON_DEVICE:
        return
    sizes_bytes = [problem.local_batch_size * input_bytes(problem.model)]
    sizes_bytes += [operator.traffic_bytes for operator in stack_operators(problem).input_copy]
    for size_bytes in sizes_bytes:
        estimate = host_copy_estimate(
            cluster.device, cluster.host_link_of_all, "memcpy_h2d", size_bytes
        )
        yield Cost(float(estimate.time_s), float(estimate.spread), DurationClass.COPY)


def _all_reduce_cost(problem: DlrmProblem, size_bytes: int) -> Cost:
    if problem.cluster.world_size == 1:
        return Cost(0.0, 0.0, DurationClass.COMMUNICATION)
    estimate = collective_estimate(problem.cluster.whole, CollectiveOp.ALL_REDUCE, size_bytes)
    return Cost(float(estimate.time_s), float(estimate.spread), DurationClass.COMMUNICATION)


@lru_cache(maxsize=256)
def _dense_costs(
    device: DeviceSpec, precision: Precision, phases: tuple[tuple[Operator, ...], ...]
) -> tuple[list[Cost], ...]:
    """Costs of dense operators by phase. A learned model costs per call, so it is called once."""
    estimate = dense_estimate(device, precision, [op for phase in phases for op in phase])
    every = [
        Cost(float(seconds), float(spread), DurationClass.DENSE)
        for seconds, spread in zip(estimate.time_s, estimate.spread, strict=True)
    ]
    ends = np.cumsum([len(phase) for phase in phases]).tolist()
    return tuple(every[end - len(phase) : end] for phase, end in zip(phases, ends, strict=True))
