"""Runs on this machine that represent configurations of a study, one module a kind of workload.

A kind of workload has one :class:`RunPlanner`, whichever of its trainers is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.errors import ConfigError
from dse.validation.study.runs._dlrm import DlrmRuns
from dse.validation.study.runs._planner import PlannedRun, RunPlanner
from dse.validation.study.runs._scale import scale_model, scaling_text
from dse.validation.study.runs._transformer import TransformerRuns
from dse.workload import workload_kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dse.search import StudyResult

__all__ = ["PlannedRun", "RunPlanner", "planner_of", "scale_model", "scaling_text"]

#: By the kind of the workload.
PLANNERS: Mapping[str, type[RunPlanner]] = {one.kind: one for one in (DlrmRuns, TransformerRuns)}


def planner_of(study: StudyResult) -> type[RunPlanner]:
    """Returns what plans the runs of a study.

    Raises:
        ConfigError: No trainer runs studies of this kind.
    """
    if study.kind not in PLANNERS:
        kinds = " or ".join(f"`kind: {kind}`" for kind in PLANNERS)
        raise ConfigError(
            f"the study {study.name} is of a {workload_kind(study.kind).title}; only studies of "
            f"{kinds} can be validated by real runs"
        )
    return PLANNERS[study.kind]
