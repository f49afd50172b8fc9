"""Running a program with given costs: when it ends, what decides that, and where time goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dse.simulate import RankBreakdown
from dse.workload.transformer._cost import Cost
from dse.workload.transformer._program import LaneName, Role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.workload.transformer._program import Program


class Run(NamedTuple):
    """One execution of a program.

    Attributes:
        makespan_s: End of the last task.
        critical: Cost of the tasks on the critical path, summed.
        breakdown: Where the time of each stage goes.
    """

    makespan_s: float
    critical: Cost
    breakdown: tuple[RankBreakdown, ...]


def run(program: Program, costs: Sequence[Cost]) -> Run:
    """Executes a program by the rules of :class:`dse.graph.ExecutionGraph`.

    The same answer as :func:`dse.simulate.simulate` of the step's graph, in a tenth of its time,
    because tasks come in order and in few kinds.

    Args:
        program: Tasks.
        costs: Cost of each of the program's kinds.
    """
    duration_s = [cost.total_s for cost in costs]
    end_s: list[float] = []
    decided_by: list[int] = []
    for kind, waits in zip(program.kind, program.waits, strict=True):
        start_s, reason = 0.0, -1
        for other in waits:
            other_s = end_s[other]
            if other_s > start_s:
                start_s, reason = other_s, other
        end_s.append(start_s + duration_s[kind])
        decided_by.append(reason)
    makespan_s = max(end_s)
    task = end_s.index(makespan_s)
    counts = [0] * len(costs)
    while task >= 0:
        counts[program.kind[task]] += 1
        task = decided_by[task]
    critical = Cost(
        *(
            sum(count * cost[part] for count, cost in zip(counts, costs, strict=True) if count)
            for part in range(len(Cost._fields))
        )
    )
    return Run(makespan_s, critical, _breakdown(program, costs, end_s, makespan_s))


def _breakdown(
    program: Program, costs: Sequence[Cost], end_s: list[float], makespan_s: float
) -> tuple[RankBreakdown, ...]:
    """Splits each stage's time; a transfer counts where the compute lane waits for it."""
    stages = 1 + max(stage for stage, _ in program.lanes)
    compute_s, transfer_s, host_s = ([0.0] * stages for _ in range(3))
    counts = [0] * len(costs)
    for kind in program.kind:
        counts[kind] += 1
    for kind, count in enumerate(counts):
        stage, cost = program.kinds[kind].stage, costs[kind]
        compute_s[stage] += count * cost.compute_s
        host_s[stage] += count * cost.host_s
        if program.kinds[kind].role in _WITH_KERNELS:
            transfer_s[stage] += count * cost.transfer_s
    for stage, (idle_s, of_host_s) in enumerate(
        _waits_for_transfers(program, costs, end_s, stages)
    ):
        transfer_s[stage] += idle_s + of_host_s
        host_s[stage] -= of_host_s
    return tuple(
        RankBreakdown(
            compute_s=compute_s[stage],
            exposed_communication_s=transfer_s[stage],
            host_s=host_s[stage],
            idle_s=max(0.0, makespan_s - compute_s[stage] - transfer_s[stage] - host_s[stage]),
        )
        for stage in range(stages)
    )


_WITH_KERNELS = {
    Role.FORWARD,
    Role.BACKWARD,
    Role.HEAD_BACKWARD,
    Role.LAYER_BACKWARD,
    Role.EMBEDDING_BACKWARD,
    Role.OPTIMIZER,
    Role.EMBEDDING_FORWARD,
    Role.LAYER_FORWARD,
    Role.HEAD,
}


def _waits_for_transfers(
    program: Program, costs: Sequence[Cost], end_s: list[float], stages: int
) -> list[tuple[float, float]]:
    """How long transfers of each stage run beside an idle compute lane, and beside its host.

    A task of the compute lane is first kernels, then waiting for the host, then its own transfers.
    """
    gaps: list[list[tuple[float, float]]] = [[] for _ in range(stages)]
    hosts: list[list[tuple[float, float]]] = [[] for _ in range(stages)]
    transfers: list[list[tuple[float, float]]] = [[] for _ in range(stages)]
    reach = [0.0] * stages
    duration_s = [cost.total_s for cost in costs]
    host_s, after_host_s = [cost.host_s for cost in costs], [cost.transfer_s for cost in costs]
    lanes = [(stage, name is LaneName.COMPUTE) for stage, name in program.lanes]
    for lane, kind, finish_s in zip(program.lane, program.kind, end_s, strict=True):
        stage, computes = lanes[lane]
        start_s = finish_s - duration_s[kind]
        if not computes:
            transfers[stage].append((start_s, finish_s))
            continue
        if start_s > reach[stage]:
            gaps[stage].append((reach[stage], start_s))
        if host_s[kind]:
            over_s = finish_s - after_host_s[kind]
            hosts[stage].append((over_s - host_s[kind], over_s))
        reach[stage] = finish_s
    last_s = max(end_s)
    result = []
    for stage in range(stages):
        gaps[stage].append((reach[stage], last_s))
        spans = sorted(transfers[stage])
        result.append((_common_s(gaps[stage], spans), _common_s(hosts[stage], spans)))
    return result


def _common_s(gaps: list[tuple[float, float]], spans: list[tuple[float, float]]) -> float:
    """Length of what two ordered lists of spans have in common; the first does not overlap."""
    total_s, index = 0.0, 0
    covered_s = 0.0
    for begin_s, finish_s in spans:
        begin_s = max(begin_s, covered_s)
        covered_s = max(covered_s, finish_s)
        while index < len(gaps) and gaps[index][1] <= begin_s:
            index += 1
        ahead = index
        while ahead < len(gaps) and gaps[ahead][0] < finish_s:
            total_s += max(0.0, min(finish_s, gaps[ahead][1]) - max(begin_s, gaps[ahead][0]))
            ahead += 1
    return total_s
