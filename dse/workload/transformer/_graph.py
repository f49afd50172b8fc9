"""The execution graph of a step, for time lines and explanations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.graph import GraphBuilder, TaskKind
from dse.workload.transformer._check import check_parallelism
from dse.workload.transformer._costs import StepCosts, structure_of
from dse.workload.transformer._program import LaneName, program_of

if TYPE_CHECKING:
    from dse.graph import ExecutionGraph
    from dse.workload.transformer._types import StepProblem


def step_graph(problem: StepProblem) -> ExecutionGraph:
    """Returns the tasks of one training step on one rank of each pipeline stage.

    Lanes carry the stage as their rank. A pass is a compute task, followed by the transfers of
    tensor parallelism that nothing hides and by the time in which the device waits for the host.

    Args:
        problem: What is trained, where and how.

    Raises:
        ConfigError: The configuration is impossible; see :func:`check_parallelism`.
    """
    check_parallelism(
        problem.model, problem.cluster, problem.global_batch_size, problem.parallelism
    )
    program, costs = program_of(structure_of(problem)), StepCosts(problem)
    builder = GraphBuilder()
    lanes = [builder.add_lane(stage, name.value) for stage, name in program.lanes]
    stages = sorted({stage for stage, _ in program.lanes})
    visible = {stage: builder.add_lane(stage, "communication") for stage in stages}
    host = {stage: builder.add_lane(stage, "host") for stage in stages}
    by_kind = [costs.of(kind) for kind in program.kinds]
    last: list[int] = []
    for kind, lane, waits in zip(program.kind, program.lane, program.waits, strict=True):
        role, stage, chunk = program.kinds[kind]
        cost = by_kind[kind]
        name = role.value if chunk == 0 else f"{role.value} chunk {chunk}"
        after = [last[other] for other in waits]
        if program.lanes[lane][1] is not LaneName.COMPUTE:
            last.append(
                builder.add_task(name, TaskKind.COLLECTIVE, lanes[lane], cost.total_s, after)
            )
            continue
        task = builder.add_task(name, TaskKind.COMPUTE, lanes[lane], cost.compute_s, after)
        if cost.host_s:
            task = builder.add_task(
                f"{name}: launches", TaskKind.HOST, host[stage], cost.host_s, [task]
            )
        if cost.transfer_s:
            task = builder.add_task(
                f"{name}: exchange", TaskKind.COLLECTIVE, visible[stage], cost.transfer_s, [task]
            )
        last.append(task)
    return builder.build()
