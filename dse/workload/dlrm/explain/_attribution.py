"""Attribution of an iteration's time: what each task is for, and what binds it."""

from __future__ import annotations

from functools import lru_cache
import re
from typing import TYPE_CHECKING

from dse.graph import TaskKind
from dse.workload._explain import AttributedGraph
from dse.workload._iteration import DurationClass
from dse.workload.dlrm.explain._details import task_sizes
from dse.workload.dlrm.explain._resources import plan_resources

if TYPE_CHECKING:
    from dse.sharding import ShardingPlan
    from dse.workload.dlrm.scoring._scorer import PlanScorer

#: Operators of the dense part: `top_mlp.2.weight_gradient`, `interaction.concat.backward`.
_DENSE = re.compile(
    r"(top_mlp|bottom_mlp|interaction|loss|tower|experts|task|sequence\.\d+\.attention|sequence"
    r"|traced|key_search)\b"
)
_DENSE_WORDS = {
    "top_mlp": "top MLP",
    "bottom_mlp": "bottom MLP",
    "interaction": "interaction",
    "loss": "loss",
    "tower": "towers",
    "experts": "experts",
    "task": "heads of tasks",
    "sequence": "sequence layers",
    "traced": "dense part",
    "key_search": "key search",
}
_BACKWARD = (".backward", "_gradient")

#: Ends of the names of the tasks of embedding tables → group.
_EMBEDDING = (
    (" lookup backward", "embedding updates"),
    (" lookup", "embedding lookups"),
    ("replicated tables update", "embedding updates"),
)

#: Starts of the names of what the host dispatches: operators of the model, and those of the
#: framework around them.
_DISPATCHES = ("launch ", "handle ")


def attributed_plan(
    scorer: PlanScorer, plan: ShardingPlan, *, folded: bool = False
) -> AttributedGraph:
    """Returns the graph of a plan with what each task is for and what takes its time.

    Lookups and updates of tables could be on other ranks.

    Args:
        scorer: The performance model of the problem.
        plan: A plan that has been checked against model and cluster.
        folded: Whether to leave out ranks that repeat others, and sizes.
    """
    filled = scorer.filled(plan)
    ranks = filled.folded() if folded else None
    layout = filled.expanded(ranks)
    graph = layout.graph
    return AttributedGraph(
        graph,
        plan_resources(scorer, plan, layout),
        operator_groups(graph.names, tuple(graph.kind.tolist())),
        layout.duration_class == DurationClass.EMBEDDING,
        () if folded else task_sizes(scorer, plan, layout),
        ranks,
    )


@lru_cache(maxsize=256)
def operator_groups(names: tuple[str, ...], kinds: tuple[int, ...]) -> tuple[str, ...]:
    """Returns the operator groups of tasks.

    Args:
        names: Names of the tasks.
        kinds: `TaskKind` of each.
    """
    return tuple(
        operator_group(name, TaskKind(kind)) for name, kind in zip(names, kinds, strict=True)
    )


def operator_group(name: str, kind: TaskKind) -> str:
    """Returns the operator group of a task.

    Args:
        name: Name of the task.
        kind: What it occupies its stream with.
    """
    if kind is TaskKind.HOST:
        return "host dispatch" if name.startswith(_DISPATCHES) else name
    if kind is TaskKind.COPY:
        return "input copies"
    dense = _DENSE.match(name)
    if dense:
        direction = "backward" if name.endswith(_BACKWARD) else "forward"
        word = _DENSE_WORDS.get(dense[1], "attention over the sequence")
        return f"{word} {direction}"
    return next((group for ending, group in _EMBEDDING if name.endswith(ending)), name)
