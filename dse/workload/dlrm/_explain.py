"""Why a predicted iteration takes as long as it does."""

from __future__ import annotations

from dataclasses import dataclass
import re
from typing import TYPE_CHECKING

import numpy as np

from dse.explanation import explain_graph
from dse.graph import TaskKind
from dse.sharding import check_plan
from dse.workload.dlrm._api import problem_of
from dse.workload.dlrm._explain_resources import plan_resources
from dse.workload.dlrm._predict import sample_iteration_times_s
from dse.workload.dlrm._scorer import PlanScorer
from dse.workload.dlrm._slots import DurationClass

if TYPE_CHECKING:
    from dse.explanation import Explanation
    from dse.machine.platforms import Platform
    from dse.model import DlrmModel
    from dse.sharding import ShardingPlan
    from dse.trace.overheads import HostProfile
    from dse.workload.dlrm._types import Configuration

#: Operators of the dense part: `top_mlp.2.weight_gradient`, `interaction.concat.backward`.
_DENSE = re.compile(r"(top_mlp|bottom_mlp|interaction|loss)\b")
_DENSE_WORDS = {
    "top_mlp": "top MLP",
    "bottom_mlp": "bottom MLP",
    "interaction": "interaction",
    "loss": "loss",
}
_BACKWARD = (".backward", "_gradient")

#: Ends of the names of the tasks of embedding tables → group.
_EMBEDDING = (
    (" lookup backward", "embedding updates"),
    (" lookup", "embedding lookups"),
    ("replicated tables update", "embedding updates"),
)


def explain_plan(scorer: PlanScorer, plan: ShardingPlan) -> Explanation:
    """Explains the predicted iteration time of one plan.

    Args:
        scorer: The performance model of the problem.
        plan: A plan that has been checked against model and cluster.

    Returns:
        Its work that could be on other ranks are lookups and updates of tables.
    """
    layout = scorer.layout_graph(plan)
    graph = layout.graph
    groups = [
        operator_group(name, TaskKind(kind))
        for name, kind in zip(graph.names, graph.kind.tolist(), strict=True)
    ]
    tables = layout.duration_class == DurationClass.EMBEDDING
    return explain_graph(graph, plan_resources(scorer, plan, layout), groups, tables)


def explain(
    model: DlrmModel,
    platform: Platform,
    configuration: Configuration,
    *,
    host_profile: HostProfile | None = None,
) -> Explanation:
    """Explains the predicted iteration time of one configuration.

    Args:
        model: What is trained.
        platform: Where.
        configuration: How, the sharding plan included.
        host_profile: Host overheads from traces (see :func:`problem_of`).

    Returns:
        The binding resources along the critical path, every rank's time, and what faster
        resources or evenly spread tables would bring.

    Raises:
        ConfigError: A value does not fit the platform (see :func:`problem_of`).
        PlanError: The plan is for another model or another number of ranks.
    """
    problem = problem_of(model, platform, configuration, host_profile=host_profile)
    cluster = problem.cluster
    plan = check_plan(
        configuration.plan, model.tables, cluster.world_size, cluster.devices_per_node
    )
    return explain_plan(PlanScorer(problem), plan)


def operator_group(name: str, kind: TaskKind) -> str:
    """Returns the operator group of a task, in words.

    Args:
        name: Name of the task.
        kind: What it occupies its lane with.
    """
    if kind is TaskKind.HOST:
        return "host dispatch" if name.startswith("launch ") else name
    if kind is TaskKind.COPY:
        return "input copies"
    dense = _DENSE.match(name)
    if dense:
        direction = "backward" if name.endswith(_BACKWARD) else "forward"
        return f"{_DENSE_WORDS[dense[1]]} {direction}"
    return next((group for ending, group in _EMBEDDING if name.endswith(ending)), name)


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """Two predictions under the same errors of the models.

    Attributes:
        ratio: Throughput of the second over that of the first, as expected.
        ratio_p5: Lower end of its 90 % interval over paired samples.
        ratio_p95: Upper end.
        faster_share: Share of the samples in which the second has the higher throughput.
        tie: Whether the interval holds 1, so that the model cannot tell them apart.
    """

    ratio: float
    ratio_p5: float
    ratio_p95: float
    faster_share: float
    tie: bool


def compare_plans(
    first: tuple[PlanScorer, ShardingPlan], second: tuple[PlanScorer, ShardingPlan]
) -> PairedComparison:
    """Compares the throughput of two plans, of the same problem or of two.

    Errors that both share, such as a model that is wrong about all lookups alike, move both and
    do not count (see :func:`sample_iteration_times_s`).

    Args:
        first: Performance model and plan.
        second: The same of the other.
    """
    times, samples, batches = [], [], []
    for scorer, plan in (first, second):
        batches.append(scorer.problem.global_batch_size)
        samples.append(sample_iteration_times_s(scorer, plan))
        times.append(float(scorer.score([plan]).iteration_time_s[0]))
    work = batches[1] / batches[0]
    ratios = work * samples[0] / samples[1]
    low, high = (float(value) for value in np.quantile(ratios, (0.05, 0.95)))
    ratio = work * times[0] / times[1]
    # The same plan has the same samples: nothing to tell apart.
    return PairedComparison(
        ratio=ratio,
        ratio_p5=min(low, ratio),
        ratio_p95=max(high, ratio),
        faster_share=float((ratios > 1.0).mean()),
        tie=low <= 1.0 <= high,
    )
